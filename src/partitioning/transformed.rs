//! The strategy for new streams: the stream's own subject transform puts the partition into the subject.

use super::{InsertedPartition, Partitions, Resolved, Strategy, SubjectPattern, SubjectTransform};
use crate::error::Error;
use crate::ids::Partition;

/// One consumer per partition on a stream whose `subject_transform` stores `some_topic.<partition>.<token>`.
///
/// Takes any number of keys, without a copy of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transformed {
    inserted: InsertedPartition,
}

impl Transformed {
    /// For the subjects of `pattern`, spread over `partitions`.
    pub fn new(pattern: SubjectPattern, partitions: Partitions) -> Self {
        Self {
            inserted: InsertedPartition::new(pattern, partitions),
        }
    }
}

impl Transformed {
    /// For the subjects of a pattern such as `some_topic.*`, whose `*` are the key, spread over `partitions`.
    ///
    /// # Errors
    /// [`Error::Pattern`] or [`Error::Partitions`] when one of them cannot be used.
    pub fn of(pattern: &str, partitions: u64) -> Result<Self, Error> {
        Ok(Self::new(SubjectPattern::parse(pattern)?, Partitions::new(partitions)?))
    }
}

impl Strategy for Transformed {
    fn name(&self) -> &'static str {
        "transformed"
    }

    fn pattern(&self) -> &SubjectPattern {
        self.inserted.pattern()
    }

    fn partitions(&self) -> Partitions {
        self.inserted.partitions()
    }

    fn partition_of(&self, key: &str) -> Partition {
        self.inserted.partition_of(key)
    }

    fn resolve(&self, stored: &str) -> Option<Resolved> {
        self.inserted.resolve(stored)
    }

    fn fixed_filter(&self, partition: Partition) -> Option<String> {
        Some(self.inserted.filter(partition))
    }

    fn filter_for_key(&self, key: &str) -> Option<String> {
        // Asked of the pattern only to refuse what is no key.
        self.pattern()
            .filter_for_key(key)
            .map(|_| self.inserted.filter(self.partition_of(key)))
    }

    fn partition_of_filter(&self, filter: &str) -> Option<Partition> {
        self.inserted.partition_of_filter(filter)
    }

    fn covered_subject(&self, _partition: Partition) -> String {
        // A stream takes messages by their original subject and transforms it when it stores them.
        self.pattern().as_str().to_owned()
    }

    fn transform(&self) -> Option<SubjectTransform> {
        Some(SubjectTransform::partitioning(self.pattern(), self.partitions()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fixed_filter_per_partition() {
        let strategy = Transformed::new(SubjectPattern::parse("some_topic.*").unwrap(), Partitions::DEFAULT);
        assert_eq!(strategy.name(), "transformed");
        assert!(!strategy.needs_discovery());
        assert_eq!(strategy.fixed_filter(Partition(7)).as_deref(), Some("some_topic.7.>"));
        assert_eq!(strategy.filter_for_key("42").as_deref(), Some("some_topic.3.>"));
        assert_eq!(strategy.filter_for_key("4.2"), None);
        assert_eq!(strategy.partition_of_filter("some_topic.7.>"), Some(Partition(7)));
        assert_eq!(strategy.covered_subject(Partition(7)), "some_topic.*");
        let destination = strategy.transform().unwrap().destination;
        assert_eq!(destination, "some_topic.{{partition(32,1)}}.{{wildcard(1)}}");
    }

    #[test]
    fn the_partition_never_leaks() {
        let strategy = Transformed::new(SubjectPattern::parse("some_topic.*").unwrap(), Partitions::DEFAULT);
        let resolved = strategy.resolve("some_topic.3.42").unwrap();
        assert_eq!(
            (resolved.key.as_str(), resolved.subject.as_str()),
            ("42", "some_topic.42")
        );
        assert_eq!(strategy.resolve("some_topic.42"), None);
    }
}
