//! Judges a journal against what was published.
//!
//! A message is named by its stream sequence, which its publisher was told in the confirmation.

use std::collections::{BTreeMap, BTreeSet};

use super::journal::{End, Life, Line, Start, What};
use super::process::THREADS;

/// A message whose storing was confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) sequence: u64,
    pub(crate) key: String,
    pub(crate) body: String,
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No handler succeeded.
    Lost(Published),
    /// More than one handler succeeded, which only a crash may cause.
    Repeated { sequence: u64, times: usize },
    /// A handler was given what was never published, or with another key or body.
    Strange(Start),
    /// A message of a key began before an earlier one had succeeded, or after a later one within a tenure.
    OutOfOrder { start: Start, other: u64 },
    /// Two handlers of one key ran at the same time.
    SameKey {
        first: (Life, Start),
        second: (Life, Start),
    },
    /// Two members ran handlers of one partition at the same time.
    TwoOwners {
        first: (Life, Start),
        second: (Life, Start),
    },
    /// A handler began with a lower fencing token than one before it had.
    StaleToken { life: Life, start: Start, highest: u64 },
}

/// The findings, and what to make of them.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) faults: Vec<Fault>,
}

impl Verdict {
    /// Whatever the members went through, nothing went wrong and nothing was repeated.
    #[track_caller]
    pub(crate) fn exactly_once(&self) {
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }

    /// The same, but messages may have been handled again after a crash.
    #[track_caller]
    pub(crate) fn at_least_once(&self) {
        self.except(|fault| matches!(fault, Fault::Repeated { .. }));
    }

    /// The same, but these members were frozen, each as often as it is named: what ran in them then ran on beside their
    /// successors. So did, at most once per thread, a handler that was between the last look at the lease and its first line.
    #[track_caller]
    pub(crate) fn at_least_once_with_overrun(&self, frozen: &[&str]) {
        let runs_on = |pair: [&(Life, Start); 2]| pair.iter().any(|(life, _)| frozen.contains(&life.id.as_str()));
        self.except(|fault| match fault {
            Fault::Repeated { .. } => true,
            Fault::SameKey { first, second } | Fault::TwoOwners { first, second } => runs_on([first, second]),
            Fault::StaleToken { life, .. } => frozen.contains(&life.id.as_str()),
            _ => false,
        });
        for id in frozen {
            let stale = |fault: &&Fault| matches!(fault, Fault::StaleToken { life, .. } if life.id == *id);
            let begun = self.faults.iter().filter(stale).count();
            let times = frozen.iter().filter(|other| *other == id).count();
            assert!(
                begun <= times * THREADS,
                "{id} went on as if it was not late: {:#?}",
                self.faults
            );
        }
    }

    #[track_caller]
    fn except(&self, allowed: impl Fn(&Fault) -> bool) {
        let faults: Vec<&Fault> = self.faults.iter().filter(|fault| !allowed(fault)).collect();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

/// Judges.
pub(crate) fn check(published: &[Published], lines: &[Line]) -> Verdict {
    let mut check = Check {
        published: published.iter().map(|message| (message.sequence, message)).collect(),
        ..Check::default()
    };
    for message in published {
        check.of_key.entry(&message.key).or_default().insert(message.sequence);
    }
    for line in lines {
        match &line.what {
            What::Started(start) => check.started(&line.life, start),
            What::Ended { run, end } => check.ended(&line.life, *run, *end),
            What::Changed(_) => {}
            What::Died => check.running.retain(|(life, _)| *life != line.life),
        }
    }
    check.finish()
}

#[derive(Default)]
struct Check<'a> {
    published: BTreeMap<u64, &'a Published>,
    of_key: BTreeMap<&'a str, BTreeSet<u64>>,
    running: Vec<(Life, Start)>,
    succeeded: BTreeMap<u64, usize>,
    /// The newest message that a tenure has started of a key.
    newest: BTreeMap<(String, u64), u64>,
    tokens: BTreeMap<u16, u64>,
    faults: Vec<Fault>,
}

impl Check<'_> {
    fn started(&mut self, life: &Life, start: &Start) {
        let known = self.published.get(&start.sequence);
        if known.is_none_or(|message| message.key != start.key || message.body != start.body) {
            self.faults.push(Fault::Strange(start.clone()));
        }
        self.check_order(start);
        let highest = self.tokens.entry(start.partition).or_default();
        if start.token < *highest {
            let highest = *highest;
            self.faults.push(Fault::StaleToken {
                life: life.clone(),
                start: start.clone(),
                highest,
            });
        } else {
            *highest = start.token;
        }
        let second = (life.clone(), start.clone());
        for first in &self.running {
            if first.1.key == start.key {
                self.faults.push(Fault::SameKey {
                    first: first.clone(),
                    second: second.clone(),
                });
            } else if first.1.partition == start.partition && (first.0 != *life || first.1.token != start.token) {
                self.faults.push(Fault::TwoOwners {
                    first: first.clone(),
                    second: second.clone(),
                });
            }
        }
        self.running.push(second);
    }

