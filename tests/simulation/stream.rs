//! The simulated JetStream stream: retention, consumers with one filter each, pulls, redelivery, deletion.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jetring::engine::{ConsumerSpec, CreateFault, Position, Retention};
use jetring::ids::Partition;
use jetring::lanes::{Delivered, Filter, Found, Mark};
use jetring::names::ConsumerName;

use crate::ACK_WAIT;

/// How many unacked messages a consumer may have out.
/// When the stream was created: its identity.
pub(crate) const STREAM_CREATED: u64 = 7;

const MAX_ACK_PENDING: usize = 64;

/// A message in the stream.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) partition: Partition,
    pub(crate) key: u64,
    pub(crate) time: u64,
}

/// A pull request that waits at the server.
#[derive(Debug, Clone)]
pub(crate) struct Pull {
    pub(crate) id: u64,
    /// The member and its life that wait for an answer.
    pub(crate) to: (usize, u64),
    pub(crate) left: usize,
}

/// A consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) partition: Partition,
    pub(crate) start: u64,
    next: u64,
    last_delivered: u64,
    count: u64,
    /// Unacked sequences, with when they were last delivered or kept.
    pub(crate) pending: BTreeMap<u64, u64>,
    acked: BTreeSet<u64>,
    acked_at: u64,
    again: VecDeque<u64>,
    pub(crate) pulls: VecDeque<Pull>,
}

/// The stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) retention: Retention,
    pub(crate) messages: BTreeMap<u64, Stored>,
    pub(crate) last: u64,
    pub(crate) consumers: BTreeMap<ConsumerName, Consumer>,
}

pub(crate) fn filter(partition: Partition) -> Filter {
    Filter::new(format!("t.{partition}.>"))
}

impl Consumer {
    /// Everything up to here is acked.
    fn ack_floor(&self) -> u64 {
        let first = self.pending.first_key_value().map(|(&sequence, _)| sequence);
        first.map_or(self.last_delivered, |sequence| sequence - 1)
    }

    fn wants(&self, sequence: u64) -> bool {
        sequence >= self.start && !self.acked.contains(&sequence)
    }
}

