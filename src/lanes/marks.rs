//! What is known to be finished, as plain data: the part of the progress record that belongs to one filter.
//!
//! The live counterpart, which also knows what is unfinished, is in `floor`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::Incarnation;

/// How many deaths are kept of one message.
pub const MOST_DEATHS: usize = 16;

/// A stream sequence and the time of the newest message finished at or below it.
///
/// The time tells an old message from one that a younger stream stored under the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Stream sequence; 0 is before the first message.
    pub sequence: u64,
    /// Store time of the newest message finished at or below it, nanoseconds since the Unix epoch.
    pub time: u64,
}

impl Mark {
    /// Moves it to a position that is known from elsewhere to be finished. A lower one changes nothing.
    pub fn raise(&mut self, to: Self) {
        if to.sequence > self.sequence {
            self.sequence = to.sequence;
            self.time = self.time.max(to.time);
        }
    }
}

/// Sequences between which everything of the filter is finished, above the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The lowest finished sequence.
    pub low: u64,
    /// The highest finished sequence, `low` or above.
    pub high: u64,
    /// Store time of the newest message finished in the range, nanoseconds since the Unix epoch.
    pub time: u64,
}

/// A process that died while it ran a message, or at least had started it when it last said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The life of the member that ended with its process.
    pub incarnation: Incarnation,
    /// Whether the member ran this message and nothing else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// How far one filter is: all that a taker needs to repeat nothing and to skip nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Marks {
    /// Everything of the filter up to here is finished.
    pub floor: Mark,
    /// What is finished above the floor: ascending and disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<Range>,
    /// Failed attempts of unfinished messages, by sequence, so that a taker goes on counting.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u64, u32>,
    /// Sequences whose handler was running when the marks were taken. After a crash they are what can have caused it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub started: BTreeSet<u64>,
    /// Whether the one message in `started` ran while nothing else did in its member.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// The processes that unfinished messages took with them, by sequence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deaths: BTreeMap<u64, Vec<Death>>,
}

impl Marks {
    /// Marks with a floor and nothing else.
    pub fn at(floor: Mark) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// Whether the message stored under `sequence` at `time` is finished. A later time than the one kept means that a younger
    /// stream stored another message there.
    pub fn is_finished(&self, sequence: u64, time: u64) -> bool {
        if sequence <= self.floor.sequence {
            return time <= self.floor.time;
        }
        self.ranges
            .iter()
            .any(|range| range.low <= sequence && sequence <= range.high && time <= range.time)
    }

    /// Lifts the floor to a position that is known from elsewhere to be finished, for example the ack floor of an older consumer.
    /// A lower position changes nothing.
    pub fn raise(&mut self, to: Mark) {
        self.floor.raise(to);
        self.normalize();
    }

    /// The highest sequence that is known to be finished.
    pub fn highest(&self) -> u64 {
        self.ranges.last().map_or(self.floor.sequence, |range| range.high)
    }

    /// Forgets everything above `last`, for a stream that has become younger than the marks.
    pub fn truncate(&mut self, last: u64) {
        self.floor.sequence = self.floor.sequence.min(last);
        self.ranges.retain(|range| range.low <= last);
        for range in &mut self.ranges {
            range.high = range.high.min(last);
        }
        self.attempts.retain(|&sequence, _| sequence <= last);
        self.started.retain(|&sequence| sequence <= last);
        self.deaths.retain(|&sequence, _| sequence <= last);
    }

    /// The member that wrote these marks has died in this incarnation, and its process with it: whatever it had started can have
    /// caused that. Counted once, however often it is said.
    pub fn blame(&mut self, incarnation: &Incarnation) {
        let alone = self.alone && self.started.len() == 1;
        for &sequence in &self.started {
            let death = Death {
                incarnation: incarnation.clone(),
                alone,
            };
            add_death(self.deaths.entry(sequence).or_default(), death);
        }
        self.forget_started();
    }

    /// Whoever had started something runs it no more.
    pub fn forget_started(&mut self) {
        self.started.clear();
        self.alone = false;
    }

    /// Takes back what was counted against messages when a life ended whose process has survived: `is_survivor` knows which.
    /// Whether there was anything.
    pub fn absolve(&mut self, is_survivor: impl Fn(&Incarnation) -> bool) -> bool {
        absolve(&mut self.deaths, is_survivor)
    }

