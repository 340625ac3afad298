//! How long partitions stood still, measured from the handlers' records.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::clock;
use crate::history::{Frozen, Handling};

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its beginning.
    pub(crate) from: u64,
    /// Its end, which is not in it.
    pub(crate) until: u64,
}

impl Window {
    /// Whether a time lies in it.
    pub(crate) fn contains(self, at: u64) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// How several times are spread, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Half of them are not longer.
    pub(crate) p50: f64,
    /// 99 of a hundred are not longer.
    pub(crate) p99: f64,
    /// The longest.
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there are none.
    pub(crate) fn of(mut nanos: Vec<u64>) -> Option<Self> {
        nanos.sort_unstable();
        // The least one that `percent` of all do not exceed.
        let at = |percent: usize| {
            let rank = (nanos.len() * percent).div_ceil(100);
            nanos.get(rank.checked_sub(1)?).copied().map(clock::milliseconds)
        };
        Some(Self {
            p50: at(50)?,
            p99: at(99)?,
            max: at(100)?,
        })
    }
}

/// One member's time with one partition.
#[derive(Debug)]
struct Tenure {
    member: usize,
    starts: Vec<u64>,
    last_end: u64,
}

/// A partition that went from one member to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handover {
    /// The partition.
    pub(crate) partition: u16,
    /// The number of the old owner.
    pub(crate) from: usize,
    /// When the old owner's last handler ended.
    pub(crate) stopped: u64,
    /// When the new owner's first handler began.
    pub(crate) resumed: u64,
}

impl Handover {
    /// The time between.
    pub(crate) fn pause(self) -> u64 {
        self.resumed.saturating_sub(self.stopped)
    }
}

/// The partitions through the whole run.
#[derive(Debug)]
pub(crate) struct Tenures {
    /// In order of their fencing tokens.
    by_partition: BTreeMap<u16, Vec<Tenure>>,
}

impl Tenures {
    /// What was frozen in the middle is left out: the new owner does not wait for it.
    pub(crate) fn of(handlings: &[Handling], frozen: Option<Frozen>) -> Self {
        let mut by_token: BTreeMap<(u16, u64), Tenure> = BTreeMap::new();
        for handling in handlings {
            if frozen.is_some_and(|frozen| frozen.is_late(handling)) {
                continue;
            }
            let tenure = by_token
                .entry((handling.partition, handling.token))
                .or_insert_with(|| Tenure {
                    member: handling.member,
                    starts: Vec::new(),
                    last_end: 0,
                });
            tenure.starts.push(handling.start);
            tenure.last_end = tenure.last_end.max(handling.end);
        }
        let mut by_partition: BTreeMap<u16, Vec<Tenure>> = BTreeMap::new();
        for ((partition, _), mut tenure) in by_token {
            tenure.starts.sort_unstable();
            by_partition.entry(partition).or_default().push(tenure);
        }
        Self { by_partition }
    }

    /// The partitions whose new owner began in a window.
    pub(crate) fn handovers(&self, window: Window) -> Vec<Handover> {
        let mut found = Vec::new();
        for (&partition, tenures) in &self.by_partition {
            for pair in tenures.windows(2) {
                let [old, new] = pair else { continue };
                let resumed = new.starts.first().copied().unwrap_or(new.last_end);
                if old.member != new.member && window.contains(resumed) {
                    found.push(Handover {
                        partition,
                        from: old.member,
                        stopped: old.last_end,
                        resumed,
                    });
                }
            }
        }
        found
    }

    /// For each partition that did not move in a window, the longest time between the starts of two handlers.
    pub(crate) fn longest_gaps(&self, window: Window) -> Vec<u64> {
        let moved: Vec<u16> = self
            .handovers(window)
            .iter()
            .map(|handover| handover.partition)
            .collect();
        let stayed = self.by_partition.keys().filter(|partition| !moved.contains(partition));
        stayed
            .filter_map(|&partition| self.gaps(partition, window).max())
            .collect()
    }

