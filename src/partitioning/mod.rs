//! How a subject becomes a key and a key becomes a partition.
mod partitions;

pub use partitions::{Partitions, PartitionsError};
