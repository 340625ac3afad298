//! Subjects with the partition in them: `some_topic.<token>` stored as `some_topic.<partition>.<token>`.
//!
//! All strategies but `Token` store messages like this, and differ only in who puts the partition there. It stands right
//! behind the literal tokens that the pattern begins with, so that one filter without inner wildcards catches a partition.

use super::{Partitions, Resolved, SubjectPattern};
use crate::ids::Partition;

/// Converts between original subjects, stored subjects and filters, and computes the server's partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InsertedPartition {
    pattern: SubjectPattern,
    partitions: Partitions,
    /// What stands before the partition: the literal tokens, each with its dot.
    prefix: String,
}

impl InsertedPartition {
    /// For the subjects of `pattern`, spread over `partitions`.
    pub fn new(pattern: SubjectPattern, partitions: Partitions) -> Self {
        let prefix = pattern.literal_tokens().flat_map(|token| [token, "."]).collect();
        Self {
            pattern,
            partitions,
            prefix,
        }
    }

    /// The pattern of the original subjects.
    pub fn pattern(&self) -> &SubjectPattern {
        &self.pattern
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// The partition a server's `{{partition(P, ...)}}` gives to a key.
    pub fn partition_of(&self, key: &str) -> Partition {
        server_partition(key, self.partitions)
    }

    /// The filter that catches exactly the stored subjects of one partition: `some_topic.7.>`.
    pub fn filter(&self, partition: Partition) -> String {
        format!("{}{partition}.>", self.prefix)
    }

    /// The partition of a filter made by [`filter`](InsertedPartition::filter). `None` for any other filter.
    pub fn partition_of_filter(&self, filter: &str) -> Option<Partition> {
        let (partition, rest) = self.split(filter)?;
        (rest == ">").then_some(partition)
    }

    /// The subject under which a message is stored. `None` if the original subject does not fit the pattern.
    pub fn stored_subject(&self, original: &str) -> Option<String> {
        let key = self.pattern.key_of(original)?;
        let rest = original.strip_prefix(&self.prefix)?;
        Some(format!("{}{}.{rest}", self.prefix, self.partition_of(&key)))
    }

    /// Takes a stored subject apart. `None` if no original subject is stored like this, or not with this partition.
    pub fn resolve(&self, stored: &str) -> Option<Resolved> {
        let (partition, rest) = self.split(stored)?;
        let subject = format!("{}{rest}", self.prefix);
        let key = self.pattern.key_of(&subject)?.into_owned();
        (self.partition_of(&key) == partition).then_some(Resolved {
            partition,
            key,
            subject,
        })
    }

    /// Splits a stored subject or a filter into its partition and what follows.
    fn split<'a>(&self, stored: &'a str) -> Option<(Partition, &'a str)> {
        let (number, rest) = stored.strip_prefix(&self.prefix)?.split_once('.')?;
        let partition = Partition(number.parse().ok()?);
        // `+7` and `07` are numbers to Rust, but not what a server writes.
        (self.partitions.contains(partition) && partition.to_string() == number).then_some((partition, rest))
    }
}

/// The partition that nats-server's `{{partition(P, tokens...)}}` gives to a key: FNV-1a of 32 bits over the key's tokens,
/// one behind the other *without* the dots between them, modulo P (`getHashPartition` in `server/subject_transform.go`).
///
/// ```
/// use jetring::partitioning::{Partitions, server_partition};
///
/// assert_eq!(server_partition("foo", Partitions::new(10)?).0, 3);
/// assert_eq!(server_partition("fo.o", Partitions::new(10)?).0, 3);
/// # Ok::<(), jetring::partitioning::PartitionsError>(())
/// ```
pub fn server_partition(key: &str, partitions: Partitions) -> Partition {
    partitions.of_hash(u64::from(fnv1a_32(key.bytes().filter(|byte| *byte != b'.'))))
}

