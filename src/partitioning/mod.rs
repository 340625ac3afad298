//! How a subject becomes a key, a key becomes a partition, and a partition becomes the filter of a consumer.
//!
//! - [`SubjectPattern`]: which subjects a group works on, and which of their tokens are the key.
//! - [`Partitions`]: how many units of ownership there are.
//! - [`Strategy`]: what a group needs to know about how its stream is partitioned. [`Token`] and [`Transformed`] are here.
//! - [`InsertedPartition`], [`SubjectTransform`]: what the strategies that store the partition in the subject have in common.
//!
//! All of it is text and arithmetic. What it takes to look at a stream, or to set one up, lives with the rest of the I/O.

mod inserted;
mod partitions;
mod pattern_error;
mod subject;
mod token;
mod transform;
mod transformed;

use std::fmt::Debug;

use crate::ids::Partition;

pub use inserted::{InsertedPartition, server_partition};
pub use partitions::{Partitions, PartitionsError};
pub use pattern_error::PatternError;
pub use subject::SubjectPattern;
pub use token::Token;
pub use transform::{SubjectTransform, TransformMismatch};
pub use transformed::Transformed;

/// What a stored message is, read from its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The partition of its key.
    pub partition: Partition,
    /// Its key: the key tokens, joined by dots.
    pub key: String,
    /// The subject it was published to, and the one its handler sees. A partition in the stored subject never shows here.
    pub subject: String,
}

/// How a stream is partitioned, as far as that can be said without looking at it.
///
/// Three kinds of subject meet here. The *original* subject is the one published to, and fits the
/// [`pattern`](Strategy::pattern). The *stored* subject is the one in the stream, with the partition in it where the strategy
/// puts it there. A *filter* selects stored subjects; every consumer has exactly one.
///
/// Whatever the strategy: the stored subjects of one key are all caught by that key's one filter, that filter lies in the
/// key's partition, and no two filters of a group catch the same subject.
pub trait Strategy: Debug + Send + Sync {
    /// Its name in the group's record and in messages: a strategy never changes it.
    fn name(&self) -> &'static str;

    /// The original subjects, and the key in them.
    fn pattern(&self) -> &SubjectPattern;

    /// How many partitions there are.
    fn partitions(&self) -> Partitions;

    /// The partition of a key.
    fn partition_of(&self, key: &str) -> Partition;

    /// Reads a stored subject. `None` if it is not one of this strategy's: its message belongs to no key, and must be
    /// reported and not handled.
    fn resolve(&self, stored: &str) -> Option<Resolved>;

    /// The one filter of a partition, if it is known without looking at the stream; else filters are found by discovery.
    fn fixed_filter(&self, partition: Partition) -> Option<String>;

    /// Whether filters must be found by looking for new keys in the stream, see [`filter_for_key`](Strategy::filter_for_key).
    fn needs_discovery(&self) -> bool {
        self.fixed_filter(Partition(0)).is_none()
    }

    /// The filter that catches a key, alone or with others of its partition. `None` if no subject can have this key.
    fn filter_for_key(&self, key: &str) -> Option<String>;

    /// The partition that a filter belongs to. `None` if it is not a filter of this strategy.
    fn partition_of_filter(&self, filter: &str) -> Option<Partition>;

    /// The subject that the stream which takes the messages of a partition has to listen to.
    fn covered_subject(&self, partition: Partition) -> String;

    /// What a server has to do to the subjects, if anything: in the stream, in its source or in the account, depending on the
    /// strategy.
    fn transform(&self) -> Option<SubjectTransform>;
}
