//! The floor tracker against a list of what is really finished.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::lanes::floor::{Floor, Seen};
use crate::lanes::{Mark, Marks, Range};

fn marks(floor: &Floor) -> Marks {
    Marks {
        floor: floor.mark(),
        ranges: floor.ranges().collect(),
        ..Marks::default()
    }
}

fn range(low: u64, high: u64) -> Range {
    Range {
        low,
        high,
        time: high * 10,
    }
}

fn opened_at(sequence: u64) -> Floor {
    Floor::open(&Marks::at(Mark {
        sequence,
        time: sequence * 10,
    }))
}

fn deliver_all(floor: &mut Floor, sequences: &[u64]) {
    for &sequence in sequences {
        assert_eq!(floor.deliver(sequence, sequence * 10), Seen::New);
    }
}

#[test]
fn advances_over_sparse_sequences_when_all_delivered_are_finished() {
    let mut floor = opened_at(0);
    deliver_all(&mut floor, &[32, 64, 96]);
    assert!(floor.finish(64, 640));
    assert_eq!(marks(&floor).ranges, [range(64, 64)]);
    assert_eq!(floor.mark().sequence, 0);
    floor.finish(32, 320);
    assert_eq!(
        floor.mark(),
        Mark {
            sequence: 64,
            time: 640
        }
    );
    assert_eq!(floor.range_count(), 0);
    floor.finish(96, 960);
    assert_eq!(
        floor.mark(),
        Mark {
            sequence: 96,
            time: 960
        }
    );
}

#[test]
fn joins_ranges_only_over_what_is_not_of_the_filter() {
    let mut floor = opened_at(0);
    deliver_all(&mut floor, &[10, 20, 30, 40, 50]);
    floor.finish(20, 200);
    floor.finish(40, 400);
    assert_eq!(marks(&floor).ranges, [range(20, 20), range(40, 40)]);
    floor.finish(30, 300);
    assert_eq!(marks(&floor).ranges, [range(20, 40)]);
}

#[test]
fn finishes_only_what_is_unfinished() {
    let mut floor = opened_at(0);
    deliver_all(&mut floor, &[10]);
    assert!(!floor.finish(11, 110));
    assert!(floor.finish(10, 100));
    assert!(!floor.finish(10, 100));
}

#[test]
fn a_loaded_range_is_passed_only_when_the_consumer_has_reached_it() {
    let mut loaded = Marks::at(Mark { sequence: 5, time: 50 });
    loaded.ranges = vec![range(20, 30), range(40, 45)];
    let mut floor = Floor::open(&loaded);
    deliver_all(&mut floor, &[10]);
    floor.finish(10, 100);
    // 11 to 19 may still hold something.
    assert_eq!(floor.mark().sequence, 10);
    assert_eq!(floor.deliver(20, 200), Seen::Finished);
    assert_eq!(
        floor.mark(),
        Mark {
            sequence: 30,
            time: 300
        }
    );
    // On a work queue the rest is gone already: the next delivery lies behind.
    deliver_all(&mut floor, &[50]);
    assert_eq!(
        floor.mark(),
        Mark {
            sequence: 45,
            time: 450
        }
    );
}

#[test]
fn something_found_between_loaded_ranges_keeps_them_apart() {
    let loaded = Marks {
        ranges: vec![range(20, 30), range(40, 45)],
        ..Marks::default()
    };
    let mut floor = Floor::open(&loaded);
    deliver_all(&mut floor, &[35, 50]);
    assert_eq!(floor.mark().sequence, 30);
    assert_eq!(marks(&floor).ranges, [range(40, 45)]);
    floor.finish(35, 350);
    assert_eq!(floor.mark().sequence, 45);
}

#[test]
fn a_later_time_under_a_finished_sequence_is_a_younger_stream() {
    let mut loaded = Marks::at(Mark {
        sequence: 15,
        time: 150,
    });
    loaded.ranges = vec![range(20, 30), range(40, 45)];
    let mut floor = Floor::open(&loaded);
    assert_eq!(floor.deliver(15, 150), Seen::Finished);
    assert_eq!(floor.deliver(25, 301), Seen::Younger);
    assert_eq!(marks(&floor).ranges, []);
    assert_eq!(
        floor.mark().sequence,
        24,
        "20 to 24 were finished, and the consumer has come past"
    );
    let mut floor = Floor::open(&loaded);
    assert_eq!(floor.deliver(12, 500), Seen::Younger);
    assert_eq!(floor.mark().sequence, 11);
    assert_eq!(floor.range_count(), 0);
}

#[test]
fn truncating_keeps_what_is_unfinished() {
    let mut floor = opened_at(10);
    deliver_all(&mut floor, &[20, 30]);
    floor.finish(30, 300);
    floor.truncate(25);
    assert_eq!(floor.deliver(20, 200), Seen::Unfinished);
    assert_eq!(floor.deliver(30, 300), Seen::New);
}

/// What the filter's messages really are, and which are finished.
#[derive(Default)]
struct Truth {
    finished: BTreeMap<u64, bool>,
}

impl Truth {
    /// Marks may claim nothing that is not so.
    fn check(&self, marks: &Marks) -> Result<(), String> {
        for (&sequence, &finished) in &self.finished {
            if !finished && marks.is_finished(sequence, 0) {
                return Err(format!("{sequence} is not finished, but {marks:?} says so"));
            }
        }
        for pair in marks.ranges.windows(2) {
            if pair[0].high >= pair[1].low {
                return Err(format!("{pair:?} overlap"));
            }
        }
        match marks.ranges.first() {
            Some(range) if range.low <= marks.floor.sequence => Err(format!("{range:?} lies below the floor")),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u8),
    Deliver,
    Again(u8),
    Finish(u8),
    /// Another member takes over from the marks.
    Takeover,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..40u8).prop_map(Step::Publish),
        4 => Just(Step::Deliver),
        1 => any::<u8>().prop_map(Step::Again),
        4 => any::<u8>().prop_map(Step::Finish),
        1 => Just(Step::Takeover),
    ];
    prop::collection::vec(step, 0..200)
}

