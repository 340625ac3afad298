//! Everything the lanes can ask for: the catalogue of their side effects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::filter::Filter;
use super::marks::Marks;
use crate::ids::{Epoch, FencingToken, Partition};

/// One run of a handler; also names the dead letter that came of it. Never used twice in the life of a member's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One read of a spilled message. Never used twice in the life of a member's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

impl fmt::Display for ReadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the stream's leader has under a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<M> {
    /// A message.
    Message {
        /// Its store time as in [`Delivered::time`].
        time: u64,
        /// Its payload.
        message: M,
    },
    /// Nothing: it was deleted, purged or has expired.
    Gone,
}

/// A message as a consumer delivered it.
#[derive(Debug, Clone)]
pub struct Delivered<M> {
    /// The sequence that order and marks go by: of the stream, or of the origin if the stream is a sourced copy.
    pub stream_sequence: u64,
    /// The sequence to read it again by. Other than `stream_sequence` only if the stream is a sourced copy.
    pub read_sequence: u64,
    /// The consumer's own count of deliveries, from 1 in every epoch.
    pub consumer_sequence: u64,
    /// Store time in nanoseconds since the Unix epoch. Of a sourced copy always 0: a copy made again has a new time.
    pub time: u64,
    /// The key whose order is kept. A key belongs to one filter.
    pub key: Arc<str>,
    /// Where to send the ack.
    pub reply: Arc<str>,
    /// Size of subject, headers and payload.
    pub bytes: usize,
    /// The payload as the handler gets it; cloned for every attempt.
    pub message: M,
}

/// How a run ended: how far it came, and what happened then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// So many of its messages, from the first on, are finished. A number that leaves no message for `then` to be about counts
    /// as 0: a repetition is safe, a message passed over is not.
    pub finished: usize,
    /// What happened to the next one; those after it were not tried. [`Outcome::Success`]: all of them are finished.
    pub then: Outcome,
}

impl From<Outcome> for Ended {
    /// What happened to the first message, or success of them all.
    fn from(then: Outcome) -> Self {
        Self { finished: 0, then }
    }
}

/// What became of a message in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The handler succeeded.
    Success,
    /// It failed (an error, a panic, a time-out) and the message is to be tried again.
    Retry {
        /// The delay it asks for; otherwise the backoff of the settings.
        after: Option<Duration>,
        /// What went wrong.
        error: String,
    },
    /// The message can never succeed: it becomes a dead letter.
    Reject {
        /// Why.
        error: String,
    },
    /// The handler ended because it was told to; the message stays unfinished and the attempt does not count.
    Cancelled,
}

/// What the driver is to do. Actions are independent of each other except that those of one partition keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<M> {
    /// Run the handler, then call [`Lanes::ended`](super::Lanes::ended).
    Run(Run<M>),
    /// Cancel a handler; it is still running until [`Lanes::ended`](super::Lanes::ended) says otherwise.
    Cancel {
        /// The run.
        run: RunId,
    },
    /// The message is finished.
    Ack {
        /// Reply subject of its latest delivery.
        reply: Arc<str>,
    },
    /// The message is finished as a dead letter.
    Terminate {
        /// Reply subject of its latest delivery.
        reply: Arc<str>,
    },
    /// The message is still held: restart its `ack_wait`.
    InProgress {
        /// Reply subject of its latest delivery.
        reply: Arc<str>,
    },
    /// Issue one pull request.
    Pull {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The consumer to ask.
        epoch: Epoch,
        /// How many messages to ask for.
        messages: usize,
        /// How many bytes at most; `None` for no bound.
        bytes: Option<usize>,
    },
    /// Read a spilled message from the stream's leader, again and again until it is known whether it is there, then call
    /// [`Lanes::read`](super::Lanes::read).
    Read {
        /// Names the read.
        read: ReadId,
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The sequence to read.
        sequence: u64,
    },
    /// A spilled message was gone when its turn came. It counts as finished; say so.
    Gone {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The key.
        key: Arc<str>,
        /// The message's sequence.
        stream_sequence: u64,
    },
    /// Ask the server how far a consumer is, then call [`Lanes::inspected`](super::Lanes::inspected). An answer that does not come is
    /// not missed: it is asked for again.
    Inspect {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The consumer.
        epoch: Epoch,
    },
    /// The consumer cannot be gone on with: open the filter's next one at its floor, then call
    /// [`Lanes::reopen`](super::Lanes::reopen).
    Reopen {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The epoch that is over.
        epoch: Epoch,
        /// What shows it.
        reason: Reopening,
    },
    /// Write the [`progress`](super::Lanes::progress) of a partition into its record at once, then call
    /// [`Lanes::recorded`](super::Lanes::recorded): runs wait for it.
    Record {
        /// The partition.
        partition: Partition,
    },
    /// Store a dead letter with a confirmed publish, then call [`Lanes::dead_lettered`](super::Lanes::dead_lettered).
    DeadLetter(DeadLetter<M>),
    /// A key waits: its dead letter could not be stored and is tried again, or its message ends whatever process runs it. Said once
    /// per message.
    Parked(Parked),
    /// After [`Lanes::stop`](super::Lanes::stop): nothing of the partition runs any more, of older tenures neither. Said once.
    Drained {
        /// The partition.
        partition: Partition,
        /// The tenure.
        token: FencingToken,
        /// The final marks per filter.
        marks: BTreeMap<Filter, Marks>,
    },
    /// After [`Lanes::close`](super::Lanes::close): the last handler of the tenure and of older ones has ended. Said once.
    Ended {
        /// The partition.
        partition: Partition,
        /// The tenure.
        token: FencingToken,
    },
}

