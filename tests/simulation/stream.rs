//! The simulated JetStream stream: retention, consumers, acks, purges. Compared with the real one in `conformance`.

use std::collections::BTreeMap;

use jetring::engine::Retention;

use crate::consumer::{Consumer, Info, Pull};

/// A message in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) time: u64,
    /// Its payload: no two messages are the same, whatever their sequences.
    pub(crate) id: u64,
}

/// A delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) sequence: u64,
    pub(crate) consumer_sequence: u64,
    /// How often it was delivered by this consumer.
    pub(crate) count: u64,
    pub(crate) stored: Stored,
}

/// Why a consumer was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotMade {
    /// One of that name has other settings.
    Exists,
    /// On a work-queue stream: another one has the filter.
    Overlap,
}

/// What is purged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Purge {
    pub(crate) subject: Option<String>,
    /// Only what is below this sequence.
    pub(crate) below: Option<u64>,
    /// All but the newest so many.
    pub(crate) keep: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Stream<N> {
    pub(crate) retention: Retention,
    pub(crate) created: u64,
    pub(crate) messages: BTreeMap<u64, Stored>,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) consumers: BTreeMap<N, Consumer>,
    pub(crate) ack_wait: u64,
    pub(crate) max_ack_pending: usize,
    /// What was dropped because everybody had acked it or nobody wanted it, since it was last looked at.
    pub(crate) dropped: Vec<Stored>,
}

/// Whether a filter with a `>` at its end, or none, matches a subject.
pub(crate) fn matches(filter: &str, subject: &str) -> bool {
    match filter.strip_suffix('>') {
        Some(prefix) => subject.starts_with(prefix) && subject.len() > prefix.len(),
        None => filter == subject,
    }
}

/// Whether all that `narrow` matches is matched by `wide`.
fn covers(wide: &str, narrow: &str) -> bool {
    wide == narrow || wide.strip_suffix('>').is_some_and(|prefix| narrow.starts_with(prefix))
}

impl<N: Ord + Clone> Stream<N> {
    pub(crate) fn new(retention: Retention, created: u64, ack_wait: u64, max_ack_pending: usize) -> Self {
        Self {
            retention,
            created,
            messages: BTreeMap::new(),
            first: 1,
            last: 0,
            consumers: BTreeMap::new(),
            ack_wait,
            max_ack_pending,
            dropped: Vec::new(),
        }
    }

    /// Stores a message. An interest stream keeps it only if a consumer is interested in its subject.
    pub(crate) fn publish(&mut self, stored: Stored) -> u64 {
        self.last += 1;
        let interested = |consumer: &Consumer| matches(&consumer.filter, &stored.subject);
        if self.retention != Retention::Interest || self.consumers.values().any(interested) {
            self.messages.insert(self.last, stored);
        } else {
            self.dropped.push(stored);
            self.find_first();
        }
        self.last
    }

    fn find_first(&mut self) {
        let first = self.messages.first_key_value().map(|(&sequence, _)| sequence);
        self.first = first.unwrap_or(self.last + 1);
    }

    /// Makes a consumer, from what is left if there is no start. Whether it is new.
    pub(crate) fn create(&mut self, name: &N, filter: &str, start: Option<u64>) -> Result<bool, NotMade> {
        if let Some(found) = self.consumers.get(name) {
            let same = found.start == start && found.filter == filter;
            return if same { Ok(false) } else { Err(NotMade::Exists) };
        }
        let overlaps = |consumer: &Consumer| covers(&consumer.filter, filter) || covers(filter, &consumer.filter);
        if self.retention == Retention::WorkQueue && self.consumers.values().any(overlaps) {
            return Err(NotMade::Overlap);
        }
        let next = start.unwrap_or(self.first).max(self.first);
        let consumer = Consumer::new(filter, start, next, self.max_ack_pending);
        self.consumers.insert(name.clone(), consumer);
        Ok(true)
    }

    /// Deletes a consumer; gives the pulls that waited for it.
    pub(crate) fn delete(&mut self, name: &N) -> Option<Vec<Pull>> {
        let consumer = self.consumers.remove(name)?;
        if self.retention == Retention::Interest {
            if self.consumers.is_empty() {
                self.purge(&Purge::default());
            } else {
                let from = consumer.ack_floor().max(self.first);
                let unwanted: Vec<u64> = self.messages.range(from..).map(|(&sequence, _)| sequence).collect();
                unwanted.into_iter().for_each(|sequence| self.drop_unwanted(sequence));
            }
        }
        Some(consumer.pulls.into())
    }

