//! Which messages of one filter are finished: a floor, and ranges above it.
//!
//! The one rule: the floor, and a join of two ranges, may only pass over sequences of which it is *known* that nothing of the filter
//! is unfinished there. That is known for `(floor when opened, frontier]`: the consumers of a tenure deliver, in consecutive consumer
//! sequence, everything of the filter from the floor on, so what lies there and was not delivered is not of this filter (a partition
//! sees every P-th sequence), or was finished before. A re-opened consumer starts at or below the frontier of the one before, hence
//! the stretches overlap and the frontier never falls. Above the frontier, ranges that were loaded stay as they are.
//!
//! Every operation is O(log n), and finished messages cost nothing: there is at most one range more than there are unfinished
//! messages, beside loaded ones not yet reached.

use std::collections::{BTreeMap, BTreeSet};

use super::marks::{Mark, Marks, Range};

/// What a delivery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Finished before.
    Finished,
    /// Delivered before, and not finished.
    Unfinished,
    /// Never delivered before.
    New,
    /// As `New`, and it proves that the stream is younger than the marks: what was kept from this sequence on is forgotten.
    Younger,
}

#[derive(Debug, Clone, Copy)]
struct Finished {
    high: u64,
    time: u64,
}

/// The floor, the ranges and the unfinished sequences of one filter.
#[derive(Debug)]
pub(super) struct Floor {
    floor: Mark,
    ranges: BTreeMap<u64, Finished>,
    unfinished: BTreeSet<u64>,
    /// The highest sequence that was delivered; up to here everything of the filter is known.
    frontier: u64,
}

impl Floor {
    /// Starts from the marks of a progress record; the floor is the position the consumer is opened at.
    pub(super) fn open(marks: &Marks) -> Self {
        Self {
            floor: marks.floor,
            ranges: marks
                .ranges
                .iter()
                .map(|range| {
                    let Range { low, high, time } = *range;
                    (low, Finished { high, time })
                })
                .collect(),
            unfinished: BTreeSet::new(),
            frontier: marks.floor.sequence,
        }
    }

    /// Everything of the filter up to here is finished.
    pub(super) fn mark(&self) -> Mark {
        self.floor
    }

    /// The highest sequence that was delivered.
    pub(super) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// What is finished above the floor, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().map(|(&low, finished)| Range {
            low,
            high: finished.high,
            time: finished.time,
        })
    }

    /// How many ranges there are.
    pub(super) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// How many messages are unfinished.
    #[cfg(test)]
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Whether no loaded range lies ahead of what was delivered.
    pub(super) fn has_passed_all(&self) -> bool {
        self.ranges
            .last_key_value()
            .is_none_or(|(&low, _)| low <= self.frontier)
    }

    /// Whether the message stored under `sequence` at `time` is finished.
    pub(super) fn is_finished(&self, sequence: u64, time: u64) -> bool {
        self.kept_time(sequence).is_some_and(|kept| time <= kept)
    }

    /// Takes note of a delivery, which must be the next one in consumer sequence.
    pub(super) fn deliver(&mut self, sequence: u64, time: u64) -> Seen {
        let seen = if self.unfinished.contains(&sequence) {
            Seen::Unfinished
        } else {
            match self.kept_time(sequence) {
                Some(kept) if time <= kept => Seen::Finished,
                Some(_) => {
                    self.truncate(sequence.saturating_sub(1));
                    Seen::Younger
                }
                None => Seen::New,
            }
        };
        if matches!(seen, Seen::New | Seen::Younger) {
            self.unfinished.insert(sequence);
        }
        self.pass(sequence);
        seen
    }

    /// An unfinished message is finished. `false`, and no change, for any other sequence.
    pub(super) fn finish(&mut self, sequence: u64, time: u64) -> bool {
        if !self.unfinished.remove(&sequence) {
            return false;
        }
        let mut finished = Finished { high: sequence, time };
        let next = self.ranges.range(sequence..).next().map(|(&low, &next)| (low, next));
        if let Some((low, next)) = next
            && self.nothing_between(sequence, low)
        {
            self.ranges.remove(&low);
            finished = join(finished, next);
        }
        self.ranges.insert(sequence, finished);
        self.join_left(sequence);
        self.absorb();
        true
    }

    /// Drops an unfinished message that no longer exists, because another was stored in its place.
    pub(super) fn forget(&mut self, sequence: u64) {
        self.unfinished.remove(&sequence);
    }

    /// Forgets what is finished above `last`: the stream has become younger. Unfinished messages stay.
    pub(super) fn truncate(&mut self, last: u64) {
        self.floor.sequence = self.floor.sequence.min(last);
        self.frontier = self.frontier.min(last);
        self.ranges.split_off(&last.saturating_add(1));
        if let Some(mut range) = self.ranges.last_entry() {
            let finished = range.get_mut();
            finished.high = finished.high.min(last);
        }
    }

    /// The time kept with the floor or the range that covers `sequence`.
    fn kept_time(&self, sequence: u64) -> Option<u64> {
        if sequence <= self.floor.sequence {
            return Some(self.floor.time);
        }
        let (_, finished) = self.ranges.range(..=sequence).next_back()?;
        (sequence <= finished.high).then_some(finished.time)
    }

    /// Moves the frontier up to `sequence`, and joins the loaded ranges it reaches.
    fn pass(&mut self, sequence: u64) {
        if sequence <= self.frontier {
            return;
        }
        let from = self.frontier.saturating_add(1);
        self.frontier = sequence;
        while let Some(low) = self.next_unjoined(from) {
            self.join_left(low);
        }
        self.absorb();
    }

    /// The first range from `from` up to the frontier that can be joined to the one before it.
    fn next_unjoined(&self, from: u64) -> Option<u64> {
        self.ranges
            .range(from..=self.frontier)
            .map(|(&low, _)| low)
            .find(|&low| self.left_of(low).is_some())
    }

    /// The range before `low`, if nothing unfinished can lie between.
    fn left_of(&self, low: u64) -> Option<(u64, Finished)> {
        let (&left, &finished) = self.ranges.range(..low).next_back()?;
        self.nothing_between(finished.high, low).then_some((left, finished))
    }

    fn join_left(&mut self, low: u64) {
        let Some((left, finished)) = self.left_of(low) else {
            return;
        };
        if let Some(right) = self.ranges.remove(&low) {
            self.ranges.insert(left, join(finished, right));
        }
    }

    /// Lets the floor swallow the ranges that it reaches.
    fn absorb(&mut self) {
        while let Some((&low, &finished)) = self.ranges.first_key_value() {
            if !self.nothing_between(self.floor.sequence, low) {
                return;
            }
            self.ranges.pop_first();
            self.floor = Mark {
                sequence: finished.high,
                time: finished.time.max(self.floor.time),
            };
        }
    }

    /// Whether it is known that nothing unfinished lies strictly between two finished sequences.
    fn nothing_between(&self, left: u64, right: u64) -> bool {
        right <= self.frontier && self.unfinished.range(left..right).next().is_none()
    }
}

fn join(left: Finished, right: Finished) -> Finished {
    Finished {
        high: left.high.max(right.high),
        time: left.time.max(right.time),
    }
}