/// One run of the handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run<M> {
    /// Names the run.
    pub run: RunId,
    /// The partition.
    pub partition: Partition,
    /// The tenure, for a database to refuse stale writes by.
    pub token: FencingToken,
    /// Whether this member runs nothing else meanwhile, because its only message is suspected of ending whatever process runs it.
    pub alone: bool,
    /// What it is to handle, in stream order: never empty, and one message unless the settings ask for batches.
    pub attempts: Vec<Attempt<M>>,
}

/// One attempt at one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt<M> {
    /// The filter.
    pub filter: Filter,
    /// The key.
    pub key: Arc<str>,
    /// 1 plus the number of attempts that failed, in earlier tenures too.
    pub attempt: u32,
    /// The message's sequence.
    pub stream_sequence: u64,
    /// Its store time, nanoseconds since the Unix epoch.
    pub time: u64,
    /// The message.
    pub message: M,
}

/// A message that is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter<M> {
    /// The run that failed last; names the dead letter in the answer.
    pub run: RunId,
    /// The partition.
    pub partition: Partition,
    /// The filter.
    pub filter: Filter,
    /// The tenure.
    pub token: FencingToken,
    /// The key.
    pub key: Arc<str>,
    /// How many attempts failed.
    pub attempts: u32,
    /// The message's sequence.
    pub stream_sequence: u64,
    /// Its store time, nanoseconds since the Unix epoch.
    pub time: u64,
    /// What the last attempt failed with.
    pub error: String,
    /// The message.
    pub message: M,
}

/// A key that waits because its dead letter cannot be stored, or because its message ends whatever process runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The partition.
    pub partition: Partition,
    /// The filter.
    pub filter: Filter,
    /// The key.
    pub key: Arc<str>,
    /// The sequence of the message that holds it up.
    pub stream_sequence: u64,
    /// What its last attempt failed with, or what became of the processes that ran it.
    pub error: String,
    /// Why the dead letter could not be stored. `None`: nobody has asked for one.
    pub store_error: Option<String>,
}

/// What is left of a pull request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullEnd {
    /// Messages it did not deliver.
    pub messages: usize,
    /// Bytes it did not use.
    pub bytes: usize,
    /// Whether it ended because the next message is larger than those.
    pub too_large: bool,
}

/// How far the server says a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerView {
    /// The consumer sequence of its last delivery.
    pub delivered: u64,
    /// How many messages of the stream it has still to deliver.
    pub pending: u64,
    /// How many it has delivered that are not acked.
    pub ack_pending: u64,
    /// The consumer sequence up to which everything is acked.
    pub ack_floor: u64,
}

/// Why a filter needs another consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopening {
    /// A delivery before this one was lost.
    Gap(Gap),
    /// The last delivery was lost, or the last few.
    Swallowed {
        /// The consumer sequence that came last.
        seen: u64,
        /// The one that the server delivered last.
        delivered: u64,
    },
    /// It has messages, was asked for them, and delivers none.
    Stuck {
        /// How many.
        pending: u64,
    },
    /// Nobody answers for it, although the stream is there.
    Leaderless,
    /// Acks did not reach the server.
    LostAcks {
        /// How many acks it still awaits, those of unfinished messages included.
        pending: u64,
    },
}

/// A consumer sequence that is not the one after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The consumer sequence that had to come.
    pub expected: u64,
    /// The one that came.
    pub found: u64,
}
