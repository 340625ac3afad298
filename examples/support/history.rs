//! From the records of a member to what its handlers did.

use std::collections::HashMap;
use std::sync::Arc;

use super::journal::Record;

/// How a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its work was done.
    Finished,
    /// It was cancelled, or its process ended first.
    Unfinished,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Handling {
    /// The number of the member.
    pub(crate) member: usize,
    /// The key of the message.
    pub(crate) key: Arc<str>,
    /// The number of the message among its key's, or its stream sequence: whatever its publisher goes by.
    pub(crate) number: u64,
    /// The partition of the key.
    pub(crate) partition: u16,
    /// The fencing token: which tenure of the partition.
    pub(crate) token: u64,
    /// When it began.
    pub(crate) start: u64,
    /// When it ended.
    pub(crate) end: u64,
    /// How it ended.
    pub(crate) outcome: Outcome,
}

impl Handling {
    /// Whether its work was done.
    pub(crate) fn is_finished(&self) -> bool {
        self.outcome == Outcome::Finished
    }
}

/// A member that was frozen. What it was in the middle of then may end after others have taken over, and nothing can prevent that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frozen {
    /// Its number.
    pub(crate) member: usize,
    /// When it was frozen.
    pub(crate) from: u64,
    /// When it was woken.
    pub(crate) woken: u64,
    /// From when on it is a member like any other: when it fenced itself, or entered the group again. Never: the highest number there
    /// is.
    pub(crate) rejoined: u64,
}

impl Frozen {
    /// Whether a handler belongs to the life that was frozen, and was not over before.
    pub(crate) fn is_late(self, handling: &Handling) -> bool {
        handling.member == self.member && handling.start < self.rejoined && handling.end > self.from
    }

    /// Whether a handler began when the member woke, before it saw how late it was.
    pub(crate) fn has_woken_into(self, handling: &Handling) -> bool {
        self.is_late(handling) && handling.start >= self.from
    }
}

/// What the handlers of one member did. One without an end was ended by `ended_at`, when its process was gone.
pub(crate) fn handlings(member: usize, records: &[Record], ended_at: u64) -> Vec<Handling> {
    let mut keys: HashMap<&str, Arc<str>> = HashMap::new();
    let mut running: HashMap<u64, usize> = HashMap::new();
    let mut found: Vec<Handling> = Vec::new();
    for record in records {
        match record {
            Record::Start(start) => {
                let key = keys.entry(&start.key).or_insert_with(|| start.key.as_str().into());
                running.insert(start.run, found.len());
                found.push(Handling {
                    member,
                    key: key.clone(),
                    number: start.number,
                    partition: start.partition,
                    token: start.token,
                    start: start.at,
                    end: ended_at,
                    outcome: Outcome::Unfinished,
                });
            }
            Record::End(end) => {
                if let Some(index) = running.remove(&end.run) {
                    found[index].end = end.at;
                    if end.finished {
                        found[index].outcome = Outcome::Finished;
                    }
                }
            }
            Record::Member(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::journal::{End, Start};
    use super::*;

    fn start(at: u64, run: u64) -> Record {
        Record::Start(Start {
            at,
            run,
            key: "k".into(),
            number: run,
            sequence: run,
            partition: 3,
            token: 9,
            attempt: 1,
        })
    }

    #[test]
    fn starts_meet_their_ends_and_a_kill_ends_the_rest() {
        let end = |at, run, finished| Record::End(End { at, run, finished });
        let records = [start(1, 1), start(2, 2), end(5, 2, true), end(6, 1, false), start(7, 3)];
        let found: Vec<_> = handlings(4, &records, 100)
            .iter()
            .map(|h| (h.number, h.start, h.end, h.outcome))
            .collect();
        let expected = [
            (1, 1, 6, Outcome::Unfinished),
            (2, 2, 5, Outcome::Finished),
            (3, 7, 100, Outcome::Unfinished),
        ];
        assert_eq!(found, expected);
    }
}