    fn check_order(&mut self, start: &Start) {
        let earlier = self.of_key.get(start.key.as_str()).into_iter().flatten();
        let mut earlier = earlier.take_while(|sequence| **sequence < start.sequence);
        let unfinished = earlier.find(|sequence| !self.succeeded.contains_key(sequence)).copied();
        let newest = self.newest.entry((start.key.clone(), start.token)).or_default();
        let passed = (*newest > start.sequence).then_some(*newest);
        *newest = start.sequence.max(*newest);
        if let Some(other) = unfinished.or(passed) {
            self.faults.push(Fault::OutOfOrder {
                start: start.clone(),
                other,
            });
        }
    }

    fn ended(&mut self, life: &Life, run: u64, end: End) {
        let Some(at) = self
            .running
            .iter()
            .position(|(other, start)| other == life && start.run == run)
        else {
            return;
        };
        let (_, start) = self.running.swap_remove(at);
        if end == End::Done {
            *self.succeeded.entry(start.sequence).or_default() += 1;
        }
    }

    fn finish(mut self) -> Verdict {
        let lost = self
            .published
            .values()
            .filter(|message| !self.succeeded.contains_key(&message.sequence));
        self.faults.extend(lost.map(|message| Fault::Lost((*message).clone())));
        let repeated = self.succeeded.iter().filter(|(_, times)| **times > 1);
        self.faults
            .extend(repeated.map(|(&sequence, &times)| Fault::Repeated { sequence, times }));
        Verdict { faults: self.faults }
    }
}

#[cfg(test)]
mod tests {
    //! The checker itself: each fault, planted, is found, and nothing else is.

    use super::*;

    fn published(messages: &[(u64, &str)]) -> Vec<Published> {
        let message = |&(sequence, key): &(u64, &str)| Published {
            sequence,
            key: key.to_owned(),
            body: format!("body {sequence}"),
        };
        messages.iter().map(message).collect()
    }

    fn life(id: &str) -> Life {
        Life {
            id: id.to_owned(),
            number: 1,
        }
    }

    /// The start of the run that bears the number of its message.
    fn start(id: &str, sequence: u64, key: &str, token: u64) -> Line {
        Line {
            life: life(id),
            what: What::Started(Start {
                run: sequence,
                key: key.to_owned(),
                subject: String::new(),
                sequence,
                partition: 0,
                token,
                attempt: 1,
                body: format!("body {sequence}"),
            }),
        }
    }

    fn end(id: &str, run: u64, end: End) -> Line {
        Line {
            life: life(id),
            what: What::Ended { run, end },
        }
    }

    fn done(id: &str, run: u64) -> Line {
        end(id, run, End::Done)
    }