    /// Adds what another record of the same filter knows to be finished.
    pub fn union(&mut self, other: &Self) {
        self.ranges.extend_from_slice(&other.ranges);
        for (&sequence, &count) in &other.attempts {
            let own = self.attempts.entry(sequence).or_default();
            *own = count.max(*own);
        }
        self.started.extend(&other.started);
        self.alone |= other.alone;
        for (&sequence, deaths) in &other.deaths {
            let own = self.deaths.entry(sequence).or_default();
            deaths.iter().for_each(|death| add_death(own, death.clone()));
        }
        self.raise(other.floor);
    }

    /// Sorts, joins what overlaps, and drops what the floor already says. Sequences that merely stand side by side stay apart:
    /// only a consumer that delivered both knows that nothing lies between.
    pub fn normalize(&mut self) {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.retain(|range| range.low <= range.high);
        ranges.sort_unstable_by_key(|range| range.low);
        for range in ranges {
            self.take_in(range);
        }
        let finished = Self {
            floor: self.floor,
            ranges: self.ranges.clone(),
            ..Self::default()
        };
        // Time 0 is never too late: only the sequence decides here.
        self.attempts.retain(|&sequence, _| !finished.is_finished(sequence, 0));
        self.started.retain(|&sequence| !finished.is_finished(sequence, 0));
        self.deaths.retain(|&sequence, _| !finished.is_finished(sequence, 0));
    }

    /// Adds a range whose `low` is not below that of any range present.
    fn take_in(&mut self, range: Range) {
        if range.low <= self.floor.sequence {
            self.floor.sequence = self.floor.sequence.max(range.high);
            self.floor.time = self.floor.time.max(range.time);
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if range.low <= last.high => {
                last.high = last.high.max(range.high);
                last.time = last.time.max(range.time);
            }
            _ => self.ranges.push(range),
        }
    }
}

/// Adds a death unless it is known. Where there are too many, one goes that says least: the oldest that was not alone.
fn add_death(deaths: &mut Vec<Death>, death: Death) {
    if deaths.iter().any(|known| known.incarnation == death.incarnation) {
        return;
    }
    deaths.push(death);
    if deaths.len() > MOST_DEATHS {
        let place = deaths.iter().position(|death| !death.alone).unwrap_or(0);
        deaths.remove(place);
    }
}

