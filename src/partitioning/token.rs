//! The strategy for streams that nobody may change: one filter per key, found by looking at the stream.

use super::{Partitions, PatternError, Resolved, Strategy, SubjectPattern, SubjectTransform};
use crate::ids::Partition;
use crate::ring::hash::key_partition;

/// One consumer per key on a plain stream; the partition is the crate's own hash of the key.
///
/// For up to a few hundred long-lived keys: every consumer costs the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pattern: SubjectPattern,
    partitions: Partitions,
}

impl Token {
    /// For the subjects of `pattern`, spread over `partitions`.
    pub fn new(pattern: SubjectPattern, partitions: Partitions) -> Self {
        Self { pattern, partitions }
    }
}

impl Token {
    /// For the subjects of a pattern such as `some_topic.*`, whose `*` are the key.
    ///
    /// # Errors
    /// [`PatternError`] when the pattern cannot be used.
    pub fn of(pattern: &str) -> Result<Self, PatternError> {
        Ok(Self::new(SubjectPattern::parse(pattern)?, Partitions::DEFAULT))
    }
}

impl Strategy for Token {
    fn name(&self) -> &'static str {
        "token"
    }

    fn pattern(&self) -> &SubjectPattern {
        &self.pattern
    }

    fn partitions(&self) -> Partitions {
        self.partitions
    }

    fn partition_of(&self, key: &str) -> Partition {
        key_partition(key, self.partitions)
    }

    fn resolve(&self, stored: &str) -> Option<Resolved> {
        let key = self.pattern.key_of(stored)?.into_owned();
        Some(Resolved {
            partition: self.partition_of(&key),
            key,
            subject: stored.to_owned(),
        })
    }

    fn fixed_filter(&self, _partition: Partition) -> Option<String> {
        None
    }

    fn filter_for_key(&self, key: &str) -> Option<String> {
        self.pattern.filter_for_key(key)
    }

    fn partition_of_filter(&self, filter: &str) -> Option<Partition> {
        self.pattern.key_of_filter(filter).map(|key| self.partition_of(&key))
    }

    fn covered_subject(&self, _partition: Partition) -> String {
        self.pattern.as_str().to_owned()
    }

    fn transform(&self) -> Option<SubjectTransform> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::subject::tests::{any_pattern, catches};
    use super::*;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    #[test]
    fn one_filter_per_key() {
        let strategy = Token::new(SubjectPattern::parse("some_topic.*").unwrap(), Partitions::DEFAULT);
        assert_eq!(strategy.name(), "token");
        assert!(strategy.needs_discovery());
        assert_eq!(strategy.fixed_filter(Partition(0)), None);
        assert_eq!(strategy.filter_for_key("42").as_deref(), Some("some_topic.42"));
        assert_eq!(strategy.partition_of_filter("some_topic.42"), Some(Partition(17)));
        assert_eq!(strategy.partition_of_filter("some_topic.*"), None);
        assert_eq!(strategy.covered_subject(Partition(0)), "some_topic.*");
        assert_eq!(strategy.transform(), None);
        let resolved = Resolved {
            partition: Partition(17),
            key: "42".into(),
            subject: "some_topic.42".into(),
        };
        assert_eq!(strategy.resolve("some_topic.42"), Some(resolved));
        assert_eq!(strategy.resolve("some_topic.3.42"), None);
    }

    proptest! {
        /// Everything of one key lies behind one filter, and the filter's partition is the key's.
        #[test]
        fn key_filter_and_partition_agree((pattern, subject, _) in any_pattern(), number in 1_u64..100) {
            let strategy: Box<dyn Strategy> = Box::new(Token::new(pattern, Partitions::new(number).unwrap()));
            let resolved = strategy.resolve(&subject).unwrap();
            let filter = strategy.filter_for_key(&resolved.key).unwrap();
            prop_assert!(catches(&filter, &subject));
            prop_assert_eq!(strategy.partition_of_filter(&filter), Some(resolved.partition));
            prop_assert_eq!(strategy.partition_of(&resolved.key), resolved.partition);
            prop_assert!(strategy.partitions().contains(resolved.partition));
        }
    }
}
