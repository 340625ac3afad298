//! Consumer names: the only place that makes and reads them.
//!
//! `<group>_<partition>_<fencing token>_<re-open count>_<filter hash>`: the epoch is part of the name and never used twice, so
//! deleting a consumer is the server-side fence of its tenure.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{Epoch, FencingToken, GroupName, Partition, decode};
use crate::lanes::Filter;

/// The name of one consumer of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerName {
    /// The group.
    pub group: GroupName,
    /// The partition it serves.
    pub partition: Partition,
    /// The tenure and the re-open count that it belongs to.
    pub epoch: Epoch,
    /// The hash of its filter subject: a subject may be longer than a name can be.
    pub filter_hash: u64,
}

impl ConsumerName {
    /// The name for a filter in an epoch.
    pub fn new(group: &GroupName, partition: Partition, filter: &Filter, epoch: Epoch) -> Self {
        Self {
            group: group.clone(),
            partition,
            epoch,
            filter_hash: filter_hash(filter),
        }
    }

    /// Reads a name back; `None` for a consumer that no jetring group made.
    ///
    /// ```
    /// use jetring::ids::{Epoch, FencingToken, GroupName, Partition};
    /// use jetring::lanes::Filter;
    /// use jetring::names::ConsumerName;
    ///
    /// let epoch = Epoch { token: FencingToken(9), reopen: 0 };
    /// let name = ConsumerName::new(&GroupName::new("billing")?, Partition(3), &Filter::new("orders.3.>"), epoch);
    /// assert_eq!(ConsumerName::parse(&name.to_string()), Some(name));
    /// assert_eq!(ConsumerName::parse("somebody_elses"), None);
    /// # Ok::<(), jetring::ids::NameError>(())
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('_');
        let name = Self {
            group: GroupName::new(decode(parts.next()?)?).ok()?,
            partition: Partition(parts.next()?.parse().ok()?),
            epoch: Epoch {
                token: FencingToken(parts.next()?.parse().ok()?),
                reopen: parts.next()?.parse().ok()?,
            },
            filter_hash: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        // One spelling per name: "+1" or leading zeros are not ours.
        (parts.next().is_none() && name.to_string() == text).then_some(name)
    }

    /// Whether it serves `filter`.
    pub fn serves(&self, filter: &Filter) -> bool {
        self.filter_hash == filter_hash(filter)
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}_{}_{}_{}_{:016x}",
            self.group.encoded(),
            self.partition,
            self.epoch.token,
            self.epoch.reopen,
            self.filter_hash
        )
    }
}

fn filter_hash(filter: &Filter) -> u64 {
    xxh3_64(filter.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MAX_NAME_LEN;

    fn name(group: &str) -> ConsumerName {
        let epoch = Epoch {
            token: FencingToken(u64::MAX),
            reopen: u32::MAX,
        };
        ConsumerName::new(
            &GroupName::new(group).unwrap(),
            Partition(u16::MAX),
            &Filter::new("a.*"),
            epoch,
        )
    }

    #[test]
    fn the_longest_name_fits_the_server() {
        let long = name(&"g".repeat(MAX_NAME_LEN)).to_string();
        assert!(long.len() <= 255, "{}", long.len());
        assert!(long.bytes().all(|b| b.is_ascii_alphanumeric() || b"-=_".contains(&b)));
    }

    #[test]
    fn groups_that_look_like_parts_of_a_name_are_told_apart() {
        for group in ["a_b", "a", "a_1_2", "ä.*>"] {
            let name = name(group);
            assert_eq!(ConsumerName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn only_our_own_spelling_is_read() {
        for foreign in [
            "",
            "a",
            "a_1_2_3",
            "a_1_2_3_zz",
            "a_01_2_3_0000000000000000",
            "a_+1_2_3_0000000000000000",
        ] {
            assert_eq!(ConsumerName::parse(foreign), None, "{foreign}");
        }
    }
}