/// Fowler-Noll-Vo, variant 1a, 32 bits (draft-eastlake-fnv).
fn fnv1a_32(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::super::subject::tests::{any_pattern, catches};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_fnv_hashes() {
        // From the authors of the hash.
        for (text, hash) in [("", 0x811c_9dc5_u32), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a_32(text.bytes()), hash, "{text}");
        }
    }

    #[test]
    fn golden_server_partitions() {
        // The expectations of nats-server's own tests of `partition(10)`.
        for (key, partition) in [("foo", 3), ("baz", 0), ("qux", 9)] {
            assert_eq!(
                server_partition(key, Partitions::new(10).unwrap()),
                Partition(partition),
                "{key}"
            );
        }
        // Computed by another program.
        for (key, of_32, of_4096) in [
            ("42", 3, 1411),
            ("token-1", 20, 1716),
            ("größe", 26, 1178),
            ("ab", 10, 1482),
            ("a.b", 10, 1482),
        ] {
            assert_eq!(server_partition(key, Partitions::DEFAULT), Partition(of_32), "{key}");
            assert_eq!(
                server_partition(key, Partitions::new(4096).unwrap()),
                Partition(of_4096),
                "{key}"
            );
        }
    }

    fn inserted(pattern: &str) -> InsertedPartition {
        InsertedPartition::new(SubjectPattern::parse(pattern).unwrap(), Partitions::DEFAULT)
    }

    #[test]
    fn stored_subjects() {
        for (pattern, original, stored) in [
            ("some_topic.*", "some_topic.42", Some("some_topic.3.42")),
            ("a.*.b.*", "a.token.b.-1", Some("a.20.token.b.-1")),
            ("orders.*.>", "orders.42.x.y", Some("orders.3.42.x.y")),
            ("*.orders", "42.orders", Some("3.42.orders")),
            ("some_topic.*", "some_topic.42.x", None),
        ] {
            assert_eq!(
                inserted(pattern).stored_subject(original).as_deref(),
                stored,
                "{pattern} {original}"
            );
        }
    }

    #[test]
    fn what_is_not_stored_like_this_is_not_resolved() {
        let topic = inserted("some_topic.*");
        let resolved = Resolved {
            partition: Partition(3),
            key: "42".into(),
            subject: "some_topic.42".into(),
        };
        assert_eq!(topic.resolve("some_topic.3.42"), Some(resolved));
        for other in [
            "some_topic.42",
            "some_topic.4.42",
            "some_topic.03.42",
            "some_topic.+3.42",
            "some_topic.35.42",
            "some_topic.3.42.1",
            "some_topic.3",
            "some_topic.3.*",
            "other.3.42",
        ] {
            assert_eq!(topic.resolve(other), None, "{other}");
        }
    }

    #[test]
    fn filters() {
        let topic = inserted("some_topic.*");
        assert_eq!(topic.filter(Partition(7)), "some_topic.7.>");
        assert_eq!(topic.partition_of_filter("some_topic.7.>"), Some(Partition(7)));
        assert_eq!(inserted("*.orders").filter(Partition(7)), "7.>");
        for other in [
            "some_topic.7.*",
            "some_topic.07.>",
            "some_topic.32.>",
            "some_topic.>",
            "x.7.>",
        ] {
            assert_eq!(topic.partition_of_filter(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn an_original_subject_comes_back((pattern, one, two) in any_pattern(), number in 1_u64..100) {
            let partitions = Partitions::new(number).unwrap();
            let inserted = InsertedPartition::new(pattern.clone(), partitions);
            let stored = inserted.stored_subject(&one).unwrap();
            let resolved = inserted.resolve(&stored).unwrap();
            prop_assert_eq!(&resolved.subject, &one);
            prop_assert_eq!(&*pattern.key_of(&one).unwrap(), &resolved.key);
            prop_assert_eq!(inserted.partition_of(&resolved.key), resolved.partition);
            let other = inserted.resolve(&inserted.stored_subject(&two).unwrap()).unwrap();
            for partition in partitions.iter() {
                let filter = inserted.filter(partition);
                prop_assert_eq!(catches(&filter, &stored), partition == resolved.partition);
                prop_assert_eq!(inserted.partition_of_filter(&filter), Some(partition));
            }
            if other.key == resolved.key {
                prop_assert_eq!(other.partition, resolved.partition);
            }
        }
    }
}
