//! The stream as far as ownership depends on it: a few messages, and consumers that know who made them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use jetring::engine::{ConsumerSpec, CreateFault, Position, Retention};
use jetring::ids::{Epoch, Partition};
use jetring::lanes::Filter;
use jetring::names::ConsumerName;

use crate::process::Life;

/// When the stream was created: its identity.
pub(crate) const STREAM_CREATED: u64 = 7;

/// A tenure's consumer, as the member that made it means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(crate) life: Life,
    pub(crate) epoch: Epoch,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Consumer {
    pub(crate) start: u64,
    /// Who has made it, or has taken it for its own, last.
    pub(crate) user: User,
    delivered: u64,
    acked: BTreeSet<u64>,
}

/// The stream. All of its messages are there from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    retention: Retention,
    pub(crate) partitions: u16,
    pub(crate) last: u64,
    /// The messages that a work queue has forgotten because they were acked.
    gone: BTreeSet<u64>,
    /// What was handled to its end by anybody.
    pub(crate) finished: BTreeSet<u64>,
    pub(crate) consumers: BTreeMap<ConsumerName, Consumer>,
}

static FILTERS: LazyLock<Vec<Filter>> = LazyLock::new(|| {
    (0..2)
        .map(|partition| Filter::new(format!("t.{partition}.>")))
        .collect()
});

pub(crate) fn filter(partition: Partition) -> Filter {
    FILTERS[usize::from(partition.0)].clone()
}

impl Stream {
    /// A stream with this many messages per partition.
    pub(crate) fn new(retention: Retention, partitions: u16, messages: u64) -> Self {
        Self {
            retention,
            partitions,
            last: messages * u64::from(partitions),
            gone: BTreeSet::new(),
            finished: BTreeSet::new(),
            consumers: BTreeMap::new(),
        }
    }

    /// The messages of a partition, in order.
    pub(crate) fn messages(&self, partition: Partition) -> impl Iterator<Item = u64> {
        let (first, step) = (u64::from(partition.0) + 1, usize::from(self.partitions));
        (first..=self.last).step_by(step)
    }

    /// The messages of a partition that nobody has handled to the end.
    pub(crate) fn unfinished(&self, partition: Partition) -> impl Iterator<Item = u64> {
        self.messages(partition)
            .filter(|sequence| !self.finished.contains(sequence))
    }

    /// Creates a consumer. One that is there already with the same settings counts as created.
    pub(crate) fn create(&mut self, spec: &ConsumerSpec, user: User) -> Result<(), CreateFault> {
        let queue = self.retention == Retention::WorkQueue;
        let start = if queue { 0 } else { spec.start.max(1) };
        if let Some(found) = self.consumers.get_mut(&spec.name) {
            if found.start != start {
                return Err(CreateFault::Exists);
            }
            found.user = user;
            return Ok(());
        }
        let overlaps = |name: &ConsumerName| name.partition == spec.name.partition;
        if queue && self.consumers.keys().any(overlaps) {
            return Err(CreateFault::Overlap("filtered consumer not unique".to_owned()));
        }
        let consumer = Consumer {
            start,
            user,
            delivered: start.saturating_sub(1),
            acked: BTreeSet::new(),
        };
        self.consumers.insert(spec.name.clone(), consumer);
        Ok(())
    }

    /// Whether a partition has this consumer. Cheaper to ask than by name, which contains a hash.
    pub(crate) fn has_consumer(&self, partition: Partition, epoch: Epoch) -> bool {
        let same = |name: &ConsumerName| name.partition == partition && name.epoch == epoch;
        self.consumers.keys().any(same)
    }

    pub(crate) fn position(&self, name: &ConsumerName) -> Option<Position> {
        let consumer = self.consumers.get(name)?;
        let pending = self
            .messages(name.partition)
            .find(|sequence| *sequence >= consumer.start && !consumer.acked.contains(sequence))
            .filter(|sequence| *sequence <= consumer.delivered);
        Some(Position {
            ack_floor: pending.map_or(consumer.delivered, |sequence| sequence - 1),
            // A message is as old as its sequence, and all were stored before anything was acked.
            acked_at: if consumer.acked.is_empty() { 0 } else { self.last },
            start: consumer.start,
            delivered: consumer.delivered,
        })
    }

    /// Delivers everything that a consumer has and has not delivered yet.
    pub(crate) fn pull(&mut self, name: &ConsumerName) -> Vec<u64> {
        let Some(consumer) = self.consumers.get(name) else {
            return Vec::new();
        };
        let next = consumer.delivered + 1;
        let sent: Vec<u64> = self
            .messages(name.partition)
            .filter(|sequence| *sequence >= next && !self.gone.contains(sequence))
            .collect();
        if let (Some(consumer), Some(&last)) = (self.consumers.get_mut(name), sent.last()) {
            consumer.delivered = last;
        }
        sent
    }

    /// An ack arrives. It counts only if its consumer is there; gives whose consumer it hit.
    pub(crate) fn ack(&mut self, name: &ConsumerName, sequence: u64) -> Option<User> {
        let consumer = self.consumers.get_mut(name)?;
        consumer.acked.insert(sequence);
        if self.retention == Retention::WorkQueue {
            self.gone.insert(sequence);
        }
        Some(consumer.user)
    }
}
