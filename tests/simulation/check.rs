//! What must never happen, looked at with every step, and what must be true at rest.

use std::collections::{BTreeMap, BTreeSet};

use jetring::ids::{FencingToken, Partition};
use jetring::lanes::RunId;
use jetring::names::ConsumerName;
use jetring::records::ProgressRecord;

use crate::stream::filter;

/// A handler that runs.
#[derive(Debug, Clone)]
struct Running {
    partition: Partition,
    key: u64,
    sequence: u64,
    /// The late one of a process that was frozen past its lease: the named exception.
    excused: bool,
}

/// Watches over everything.
#[derive(Debug, Default)]
pub(crate) struct Check {
    pub(crate) violation: Option<String>,
    running: BTreeMap<(u64, RunId), Running>,
    /// What was published and not yet handled, by partition and by key.
    unfinished: BTreeMap<Partition, BTreeSet<u64>>,
    of_key: BTreeMap<u64, BTreeSet<u64>>,
    tokens: BTreeMap<Partition, (FencingToken, u64)>,
    deleted: BTreeMap<ConsumerName, u64>,
    /// Consumers that were ever pulled from. One that was not can be made again: a step that is repeated.
    used: BTreeSet<ConsumerName>,
    pub(crate) handled: u64,
    pub(crate) repeated: u64,
}

impl Check {
    pub(crate) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn published(&mut self, partition: Partition, key: u64, sequence: u64) {
        self.unfinished.entry(partition).or_default().insert(sequence);
        self.of_key.entry(key).or_default().insert(sequence);
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.values().map(BTreeSet::len).sum()
    }

    /// A handler starts in a life of a member.
    pub(crate) fn started(&mut self, life: u64, run: RunId, partition: Partition, key: u64, sequence: u64) {
        let elsewhere = |((other, _), running): &(&(u64, RunId), &Running)| {
            *other != life && running.partition == partition && !running.excused
        };
        if let Some(((other, _), running)) = self.running.iter().find(elsewhere) {
            let other_sequence = running.sequence;
            self.fail(format!(
                "two owners: life {life} starts {sequence} of partition {partition} while life {other} runs {other_sequence}"
            ));
        }
        let same_key = |((other, _), running): &(&(u64, RunId), &Running)| *other == life && running.key == key;
        if self.running.iter().any(|running| same_key(&running)) {
            self.fail(format!("life {life} runs two handlers of key {key}"));
        }
        if let Some(earlier) = self
            .of_key
            .get(&key)
            .and_then(|left| left.range(..sequence).next())
            .copied()
        {
            self.fail(format!(
                "order: {sequence} of key {key} starts before {earlier} was handled"
            ));
        }
        let running = Running {
            partition,
            key,
            sequence,
            excused: false,
        };
        self.running.insert((life, run), running);
    }

    /// A handler ends.
    pub(crate) fn ended(&mut self, life: u64, run: RunId, success: bool) {
        let Some(running) = self.running.remove(&(life, run)) else {
            return;
        };
        if success {
            let first = self
                .unfinished
                .entry(running.partition)
                .or_default()
                .remove(&running.sequence);
            self.of_key.entry(running.key).or_default().remove(&running.sequence);
            self.handled += u64::from(first);
            self.repeated += u64::from(!first);
        }
    }

    /// A process is gone, and its handlers with it.
    pub(crate) fn life_ended(&mut self, life: u64) {
        self.running.retain(|(other, _), _| *other != life);
    }

    /// A process was frozen for longer than its lease.
    pub(crate) fn excuse(&mut self, life: u64) {
        for (_, running) in self.running.iter_mut().filter(|((other, _), _)| *other == life) {
            running.excused = true;
        }
    }

    /// A tenure opens.
    pub(crate) fn opened(&mut self, life: u64, partition: Partition, token: FencingToken) {
        if let Some(&(highest, holder)) = self.tokens.get(&partition)
            && (token < highest || token == highest && holder != life)
        {
            self.fail(format!("token {token} of partition {partition} is not above {highest}"));
        }
        self.tokens.insert(partition, (token, life));
    }

    /// A progress record is stored.
    pub(crate) fn saved(&mut self, partition: Partition, record: &ProgressRecord) {
        let Some(marks) = record.filters.get(&filter(partition)) else {
            return;
        };
        let Some(unfinished) = self.unfinished.get(&partition) else {
            return;
        };
        let below = unfinished.range(..=marks.floor.sequence).next();
        let within = marks
            .ranges
            .iter()
            .find_map(|range| unfinished.range(range.low..=range.high).next());
        if let Some(sequence) = below.or(within).copied() {
            self.fail(format!(
                "the progress of partition {partition} is ahead: {sequence} was not handled: {marks:?}"
            ));
        }
    }

    /// An ack reaches the server.
    pub(crate) fn acked(&mut self, sequence: u64) {
        if let Some((partition, _)) = self.unfinished.iter().find(|(_, left)| left.contains(&sequence)) {
            self.fail(format!(
                "{sequence} of partition {partition} is acked and was not handled"
            ));
        }
    }

    /// A pull reaches a consumer.
    pub(crate) fn consumer_used(&mut self, name: &ConsumerName) {
        if !self.used.contains(name) {
            self.used.insert(name.clone());
        }
    }

    pub(crate) fn consumer_deleted(&mut self, name: &ConsumerName, now: u64) {
        self.deleted.entry(name.clone()).or_insert(now);
    }

    /// A consumer is created by a request sent at `sent`. One that was on its way when the consumer was deleted is no reuse.
    pub(crate) fn consumer_created(&mut self, name: &ConsumerName, sent: u64) {
        if self.used.contains(name) && self.deleted.get(name).is_some_and(|&deleted| sent > deleted) {
            self.fail(format!("the consumer {name} is created a second time"));
        }
    }
}