    /// The usual time between the starts of two handlers of a partition.
    pub(crate) fn usual_spacing(&self, window: Window) -> Option<f64> {
        let partitions = self.by_partition.keys();
        let gaps = partitions.flat_map(|&partition| self.gaps(partition, window));
        Spread::of(gaps.collect()).map(|spread| spread.p50)
    }

    /// The times between the starts of handlers of one tenure, as far as they lie in a window.
    fn gaps(&self, partition: u16, window: Window) -> impl Iterator<Item = u64> {
        let tenures = self.by_partition.get(&partition).map(Vec::as_slice).unwrap_or_default();
        let pairs = tenures.iter().flat_map(|tenure| tenure.starts.windows(2));
        let touching = pairs.filter(move |pair| pair[1] > window.from && pair[0] < window.until);
        touching.map(|pair| pair[1] - pair[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Outcome;

    const MS: u64 = 1_000_000;

    fn handling(member: usize, partition: u16, token: u64, start: u64, end: u64) -> Handling {
        Handling {
            member,
            key: "k".into(),
            number: 1,
            partition,
            token,
            start: start * MS,
            end: end * MS,
            outcome: Outcome::Finished,
        }
    }

    fn window(from: u64, until: u64) -> Window {
        Window {
            from: from * MS,
            until: until * MS,
        }
    }

    #[test]
    fn a_moved_partition_pauses_from_the_old_owners_last_end_to_the_new_owners_first_start() {
        let handlings = [
            handling(1, 0, 10, 0, 3),
            handling(1, 0, 10, 10, 14),
            handling(2, 0, 11, 60, 62),
            handling(1, 7, 10, 0, 3),
            handling(1, 7, 12, 90, 91),
        ];
        let tenures = Tenures::of(&handlings, None);
        let found = tenures.handovers(window(20, 100));
        assert_eq!(
            found.len(),
            1,
            "one that stays with its member is no handover: {found:?}"
        );
        assert_eq!((found[0].partition, found[0].from, found[0].pause()), (0, 1, 46 * MS));
        assert!(tenures.handovers(window(0, 60)).is_empty());
    }

    #[test]
    fn what_was_frozen_in_the_middle_does_not_shorten_the_pause() {
        let frozen = Frozen {
            member: 1,
            from: 20 * MS,
            woken: 100 * MS,
            rejoined: 120 * MS,
        };
        let handlings = [
            handling(1, 0, 10, 10, 12),
            handling(1, 0, 10, 19, 101),
            handling(2, 0, 11, 60, 62),
        ];
        let found = Tenures::of(&handlings, Some(frozen)).handovers(window(0, 1000));
        assert_eq!(found[0].pause(), 48 * MS);
    }

    #[test]
    fn the_longest_gap_of_what_stayed() {
        let mut handlings: Vec<Handling> = (0..10)
            .map(|step| handling(1, 0, 10, step * 10, step * 10 + 1))
            .collect();
        handlings.push(handling(1, 0, 10, 150, 151));
        handlings.push(handling(1, 1, 10, 0, 1));
        handlings.push(handling(2, 1, 11, 95, 96));
        let tenures = Tenures::of(&handlings, None);
        assert_eq!(tenures.longest_gaps(window(0, 50)), [10 * MS]);
        assert_eq!(tenures.longest_gaps(window(50, 120)), [60 * MS]);
        assert_eq!(tenures.usual_spacing(window(0, 200)), Some(10.0));
    }

    #[test]
    fn how_times_are_spread() {
        assert_eq!(Spread::of(vec![]), None);
        let spread = Spread::of(vec![5 * MS, MS, 2 * MS, 3 * MS]).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max), (2.0, 5.0, 5.0));
        let spread = Spread::of((1..=200).map(|number| number * MS).collect()).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max), (100.0, 198.0, 200.0));
    }
}