/// Drops the deaths of lives whose process has survived; whether there were any.
pub(super) fn absolve(deaths: &mut BTreeMap<u64, Vec<Death>>, is_survivor: impl Fn(&Incarnation) -> bool) -> bool {
    let mut any = false;
    deaths.retain(|_, of_message| {
        let before = of_message.len();
        of_message.retain(|death| !is_survivor(&death.incarnation));
        any |= of_message.len() < before;
        !of_message.is_empty()
    });
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(low: u64, high: u64, time: u64) -> Range {
        Range { low, high, time }
    }

    fn marks(floor: u64, time: u64, ranges: &[Range]) -> Marks {
        Marks {
            floor: Mark { sequence: floor, time },
            ranges: ranges.to_vec(),
            ..Marks::default()
        }
    }

    #[test]
    fn a_later_time_than_the_one_kept_is_not_finished() {
        let marks = marks(10, 100, &[range(20, 30, 200)]);
        assert!(marks.is_finished(10, 100));
        assert!(!marks.is_finished(10, 101));
        assert!(marks.is_finished(25, 200));
        assert!(!marks.is_finished(25, 201));
        assert!(!marks.is_finished(15, 0));
    }

    #[test]
    fn raising_the_floor_into_a_range_takes_the_whole_range_in() {
        let mut marks = marks(10, 100, &[range(20, 30, 200), range(40, 41, 210)]);
        marks.attempts.extend([(15, 1), (35, 2)]);
        marks.raise(Mark { sequence: 22, time: 0 });
        assert_eq!(
            marks.floor,
            Mark {
                sequence: 30,
                time: 200
            }
        );
        assert_eq!(marks.ranges, [range(40, 41, 210)]);
        assert_eq!(marks.attempts, BTreeMap::from([(35, 2)]));
    }

    #[test]
    fn a_union_joins_what_overlaps_and_keeps_the_rest_apart() {
        let mut one = marks(10, 100, &[range(20, 30, 200)]);
        one.attempts.insert(32, 1);
        let mut other = marks(12, 90, &[range(25, 35, 190), range(36, 36, 250)]);
        other.attempts.extend([(36, 1), (50, 3)]);
        one.union(&other);
        assert_eq!(
            one.floor,
            Mark {
                sequence: 12,
                time: 100
            }
        );
        assert_eq!(one.ranges, [range(20, 35, 200), range(36, 36, 250)]);
        assert_eq!(one.attempts, BTreeMap::from([(50, 3)]));
    }

    #[test]
    fn truncating_forgets_what_lies_above() {
        let mut marks = marks(10, 100, &[range(20, 30, 200), range(40, 41, 210)]);
        marks.attempts.extend([(15, 1), (35, 2)]);
        marks.truncate(25);
        assert_eq!(marks.ranges, [range(20, 25, 200)]);
        assert_eq!(marks.attempts, BTreeMap::from([(15, 1)]));
        marks.truncate(5);
        assert_eq!(marks, super::Marks::at(Mark { sequence: 5, time: 100 }));
    }

    fn death(incarnation: &str, alone: bool) -> Death {
        Death {
            incarnation: Incarnation(incarnation.to_owned()),
            alone,
        }
    }

    #[test]
    fn a_death_is_counted_once_for_whatever_was_started() {
        let mut marks = marks(10, 100, &[]);
        marks.started.extend([11, 15]);
        marks.alone = true;
        let started = marks.clone();
        marks.blame(&Incarnation("x-1".into()));
        assert_eq!(
            marks.deaths,
            BTreeMap::from([11, 15].map(|s| (s, vec![death("x-1", false)])))
        );
        assert!(marks.started.is_empty() && !marks.alone);
        marks.started.clone_from(&started.started);
        marks.blame(&Incarnation("x-1".into()));
        assert_eq!(marks.deaths[&11].len(), 1);
        marks.started.insert(11);
        marks.alone = true;
        marks.blame(&Incarnation("y-1".into()));
        assert_eq!(marks.deaths[&11], [death("x-1", false), death("y-1", true)]);
        assert!(marks.absolve(|incarnation| incarnation.0 == "x-1"));
        assert!(!marks.absolve(|incarnation| incarnation.0 == "x-1"));
        assert_eq!(marks.deaths, BTreeMap::from([(11, vec![death("y-1", true)])]));
    }

    #[test]
    fn deaths_are_bounded_and_those_alone_stay_longest() {
        let mut marks = marks(10, 100, &[]);
        for life in 0..40 {
            marks.started.insert(11);
            marks.alone = life < 3;
            marks.blame(&Incarnation(format!("p{life}-1")));
        }
        let deaths = &marks.deaths[&11];
        assert_eq!(deaths.len(), MOST_DEATHS);
        assert_eq!(deaths.iter().filter(|death| death.alone).count(), 3);
    }

    #[test]
    fn deaths_of_what_is_finished_or_beyond_the_stream_are_forgotten() {
        let mut marks = marks(10, 100, &[range(20, 30, 200)]);
        marks.started.extend([11, 15, 40]);
        marks.blame(&Incarnation("x-1".into()));
        marks.raise(Mark { sequence: 12, time: 0 });
        assert_eq!(marks.deaths.keys().copied().collect::<Vec<_>>(), [15, 40]);
        marks.truncate(35);
        assert_eq!(marks.deaths.keys().copied().collect::<Vec<_>>(), [15]);
        let mut other = marks.clone();
        other.started.insert(15);
        other.blame(&Incarnation("y-1".into()));
        marks.union(&other);
        assert_eq!(marks.deaths[&15], [death("x-1", false), death("y-1", false)]);
    }

    #[test]
    fn marks_survive_their_json_form() {
        let mut marks = marks(10, 100, &[range(20, 30, 200)]);
        marks.attempts.insert(15, 2);
        marks.started.insert(15);
        marks.alone = true;
        marks.deaths.insert(15, vec![death("x-1", true), death("y-1", false)]);
        let json = serde_json::to_string(&marks).unwrap();
        assert_eq!(serde_json::from_str::<Marks>(&json).unwrap(), marks);
        assert_eq!(
            serde_json::from_str::<Marks>(r#"{"floor":{"sequence":1,"time":2}}"#).unwrap(),
            Marks::at(Mark { sequence: 1, time: 2 })
        );
    }
}
