//! What lanes promise, checked over a log of what happened; each check is shown to catch its fault.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Partition;
use crate::lanes::{Filter, Marks};

/// One filter of one partition.
pub(super) type Place = (Partition, Filter);

/// Something that can be seen from outside the lanes.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A message was stored in the stream.
    Stored { place: Place, key: u8, sequence: u64 },
    /// A handler was started, for several messages if they come in batches: of each a number that is unique over all members, and
    /// its sequence.
    Started { batch: Vec<(u64, u64)> },
    /// A handler ended with one of its messages; `finished` if it succeeded while its member still owned the partition.
    Ended { run: u64, finished: bool },
    /// Its process died.
    Vanished { run: u64 },
    /// A dead letter was stored while its member still owned the partition.
    Buried { sequence: u64 },
    /// A message was deleted from the stream: it need not be handled, but may be.
    Purged { sequence: u64 },
    /// The server was told that a message is done.
    Acked { sequence: u64 },
    /// What the owner would write into the progress record.
    Progress { place: Place, marks: Marks },
    /// Another tenure begins from a record; graceful: one that the owner wrote after it was drained.
    Takeover {
        place: Place,
        record: Marks,
        graceful: bool,
    },
    /// What is held and asked for in one partition or member, and its bound.
    Room { used: usize, bound: usize },
    /// Everything came to rest.
    End,
}

#[derive(Debug, Clone)]
struct Message {
    place: Place,
    key: u8,
    /// Handled to the end at least once.
    finished: bool,
    /// Finished, and whoever owns the partition must know it.
    settled: bool,
    /// Deleted from the stream.
    purged: bool,
}

impl Message {
    /// Whether nobody may miss it any more.
    fn done(&self) -> bool {
        self.finished || self.purged
    }
}

/// Reads the log and keeps the faults.
#[derive(Debug, Default)]
pub(super) struct Check {
    messages: BTreeMap<u64, Message>,
    running: BTreeMap<u64, u64>,
    pub(super) faults: Vec<String>,
    pub(super) repeats: usize,
}

impl Check {
    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Stored { place, key, sequence } => {
                let message = Message {
                    place,
                    key,
                    finished: false,
                    settled: false,
                    purged: false,
                };
                self.messages.insert(sequence, message);
            }
            Event::Started { batch } => {
                // Those of a batch run together, each before the next.
                for (index, &(_, sequence)) in batch.iter().enumerate() {
                    self.started(sequence, &batch[..index]);
                }
                self.running.extend(batch);
            }
            Event::Ended { run, finished } => {
                let sequence = self.running.remove(&run);
                if let Some(sequence) = sequence.filter(|_| finished) {
                    self.finish(sequence);
                }
            }
            Event::Vanished { run } => {
                self.running.remove(&run);
            }
            Event::Buried { sequence } => self.finish(sequence),
            Event::Purged { sequence } => {
                if let Some(message) = self.messages.get_mut(&sequence) {
                    message.purged = true;
                }
            }
            Event::Acked { sequence } => {
                if !self.messages[&sequence].done() {
                    self.fault(format!("{sequence} was acked and is not finished"));
                }
            }
            Event::Progress { place, marks } => self.progress(&place, &marks),
            Event::Takeover {
                place,
                record,
                graceful,
            } => self.takeover(&place, &record, graceful),
            Event::Room { used, bound } => {
                if used > bound {
                    self.fault(format!("{used} held and asked for, {bound} allowed"));
                }
            }
            Event::End => {
                let lost: Vec<_> = self
                    .messages
                    .iter()
                    .filter(|(_, m)| !m.done())
                    .map(|(&s, _)| s)
                    .collect();
                if !lost.is_empty() {
                    self.fault(format!("{lost:?} were never finished"));
                }
            }
        }
    }

    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    fn finish(&mut self, sequence: u64) {
        if let Some(message) = self.messages.get_mut(&sequence) {
            message.finished = true;
            message.settled = true;
        }
    }

    /// A message was started together with those before it in its batch.
    fn started(&mut self, sequence: u64, together: &[(u64, u64)]) {
        let Message {
            place,
            key,
            settled,
            finished,
            ..
        } = self.messages[&sequence].clone();
        let same_key = |other: &Message| other.place == place && other.key == key;
        if let Some(other) = self.running.values().find(|&other| same_key(&self.messages[other])) {
            self.fault(format!("{sequence} started while {other} of its key runs"));
        }
        let before = self.messages.range(..sequence).find(|&(other, message)| {
            same_key(message) && !message.done() && !together.iter().any(|(_, before)| before == other)
        });
        if let Some((before, _)) = before {
            self.fault(format!("{sequence} started before {before} of its key"));
        }
        if settled {
            self.fault(format!("{sequence} ran again though it is known to be finished"));
        }
        if together.last().is_some_and(|&(_, last)| last >= sequence) {
            self.fault(format!("{sequence} comes after a later one in its batch"));
        }
        self.repeats += usize::from(finished);
    }

    fn progress(&mut self, place: &Place, marks: &Marks) {
        let wrong = self.messages.iter().find(|&(&sequence, message)| {
            // Time 0 is never too late: only the sequence decides here.
            message.place == *place && !message.done() && marks.is_finished(sequence, 0)
        });
        if let Some((sequence, _)) = wrong {
            self.fault(format!("{marks:?} are ahead of {sequence}"));
        }
    }

    fn takeover(&mut self, place: &Place, record: &Marks, graceful: bool) {
        let of_place = self.messages.iter_mut().filter(|(_, message)| message.place == *place);
        let mut forgotten = BTreeSet::new();
        for (&sequence, message) in of_place {
            let known = record.is_finished(sequence, 0);
            if graceful && message.settled && !known {
                forgotten.insert(sequence);
            }
            message.settled = message.finished && known;
        }
        if !forgotten.is_empty() {
            self.fault(format!(
                "{forgotten:?} were finished and are not in the marks of the drain"
            ));
        }
    }
}