    /// Lets go of a message that nobody has to ack any more.
    fn drop_unwanted(&mut self, sequence: u64) {
        let Some(stored) = self.messages.get(&sequence) else {
            return;
        };
        let needs = |consumer: &Consumer| matches(&consumer.filter, &stored.subject) && consumer.needs(sequence);
        if !self.consumers.values().any(needs) {
            self.dropped.extend(self.messages.remove(&sequence));
            self.find_first();
        }
    }

    pub(crate) fn info(&self, name: &N) -> Option<Info> {
        let consumer = self.consumers.get(name)?;
        let ahead = self.messages.range(consumer.next..);
        let ahead = ahead.filter(|(_, stored)| matches(&consumer.filter, &stored.subject));
        Some(consumer.info(ahead.count()))
    }

    /// Delivers what can be delivered now, and to which pull.
    pub(crate) fn serve(&mut self, name: &N, now: u64) -> Vec<(Pull, Delivery)> {
        let mut sent = Vec::new();
        let Some(consumer) = self.consumers.get_mut(name).filter(|consumer| !consumer.stuck) else {
            return sent;
        };
        consumer.expire(now, self.ack_wait);
        while !consumer.pulls.is_empty() {
            let sequence = match consumer.again.pop_front() {
                Some(sequence) if !self.messages.contains_key(&sequence) => {
                    consumer.ack(sequence);
                    continue;
                }
                Some(sequence) => {
                    consumer.count_again(sequence);
                    sequence
                }
                None if consumer.pending.len() >= consumer.max_ack_pending => break,
                None => {
                    let mut ahead = self.messages.range(consumer.next..);
                    let found = ahead.find(|(_, stored)| matches(&consumer.filter, &stored.subject));
                    let Some((&sequence, _)) = found else {
                        consumer.next = consumer.next.max(self.last + 1);
                        break;
                    };
                    consumer.next = sequence + 1;
                    sequence
                }
            };
            let consumer_sequence = consumer.deliver(sequence, now);
            let delivery = Delivery {
                sequence,
                consumer_sequence,
                count: consumer.count(sequence),
                stored: self.messages[&sequence].clone(),
            };
            let pull = &mut consumer.pulls[0];
            pull.left -= 1;
            sent.push((pull.clone(), delivery));
            if pull.left == 0 {
                consumer.pulls.pop_front();
            }
        }
        sent
    }

    /// An ack, or the end of a message that is given up; it counts only if its consumer is still there and awaits it.
    pub(crate) fn ack(&mut self, name: &N, sequence: u64) {
        let acked = self
            .consumers
            .get_mut(name)
            .is_some_and(|consumer| consumer.ack(sequence));
        if acked && self.retention != Retention::Limits {
            self.drop_unwanted(sequence);
        }
    }

    /// Removes messages, and tells the consumers.
    pub(crate) fn purge(&mut self, purge: &Purge) {
        let subject = purge.subject.as_deref();
        let wanted = |stored: &Stored| subject.is_none_or(|subject| matches(subject, &stored.subject));
        let mut gone: Vec<u64> = self
            .messages
            .iter()
            .filter(|(sequence, stored)| wanted(stored) && purge.below.is_none_or(|below| **sequence < below))
            .map(|(&sequence, _)| sequence)
            .collect();
        gone.truncate(gone.len().saturating_sub(purge.keep.unwrap_or(0)));
        let removed: Vec<_> = gone
            .into_iter()
            .filter_map(|sequence| Some((sequence, self.messages.remove(&sequence)?)))
            .collect();
        if subject.is_none() {
            // A stream that is told to begin beyond its end goes on from there.
            self.last = self.last.max(purge.below.unwrap_or(0).saturating_sub(1));
        }
        self.find_first();
        if subject.is_some() {
            // One by one, as far as its consumers are concerned.
            for (sequence, stored) in &removed {
                let concerned = self.consumers.values_mut();
                let concerned = concerned.filter(|consumer| matches(&consumer.filter, &stored.subject));
                concerned.for_each(|consumer| {
                    consumer.ack(*sequence);
                });
            }
        }
        let left = self.messages.iter().find(|(_, stored)| wanted(stored));
        let first = match (subject, left) {
            (None, _) => self.first,
            (Some(_), Some((&sequence, _))) => sequence,
            (Some(_), None) => self.last + 1,
        };
        for consumer in self.consumers.values_mut() {
            if subject.is_none_or(|subject| covers(subject, &consumer.filter)) {
                consumer.purged(first);
            } else if subject.is_some_and(|subject| covers(&consumer.filter, subject)) {
                consumer.purged(self.first);
            }
        }
    }

    /// How many messages of a consumer are not acked.
    pub(crate) fn lag(&self, name: &N) -> usize {
        self.info(name).map_or(0, |info| info.pending + info.ack_pending)
    }
}