/// Plays a history; `marks_of` reads the tracker, so that a fault can be planted there.
fn play(steps: &[Step], work_queue: bool, marks_of: impl Fn(&Floor) -> Marks) -> Result<(), String> {
    let mut truth = Truth::default();
    let mut floor = Floor::open(&Marks::default());
    let (mut last, mut position, mut loaded) = (0, 0, 0);
    let mut unfinished = BTreeSet::new();
    let deliver = |floor: &mut Floor, truth: &Truth, unfinished: &mut BTreeSet<u64>, sequence: u64| {
        match floor.deliver(sequence, sequence * 10) {
            Seen::Finished if !truth.finished[&sequence] => return Err(format!("{sequence} taken for finished")),
            Seen::Younger => return Err(format!("{sequence} taken for younger")),
            Seen::New if truth.finished[&sequence] => return Err(format!("{sequence} forgotten")),
            Seen::Finished => {}
            Seen::New | Seen::Unfinished => {
                unfinished.insert(sequence);
            }
        }
        Ok(())
    };
    for step in steps.iter().chain([&Step::Takeover]) {
        match step {
            Step::Publish(skip) => {
                last += u64::from(*skip);
                truth.finished.insert(last, false);
            }
            Step::Deliver => {
                let mut next = truth.finished.range(position + 1..);
                // What is finished is acked, and gone from a work queue.
                if let Some((&sequence, _)) = next.find(|(_, finished)| !work_queue || !**finished) {
                    position = sequence;
                    deliver(&mut floor, &truth, &mut unfinished, sequence)?;
                }
            }
            Step::Again(which) => {
                let delivered: Vec<_> = truth
                    .finished
                    .range(..=position)
                    .map(|(&sequence, _)| sequence)
                    .collect();
                if let Some(&sequence) = delivered.get(usize::from(*which) % delivered.len().max(1)) {
                    deliver(&mut floor, &truth, &mut unfinished, sequence)?;
                }
            }
            Step::Finish(which) => {
                if let Some(&sequence) = unfinished.iter().nth(usize::from(*which) % unfinished.len().max(1)) {
                    unfinished.remove(&sequence);
                    truth.finished.insert(sequence, true);
                    if !floor.finish(sequence, sequence * 10) {
                        return Err(format!("{sequence} was not unfinished"));
                    }
                }
            }
            Step::Takeover => {
                let marks = marks_of(&floor);
                loaded = marks.ranges.len();
                position = if work_queue { 0 } else { marks.floor.sequence };
                floor = Floor::open(&marks);
                unfinished.clear();
            }
        }
        truth.check(&marks_of(&floor))?;
        if floor.range_count() > unfinished.len() + loaded + 1 {
            return Err(format!(
                "{} ranges for {} unfinished",
                floor.range_count(),
                unfinished.len()
            ));
        }
    }
    // Everything is delivered and finished: nothing remains but the floor.
    let all: Vec<_> = truth
        .finished
        .range(position + 1..)
        .map(|(&s, &finished)| (s, finished))
        .collect();
    for (sequence, finished) in all {
        if !(work_queue && finished) {
            deliver(&mut floor, &truth, &mut unfinished, sequence)?;
        }
    }
    for sequence in unfinished {
        floor.finish(sequence, sequence * 10);
    }
    let highest = floor
        .mark()
        .sequence
        .max(marks_of(&floor).ranges.last().map_or(0, |range| range.high));
    match floor.mark().sequence == last || (work_queue && highest == last) {
        true => Ok(()),
        false => Err(format!(
            "all is finished up to {last}, but the floor stays at {:?}",
            marks_of(&floor)
        )),
    }
}

proptest! {
    #[test]
    fn marks_never_claim_more_than_is_finished(steps in steps(), work_queue: bool) {
        prop_assert_eq!(play(&steps, work_queue, marks), Ok(()));
    }
}

/// A history in which 10 stays unfinished while 20 and 40 around 30 are finished.
fn history() -> Vec<Step> {
    let mut steps = vec![Step::Publish(10); 5];
    steps.extend(vec![Step::Deliver; 5]);
    steps.extend([Step::Finish(1), Step::Finish(2)]);
    steps
}

#[test]
fn the_check_catches_a_floor_that_follows_the_highest_finished() {
    let broken = |floor: &Floor| {
        let mut marks = marks(floor);
        if let Some(last) = marks.ranges.pop() {
            marks.floor.sequence = last.high;
            marks.ranges.clear();
        }
        marks
    };
    assert_eq!(play(&history(), false, marks), Ok(()));
    assert!(play(&history(), false, broken).unwrap_err().contains("is not finished"));
}

#[test]
fn the_check_catches_ranges_joined_over_an_unfinished_message() {
    let broken = |floor: &Floor| {
        let mut marks = marks(floor);
        if let (Some(first), Some(last)) = (marks.ranges.first().copied(), marks.ranges.last().copied()) {
            marks.ranges = vec![range(first.low, last.high)];
        }
        marks
    };
    assert!(play(&history(), false, broken).unwrap_err().contains("is not finished"));
}

#[test]
fn the_check_catches_marks_that_forget() {
    let forgotten = play(&history(), false, |_| Marks::default());
    assert!(forgotten.unwrap_err().contains("forgotten"));
}