fn place() -> Place {
    (Partition(1), Filter::from("a"))
}

fn stored(key: u8, sequence: u64) -> Event {
    Event::Stored {
        place: place(),
        key,
        sequence,
    }
}

fn started(run: u64, sequence: u64) -> Event {
    Event::Started {
        batch: vec![(run, sequence)],
    }
}

fn finished(run: u64) -> Event {
    Event::Ended { run, finished: true }
}

fn marks_at(sequence: u64) -> Marks {
    Marks::at(crate::lanes::Mark { sequence, time: 0 })
}

fn faults(log: impl IntoIterator<Item = Event>) -> Vec<String> {
    let mut check = Check::default();
    for event in log {
        check.event(event);
    }
    check.faults
}

#[track_caller]
fn assert_caught(log: impl IntoIterator<Item = Event>, fault: &str) {
    let faults = faults(log);
    assert!(matches!(faults.as_slice(), [one] if one.contains(fault)), "{faults:?}");
}

#[test]
fn a_good_history_has_no_fault() {
    let log = [
        stored(1, 10),
        stored(1, 20),
        started(1, 10),
        Event::Vanished { run: 1 },
        started(2, 10),
        finished(2),
        Event::Acked { sequence: 10 },
        Event::Progress {
            place: place(),
            marks: marks_at(10),
        },
        Event::Takeover {
            place: place(),
            record: marks_at(0),
            graceful: false,
        },
        started(3, 10),
        finished(3),
        started(4, 20),
        Event::Buried { sequence: 20 },
        Event::Room { used: 5, bound: 5 },
        Event::End,
    ];
    assert_eq!(faults(log), [""; 0]);
}

#[test]
fn two_handlers_of_one_key_are_caught() {
    let log = [
        stored(1, 10),
        started(1, 10),
        finished(1),
        stored(1, 20),
        started(2, 20),
        stored(1, 30),
    ];
    assert_eq!(faults(log.clone()), [""; 0]);
    let log = [stored(1, 10), started(1, 10), started(2, 10)];
    assert_caught(log, "while 10 of its key runs");
}

#[test]
fn a_wrong_order_is_caught() {
    assert_caught([stored(1, 10), stored(1, 20), started(1, 20)], "20 started before 10");
}

#[test]
fn a_wrong_order_in_a_batch_is_caught() {
    let stored = [stored(1, 10), stored(1, 20), stored(2, 30)];
    let with = |batch: &[(u64, u64)]| {
        let batch = batch.to_vec();
        faults(stored.clone().into_iter().chain([Event::Started { batch }]))
    };
    assert_eq!(with(&[(1, 10), (2, 20), (3, 30)]), [""; 0]);
    assert_eq!(with(&[(1, 20)]), ["20 started before 10 of its key"]);
    assert_eq!(with(&[(1, 30), (2, 10)]), ["10 comes after a later one in its batch"]);
}

#[test]
fn an_ack_of_something_unfinished_is_caught() {
    let late = [
        stored(1, 10),
        started(1, 10),
        Event::Ended {
            run: 1,
            finished: false,
        },
        Event::Acked { sequence: 10 },
    ];
    assert_caught(late, "10 was acked and is not finished");
}

#[test]
fn a_floor_ahead_of_work_is_caught() {
    let log = [
        stored(1, 10),
        Event::Progress {
            place: place(),
            marks: marks_at(10),
        },
    ];
    assert_caught(log, "ahead of 10");
}

#[test]
fn a_repeat_after_a_graceful_takeover_is_caught() {
    let done = [stored(1, 10), started(1, 10), finished(1)];
    let takeover = |sequence| Event::Takeover {
        place: place(),
        record: marks_at(sequence),
        graceful: true,
    };
    assert_caught(
        done.clone().into_iter().chain([takeover(10), started(2, 10)]),
        "10 ran again",
    );
    assert_caught(
        done.clone().into_iter().chain([takeover(0)]),
        "not in the marks of the drain",
    );
    assert_caught(done.into_iter().chain([started(2, 10)]), "10 ran again");
}

#[test]
fn a_lost_message_is_caught() {
    assert_caught(
        [stored(1, 10), started(1, 10), Event::Vanished { run: 1 }, Event::End],
        "[10] were never finished",
    );
}

#[test]
fn too_much_held_is_caught() {
    assert_caught([Event::Room { used: 6, bound: 5 }], "6 held and asked for, 5 allowed");
}
