//! What must never happen, looked at with every step. What must be true at rest is in `rest`.

use std::collections::{BTreeMap, BTreeSet};

use jetring::ids::{Epoch, FencingToken, Partition};
use jetring::lanes::RunId;
use jetring::names::ConsumerName;
use jetring::partitioning::Partitions;
use jetring::records::{AssignmentRecord, ProgressRecord};
use jetring::ring::{LiveMember, least_moves, moves};

use crate::member::Of;

/// A message that a handler has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InHand {
    pub(crate) key: u64,
    pub(crate) sequence: u64,
    pub(crate) id: u64,
}

/// A handler that runs.
#[derive(Debug, Clone)]
struct Running {
    partition: Partition,
    messages: Vec<InHand>,
    /// The late one of a process that was frozen past its lease: the named exception.
    excused: bool,
}

/// Watches over everything.
#[derive(Debug, Default)]
pub(crate) struct Check {
    pub(crate) violation: Option<String>,
    running: BTreeMap<(u64, RunId), Running>,
    /// What was published and not yet handled: by filter its sequence and time, by key its sequence.
    unfinished: BTreeMap<String, BTreeMap<u64, u64>>,
    of_key: BTreeMap<u64, BTreeSet<u64>>,
    /// Where an unfinished message is: filter, key, sequence.
    places: BTreeMap<u64, (String, u64, u64)>,
    failures: BTreeMap<u64, u32>,
    tokens: BTreeMap<Partition, (FencingToken, u64)>,
    epochs: BTreeMap<String, Epoch>,
    deleted: BTreeMap<ConsumerName, u64>,
    /// Consumers that were ever pulled from. One that was not can be made again: a step that is repeated.
    used: BTreeSet<ConsumerName>,
    /// Whether the stream was ever younger than what is known of it: then times decide what is finished.
    pub(crate) restored: bool,
    pub(crate) handled: u64,
    pub(crate) repeated: u64,
    pub(crate) dead_letters: u64,
}

impl Check {
    pub(crate) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn published(&mut self, filter: &str, key: u64, sequence: u64, id: u64, time: u64) {
        let of_filter = self.unfinished.entry(filter.to_owned()).or_default();
        of_filter.insert(sequence, time);
        self.of_key.entry(key).or_default().insert(sequence);
        self.places.insert(id, (filter.to_owned(), key, sequence));
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.places.len()
    }

    /// Nothing has to become of a message any more. Whether something had to.
    pub(crate) fn settle(&mut self, id: u64) -> bool {
        let Some((filter, key, sequence)) = self.places.remove(&id) else {
            return false;
        };
        self.unfinished.entry(filter).or_default().remove(&sequence);
        self.of_key.entry(key).or_default().remove(&sequence);
        true
    }

    /// Nothing has to become of any message any more.
    pub(crate) fn settle_all(&mut self) {
        let all: Vec<u64> = self.places.keys().copied().collect();
        for id in all {
            self.settle(id);
        }
    }

    /// A handler starts in a life of a member.
    pub(crate) fn started(&mut self, life: u64, run: RunId, partition: Partition, messages: Vec<InHand>) {
        let elsewhere = |((other, _), running): &(&(u64, RunId), &Running)| {
            *other != life && running.partition == partition && !running.excused
        };
        let first = messages[0].sequence;
        if let Some(((other, _), running)) = self.running.iter().find(elsewhere) {
            let other_sequence = running.messages[0].sequence;
            self.fail(format!(
                "two owners: life {life} starts {first} of partition {partition} while life {other} runs {other_sequence}"
            ));
        }
        if messages.windows(2).any(|pair| pair[0].sequence >= pair[1].sequence) {
            self.fail(format!("a batch out of order: {messages:?}"));
        }
        for message in &messages {
            let same_key = |((other, _), running): &(&(u64, RunId), &Running)| {
                *other == life && running.messages.iter().any(|running| running.key == message.key)
            };
            if self.running.iter().any(|running| same_key(&running)) {
                self.fail(format!("life {life} runs two handlers of key {}", message.key));
            }
            // One that the stream has lost is in no order with what came in its place.
            let mut earlier = self.of_key.get(&message.key).into_iter().flatten();
            let left_behind = |sequence: &&u64| {
                **sequence < message.sequence && !messages.iter().any(|other| other.sequence == **sequence)
            };
            if self.places.contains_key(&message.id)
                && let Some(earlier) = earlier.find(left_behind).copied()
            {
                self.fail(format!(
                    "order: {} of key {} starts before {earlier} was handled",
                    message.sequence, message.key
                ));
            }
        }
        let running = Running {
            partition,
            messages,
            excused: false,
        };
        self.running.insert((life, run), running);
    }

