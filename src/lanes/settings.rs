//! The bounds and times of delivery inside one member.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

/// What a member's lanes are told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many handlers may run at a time in this member, over all its partitions.
    pub concurrency: NonZeroUsize,
    /// How many messages one partition may hold in memory: queued, running or waiting. Usual: a few times `concurrency`, up to thousands.
    pub max_held: NonZeroUsize,
    /// How many messages this member may hold in memory over all its partitions. Usual: several times `max_held`.
    pub max_held_total: NonZeroUsize,
    /// How many bytes one partition may hold. A message larger than what is left of it comes alone, above the bound.
    pub max_bytes: NonZeroUsize,
    /// How many bytes this member may hold over all its partitions.
    pub max_bytes_total: NonZeroUsize,
    /// How many messages of one key stay in memory while the key waits for a retry or a dead letter; the rest is spilled and read
    /// again later. Less than `max_held`.
    pub lane_depth: NonZeroUsize,
    /// How many messages one partition may have spilled before it stops pulling. At least `max_held`; the consumers'
    /// `max_ack_pending` is at least the sum of both.
    pub max_parked: NonZeroUsize,
    /// How many ranges one filter may have above its floor before it stops pulling: they are what the progress record grows by.
    pub max_ranges: NonZeroUsize,
    /// How many messages a filter asks for while none comes. What is asked for is reserved, so hundreds of idle filters must not
    /// reserve all there is: a new one would wait until their requests expire. Usual: 8.
    pub idle_pull: NonZeroUsize,
    /// Whether a partition can have several filters (`Token`). They share its room, so that each leaves some for filters that are
    /// found later.
    pub several_filters: bool,
    /// The `ack_wait` of the consumers. A message held longer than half of it is kept by an in-progress ack. `None`: they await none.
    pub ack_wait: Option<Duration>,
    /// How often the server is asked about consumers from which messages are awaited and none come. `None`: never about any.
    pub inspect_interval: Option<Duration>,
    /// How often the server is asked whether acks have reached it. Looked at every `inspect_interval`.
    pub ack_check_interval: Duration,
    /// How a failed message is tried again.
    pub retry: Retry,
    /// How often a message may have ended its process while nothing else ran before it is not run any more.
    pub max_kills: NonZeroU32,
    /// Whether such a message becomes a dead letter. Otherwise its key waits.
    pub dead_letter_killers: bool,
    /// How many messages one run takes, and which.
    pub batch: BatchSettings,
}

/// Which messages come together in one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchScope {
    /// The next ones of a key. Batches of different keys run at the same time.
    Key,
    /// The next ones of a partition, of any of its keys, in stream order. A partition has one batch at a time. A key that waits for
    /// a retry or a dead letter is passed over with all its later messages.
    Partition,
}

/// What a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// Which messages come together.
    pub scope: BatchScope,
    /// How many there are at most; no more than `max_held_per_partition`. Usual: 10 to a few hundred.
    pub max_messages: NonZeroUsize,
    /// How long a message may wait for company, from when it came in; time that it spends behind another batch counts. A batch
    /// that is full does not wait, nor does one that can get no company because the room for messages is taken. Zero: whatever is
    /// there. Usual: 5 ms to 1 s.
    pub max_wait: Duration,
}

impl BatchSettings {
    /// One message at a time.
    pub const SINGLE: Self = Self {
        scope: BatchScope::Key,
        max_messages: NonZeroUsize::MIN,
        max_wait: Duration::ZERO,
    };
}

/// How a failed message is tried again.
#[derive(Debug, Clone)]
pub struct Retry {
    /// The delay after the first failure; it doubles with every further one.
    pub initial: Duration,
    /// The longest delay, at least `initial`.
    pub max: Duration,
    /// How many attempts may fail before the message becomes a dead letter. `None`: it is tried for ever.
    pub max_attempts: Option<NonZeroU32>,
}
