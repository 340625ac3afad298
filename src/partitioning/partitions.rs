//! The number of partitions. It is fixed for the life of a group, so it is checked once and carried as a type.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::ids::Partition;

/// How many partitions a group has: 1 to [`Partitions::MAX`].
///
/// Small is fast: keys run in parallel inside a partition, so the number only has to be large enough to share the work out
/// among the members, and every consumer that filters a stream costs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Partitions(NonZeroU16);

/// Why a number of partitions was refused. Nothing was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionsError {
    /// A group without a partition could own nothing.
    #[error("0 partitions can hold no key; use 1 to {max}, the default is {default}", max = Partitions::MAX, default = Partitions::DEFAULT)]
    Zero,
    /// More than a stream can carry consumers for.
    #[error(
        "{found} partitions are too many, at most {max} are possible; use {default} to begin with: keys run in parallel \
         inside a partition, so more partitions than a few per member gain nothing",
        max = Partitions::MAX,
        default = Partitions::DEFAULT
    )]
    TooMany {
        /// The number as given.
        found: u64,
    },
}

impl Partitions {
    /// The highest number of partitions.
    pub const MAX: u16 = 4096;

    /// What fits most groups.
    pub const DEFAULT: Self = match NonZeroU16::new(32) {
        Some(number) => Self(number),
        None => unreachable!(),
    };

    /// Checks and wraps a number of partitions.
    ///
    /// ```
    /// use jetring::partitioning::Partitions;
    ///
    /// assert_eq!(Partitions::new(32)?.get(), 32);
    /// assert!(Partitions::new(0).is_err());
    /// assert!(Partitions::new(4097).is_err());
    /// # Ok::<(), jetring::partitioning::PartitionsError>(())
    /// ```
    ///
    /// # Errors
    /// [`PartitionsError`] when it is 0 or above [`Partitions::MAX`].
    pub fn new(number: u64) -> Result<Self, PartitionsError> {
        let too_many = PartitionsError::TooMany { found: number };
        let small = u16::try_from(number).map_err(|_| too_many.clone())?;
        match NonZeroU16::new(small) {
            None => Err(PartitionsError::Zero),
            Some(_) if small > Self::MAX => Err(too_many),
            Some(checked) => Ok(Self(checked)),
        }
    }

    /// The number itself.
    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// Every partition, in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Partition> + ExactSizeIterator {
        (0..self.get()).map(Partition)
    }

    /// Whether `partition` is one of them.
    pub fn contains(self, partition: Partition) -> bool {
        partition.0 < self.get()
    }

    /// The partition of a hash: the remainder of the division, so that every partition is hit alike.
    pub(crate) fn of_hash(self, hash: u64) -> Partition {
        // The remainder is below a u16, so nothing is cut off.
        Partition((hash % u64::from(self.get())) as u16)
    }
}

impl Default for Partitions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u64> for Partitions {
    type Error = PartitionsError;
    fn try_from(number: u64) -> Result<Self, PartitionsError> {
        Self::new(number)
    }
}

impl From<Partitions> for u64 {
    fn from(partitions: Partitions) -> u64 {
        u64::from(partitions.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_1_and_4096() {
        assert_eq!(Partitions::new(0), Err(PartitionsError::Zero));
        assert_eq!(Partitions::new(1).map(Partitions::get), Ok(1));
        assert_eq!(Partitions::new(4096).map(Partitions::get), Ok(4096));
        for found in [4097, 65_535, 65_536, 65_568, u64::MAX] {
            assert_eq!(Partitions::new(found), Err(PartitionsError::TooMany { found }));
        }
    }

    #[test]
    fn a_record_with_a_bad_number_is_refused() {
        assert_eq!(serde_json::to_string(&Partitions::DEFAULT).unwrap(), "32");
        assert_eq!(serde_json::from_str::<Partitions>("32").unwrap(), Partitions::DEFAULT);
        for bad in ["0", "4097", "-1", "65568"] {
            assert!(serde_json::from_str::<Partitions>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_partition_is_listed_once() {
        let three = Partitions::new(3).unwrap();
        assert_eq!(
            three.iter().collect::<Vec<_>>(),
            [Partition(0), Partition(1), Partition(2)]
        );
        assert!(three.contains(Partition(2)));
        assert!(!three.contains(Partition(3)));
    }
}