    /// How many messages a handler has.
    pub(crate) fn in_hand(&self, life: u64, run: RunId) -> usize {
        self.running
            .get(&(life, run))
            .map_or(0, |running| running.messages.len())
    }

    /// A handler ends, and has finished so many of its messages. `failed`: the next one failed.
    pub(crate) fn ended(&mut self, life: u64, run: RunId, finished: usize, failed: bool) {
        let Some(running) = self.running.remove(&(life, run)) else {
            return;
        };
        for message in &running.messages[..finished] {
            let first = self.settle(message.id);
            self.handled += u64::from(first);
            self.repeated += u64::from(!first);
        }
        if let Some(next) = running.messages.get(finished).filter(|_| failed) {
            *self.failures.entry(next.id).or_default() += 1;
        }
    }

    /// A message is stored as a dead letter; it may be if it was rejected, or after so many failures.
    pub(crate) fn buried(&mut self, id: u64, rejected: bool, attempts: u32) {
        let failures = self.failures.get(&id).copied().unwrap_or(0);
        if !rejected && (attempts == 0 || failures < attempts) {
            self.fail(format!(
                "message {id} is given up after {failures} of {attempts} failures"
            ));
        }
        self.dead_letters += u64::from(self.settle(id));
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

    /// A filter is pulled from a consumer of this epoch.
    pub(crate) fn opened(&mut self, life: u64, (partition, filter, epoch): &Of) {
        let token = epoch.token;
        if let Some(&(highest, holder)) = self.tokens.get(partition)
            && (token < highest || token == highest && holder != life)
        {
            self.fail(format!("token {token} of partition {partition} is not above {highest}"));
        }
        self.tokens.insert(*partition, (token, life));
        let former = self.epochs.insert(filter.to_string(), *epoch);
        if former.is_some_and(|former| former >= *epoch) {
            self.fail(format!("epoch {epoch} of {filter} is not above the former one"));
        }
    }

    /// A progress record is stored.
    pub(crate) fn saved(&mut self, partition: Partition, record: &ProgressRecord) {
        for (filter, marks) in &record.filters {
            let Some(unfinished) = self.unfinished.get(filter.as_str()) else {
                continue;
            };
            let restored = self.restored;
            let covered = |low: u64, high: u64, time: u64| {
                let within = unfinished.range(low..=high);
                let mut within = within.filter(|(_, stored)| !restored || **stored <= time);
                within.next().map(|(&sequence, _)| sequence)
            };
            let below = covered(0, marks.floor.sequence, marks.floor.time);
            let mut ranges = marks.ranges.iter();
            if let Some(sequence) =
                below.or_else(|| ranges.find_map(|range| covered(range.low, range.high, range.time)))
            {
                self.fail(format!(
                    "the progress of partition {partition} is ahead: {sequence} was not handled: {marks:?}"
                ));
            }
        }
    }

    /// A consumer will deliver nothing below `start`.
    pub(crate) fn positioned(&mut self, filter: &str, start: u64) {
        let unfinished = self.unfinished.get(filter).and_then(|left| left.first_key_value());
        if let Some((&sequence, _)) = unfinished.filter(|(sequence, _)| **sequence < start && !self.restored) {
            self.fail(format!("a consumer of {filter} skips {sequence}: it starts at {start}"));
        }
    }

    /// An ack for this message counts.
    pub(crate) fn acked(&mut self, id: u64) {
        if let Some((filter, _, sequence)) = self.places.get(&id) {
            self.fail(format!("{sequence} of {filter} is acked and was not handled"));
        }
    }

    /// The stream has let go of a message.
    pub(crate) fn dropped(&mut self, id: u64) {
        if let Some((filter, _, sequence)) = self.places.get(&id) {
            self.fail(format!("{sequence} of {filter} is gone and was not handled"));
        }
    }

    /// An assignment replaces another.
    pub(crate) fn planned(&mut self, previous: Option<&AssignmentRecord>, next: &AssignmentRecord) {
        let count = next.owners.len() as u16;
        let owners =
            |record: &AssignmentRecord| -> Vec<_> { (0..count).map(|p| record.owner(Partition(p)).cloned()).collect() };
        let Some(previous) = previous else { return };
        let (before, after) = (owners(previous), owners(next));
        let live = |share: &jetring::records::Share| LiveMember {
            id: share.id.clone(),
            weight: share.weight,
        };
        let members: Vec<LiveMember> = next.members.iter().map(live).collect();
        let moved = moves(before.iter().map(Option::as_ref), after.iter().map(Option::as_ref));
        let least = least_moves(&before, &members, Partitions::new(u64::from(count)).unwrap());
        if moved > least {
            self.fail(format!(
                "a plan moves {moved} partitions where {least} would do: {next:?}"
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