    fn names(verdict: &Verdict) -> Vec<&'static str> {
        let name = |fault: &Fault| match fault {
            Fault::Lost(_) => "lost",
            Fault::Repeated { .. } => "repeated",
            Fault::Strange(_) => "strange",
            Fault::OutOfOrder { .. } => "out of order",
            Fault::SameKey { .. } => "same key",
            Fault::TwoOwners { .. } => "two owners",
            Fault::StaleToken { .. } => "stale token",
        };
        verdict.faults.iter().map(name).collect()
    }

    #[test]
    fn a_clean_run_is_clean_also_with_retries_and_a_handover() {
        let lines = [
            start("a", 1, "x", 7),
            start("a", 2, "y", 7),
            end("a", 1, End::Failed),
            start("a", 1, "x", 7),
            done("a", 2),
            done("a", 1),
            start("b", 3, "x", 8),
            done("b", 3),
        ];
        check(&published(&[(1, "x"), (2, "y"), (3, "x")]), &lines).exactly_once();
    }

    #[test]
    fn each_planted_fault_is_found() {
        let messages = published(&[(1, "x"), (2, "y"), (3, "x")]);
        let judge = |lines: &[Line]| names(&check(&messages, lines));
        assert_eq!(judge(&[start("a", 1, "x", 7), done("a", 1)]), ["lost", "lost"]);
        let rest = [start("a", 2, "y", 7), done("a", 2), start("a", 3, "x", 7), done("a", 3)];
        let with = |lines: &[Line]| judge(&[lines, &rest].concat());
        assert_eq!(
            with(&[start("a", 1, "x", 7), end("a", 1, End::Failed)]),
            ["out of order", "lost"]
        );
        let once = [start("a", 1, "x", 7), done("a", 1)];
        assert_eq!(with(&[once.clone(), once.clone()].concat()), ["repeated"]);
        assert_eq!(
            with(&[&once[..], &[start("a", 4, "x", 7), done("a", 4)]].concat())[0],
            "strange"
        );
        assert_eq!(
            with(&[&once[..], &[start("b", 2, "x", 7), end("b", 2, End::Failed)]].concat()),
            ["strange"]
        );
        let overlapping = [
            start("a", 1, "x", 7),
            start("b", 1, "x", 7),
            done("a", 1),
            end("b", 1, End::Failed),
        ];
        assert_eq!(with(&overlapping), ["same key"]);
        let two = [
            start("a", 1, "x", 6),
            start("b", 2, "y", 7),
            done("a", 1),
            end("b", 2, End::Failed),
        ];
        assert_eq!(with(&two), ["two owners"]);
        let stale = [start("a", 1, "x", 9), done("a", 1)];
        assert_eq!(with(&stale), ["stale token", "stale token"]);
    }

    #[test]
    fn a_tenure_does_not_go_back() {
        let messages = published(&[(1, "x"), (2, "x")]);
        let forth = [start("a", 1, "x", 7), done("a", 1), start("a", 2, "x", 7), done("a", 2)];
        let back = [start("a", 1, "x", 7), done("a", 1)];
        assert_eq!(
            names(&check(&messages, &[&forth[..], &back].concat())),
            ["out of order", "repeated"]
        );
        let successor = [start("b", 1, "x", 8), done("b", 1)];
        assert_eq!(
            names(&check(&messages, &[&forth[..], &successor].concat())),
            ["repeated"]
        );
    }

    #[test]
    fn what_a_dead_process_ran_does_not_run() {
        let died = Line {
            life: life("a"),
            what: What::Died,
        };
        let messages = published(&[(1, "x")]);
        let lines = [start("a", 1, "x", 7), died, start("b", 1, "x", 8), done("b", 1)];
        check(&messages, &lines).exactly_once();
    }

    #[test]
    fn only_the_frozen_member_may_run_on() {
        let messages = published(&[(1, "x")]);
        let lines = [start("a", 1, "x", 7), start("b", 1, "x", 8), done("b", 1), done("a", 1)];
        let verdict = check(&messages, &lines);
        verdict.at_least_once_with_overrun(&["a"]);
        assert_eq!(names(&verdict), ["same key", "repeated"]);
        let goes_on: Vec<Line> = (0..3)
            .flat_map(|_| [start("a", 1, "x", 7), end("a", 1, End::Failed)])
            .collect();
        let lines = [&[start("b", 1, "x", 8), done("b", 1)][..], &goes_on].concat();
        let judged = std::panic::catch_unwind(|| check(&messages, &lines).at_least_once_with_overrun(&["a"]));
        judged.unwrap_err();
        let judged = std::panic::catch_unwind(|| verdict.at_least_once_with_overrun(&["c"]));
        judged.unwrap_err();
    }
}