impl Stream {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            messages: BTreeMap::new(),
            last: 0,
            consumers: BTreeMap::new(),
        }
    }

    /// Stores a message. An interest stream keeps it only if a consumer wants it.
    pub(crate) fn publish(&mut self, partition: Partition, key: u64, time: u64) -> u64 {
        self.last += 1;
        self.messages.insert(self.last, Stored { partition, key, time });
        if self.retention == Retention::Interest {
            self.drop_unwanted(self.last);
        }
        self.last
    }

    /// What is stored under a sequence.
    pub(crate) fn found(&self, sequence: u64) -> Found<u64> {
        self.messages
            .get(&sequence)
            .map_or(Found::Gone, |stored| Found::Message {
                time: stored.time,
                message: sequence,
            })
    }

    fn drop_unwanted(&mut self, sequence: u64) {
        let Some(stored) = self.messages.get(&sequence) else {
            return;
        };
        let of_partition = |consumer: &&Consumer| consumer.partition == stored.partition;
        if !self
            .consumers
            .values()
            .filter(of_partition)
            .any(|consumer| consumer.wants(sequence))
        {
            self.messages.remove(&sequence);
        }
    }

    pub(crate) fn create(&mut self, spec: &ConsumerSpec) -> Result<bool, CreateFault> {
        let start = if self.retention == Retention::WorkQueue {
            0
        } else {
            spec.start.max(1)
        };
        let name = &spec.name;
        if let Some(found) = self.consumers.get(name) {
            return if found.start == start {
                Ok(false)
            } else {
                Err(CreateFault::Exists)
            };
        }
        let overlaps = |consumer: &Consumer| consumer.partition == name.partition;
        if self.retention == Retention::WorkQueue && self.consumers.values().any(overlaps) {
            return Err(CreateFault::Overlap("filtered consumer not unique".to_owned()));
        }
        let consumer = Consumer {
            partition: name.partition,
            start,
            next: start.max(1),
            last_delivered: start.saturating_sub(1),
            count: 0,
            pending: BTreeMap::new(),
            acked: BTreeSet::new(),
            acked_at: 0,
            again: VecDeque::new(),
            pulls: VecDeque::new(),
        };
        self.consumers.insert(name.clone(), consumer);
        Ok(true)
    }

    /// Deletes a consumer; gives the pulls that waited for it.
    pub(crate) fn delete(&mut self, name: &ConsumerName) -> Option<Vec<Pull>> {
        let consumer = self.consumers.remove(name)?;
        if self.retention == Retention::Interest {
            let all: Vec<u64> = self.messages.keys().copied().collect();
            for sequence in all {
                self.drop_unwanted(sequence);
            }
        }
        Some(consumer.pulls.into())
    }

    /// The lowest sequence at or below the mark that has, or will have, a message newer than the mark.
    pub(crate) fn replaced(&self, of: &Filter, mark: Mark) -> Option<u64> {
        let newer = |(_, stored): &(&u64, &Stored)| filter(stored.partition) == *of && stored.time > mark.time;
        let stored = self
            .messages
            .range(..=mark.sequence)
            .find(newer)
            .map(|(&sequence, _)| sequence);
        let end = (self.last < mark.sequence).then_some(self.last + 1);
        stored.into_iter().chain(end).min()
    }

    pub(crate) fn position(&self, name: &ConsumerName) -> Option<Position> {
        self.consumers.get(name).map(|consumer| Position {
            ack_floor: consumer.ack_floor(),
            acked_at: consumer.acked_at,
            start: consumer.start,
            delivered: consumer.last_delivered,
        })
    }

    /// Delivers what can be delivered now.
    pub(crate) fn serve(&mut self, name: &ConsumerName, now: u64) -> Vec<((usize, u64), Delivered<u64>)> {
        let mut sent = Vec::new();
        let Some(consumer) = self.consumers.get_mut(name) else {
            return sent;
        };
        let overdue = consumer.pending.iter().filter(|(_, since)| now >= **since + ACK_WAIT);
        for sequence in overdue.map(|(&sequence, _)| sequence).collect::<Vec<_>>() {
            if !consumer.again.contains(&sequence) {
                consumer.again.push_back(sequence);
            }
        }
        while let Some(pull) = consumer.pulls.front_mut() {
            let again = consumer.again.pop_front();
            let sequence = match again {
                Some(sequence) if !consumer.pending.contains_key(&sequence) => continue,
                Some(sequence) => sequence,
                None if consumer.pending.len() >= MAX_ACK_PENDING => break,
                None => {
                    let mut ahead = self.messages.range(consumer.next..);
                    let Some((&sequence, _)) = ahead.find(|(_, stored)| stored.partition == consumer.partition) else {
                        break;
                    };
                    consumer.next = sequence + 1;
                    consumer.last_delivered = sequence;
                    sequence
                }
            };
            let Some(stored) = self.messages.get(&sequence) else {
                consumer.pending.remove(&sequence);
                continue;
            };
            consumer.count += 1;
            consumer.pending.insert(sequence, now);
            let delivered = Delivered {
                stream_sequence: sequence,
                read_sequence: sequence,
                consumer_sequence: consumer.count,
                time: stored.time,
                key: stored.key.to_string().into(),
                reply: format!("{name} {sequence}").into(),
                bytes: 1,
                message: sequence,
            };
            sent.push((pull.to, delivered));
            pull.left -= 1;
            if pull.left == 0 {
                consumer.pulls.pop_front();
            }
        }
        sent
    }

    /// When the next unacked message of a consumer is offered again.
    pub(crate) fn redelivers_at(&self, name: &ConsumerName) -> Option<u64> {
        let pending = &self.consumers.get(name)?.pending;
        pending.values().min().map(|since| since + ACK_WAIT)
    }

    /// An ack; it counts only if its consumer is still there.
    pub(crate) fn ack(&mut self, name: &ConsumerName, sequence: u64, now: u64) {
        let Some(consumer) = self.consumers.get_mut(name) else {
            return;
        };
        if consumer.pending.remove(&sequence).is_none() {
            return;
        }
        consumer.acked.insert(sequence);
        consumer.acked_at = now;
        match self.retention {
            Retention::Limits => {}
            Retention::WorkQueue => {
                self.messages.remove(&sequence);
            }
            Retention::Interest => self.drop_unwanted(sequence),
        }
    }

    /// An in-progress ack.
    pub(crate) fn keep(&mut self, name: &ConsumerName, sequence: u64, now: u64) {
        let pending = self
            .consumers
            .get_mut(name)
            .and_then(|consumer| consumer.pending.get_mut(&sequence));
        if let Some(since) = pending {
            *since = now;
        }
    }

    /// How many messages of a consumer are not acked.
    pub(crate) fn lag(&self, name: &ConsumerName) -> usize {
        let Some(consumer) = self.consumers.get(name) else {
            return 0;
        };
        let of_partition = |stored: &&Stored| stored.partition == consumer.partition;
        let ahead = self
            .messages
            .range(consumer.next..)
            .map(|(_, stored)| stored)
            .filter(of_partition)
            .count();
        ahead + consumer.pending.len()
    }
}
