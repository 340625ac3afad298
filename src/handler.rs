//! What the embedding service writes: the handler of a message, and what it is handed.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::HeaderMap;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::ids::{FencingToken, Partition};

/// Handles the messages of a group.
///
/// All messages of a key come one after the other in stream order; messages of different keys come at the same time. A
/// message may come again after a crash, so a handler must bear repetition.
///
/// Any `Fn(Delivery) -> impl Future<Output = Result<(), Failure>>` is a handler.
///
/// # Cancellation
/// When ownership is lost, the delivery's [`Cancellation`] fires. A future that has not ended by itself within `cancel_grace` is
/// dropped, as any future may be. What a handler *spawns* is out of reach: keep the work inside the future, or await it there.
/// One that blocks its thread cannot be dropped; its partition is not served by anybody else in this process before it ends.
///
/// # Blocking
/// Blocking work belongs into `tokio::task::spawn_blocking` (awaited) or `tokio::task::block_in_place`. A handler that blocks
/// its thread all the same holds only its own key up, as long as the runtime has another worker thread: heartbeats, moves and other
/// keys go on after 0.1 s at the latest. Two cases stop the whole member until it is fenced: a runtime with one thread, and a
/// handler that hands something to the NATS client and blocks before its next `await`, for the task that was to send it then
/// waits for the same thread.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. `Ok` finishes it; it is acked only then.
    ///
    /// # Errors
    /// A [`Failure`] says whether the message is tried again. A panic counts as [`Failure::retry`].
    fn handle(&self, delivery: Delivery) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn handle(&self, delivery: Delivery) -> impl Future<Output = Result<(), Failure>> + Send {
        self(delivery)
    }
}

/// Why a handler did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Retry(Option<Duration>),
    Reject,
}

impl Failure {
    /// The message is tried again after the backoff of the settings; its key waits.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::Retry(None),
            reason: reason.to_string(),
        }
    }

    /// The message is tried again after `delay`; its key waits.
    pub fn retry_after(delay: Duration, reason: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::Retry(Some(delay)),
            reason: reason.to_string(),
        }
    }

    /// The message can never succeed: it is given up, and its key goes on once it is stored as a dead letter.
    pub fn reject(reason: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::Reject,
            reason: reason.to_string(),
        }
    }

    /// What went wrong.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the message is given up.
    pub fn is_reject(&self) -> bool {
        self.kind == FailureKind::Reject
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// So that `?` works in a handler on any error type: it is tried again. Boxed errors, those of `anyhow` too, are no error types
/// themselves: for them there is `map_err(Failure::retry)`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// Tells a handler that its message is not its own any more.
#[derive(Debug, Clone)]
pub struct Cancellation(pub(crate) CancellationToken);

impl Cancellation {
    /// Whether it has fired.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Completes when it fires.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }
}

/// What is the same for every attempt at a message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) subject: Arc<str>,
    pub(crate) payload: Bytes,
    pub(crate) headers: HeaderMap,
    /// Its subject is caught by a filter, but is none of the group's: no handler may have it.
    pub(crate) stray: bool,
}

impl Message {
    /// What a stray message is given up with.
    pub(crate) const STRAY: &str =
        "its subject is not of the group's pattern, or bears another partition than its key's";
}

/// One attempt at one message.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) key: Arc<str>,
    pub(crate) stream_sequence: u64,
    pub(crate) time: u64,
    pub(crate) attempt: u32,
    pub(crate) partition: Partition,
    pub(crate) token: FencingToken,
    pub(crate) cancellation: Cancellation,
}

impl Delivery {
    /// The subject it was published to, whatever the partitioning stores it under.
    pub fn subject(&self) -> &str {
        &self.message.subject
    }

    /// The key: the key tokens of the subject, joined by dots.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// The headers; empty if it has none.
    pub fn headers(&self) -> &HeaderMap {
        &self.message.headers
    }

    /// Its sequence in the stream.
    pub fn stream_sequence(&self) -> u64 {
        self.stream_sequence
    }

    /// 1 for the first attempt, one more for every one that failed, on other members too.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The partition of its key.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// The number of this member's tenure of the partition. It only grows: store it with what you write and refuse a write that
    /// bears a lower one, and no frozen process can overwrite its successor's work. It fits an `i64`.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// When the stream stored it.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.time)
    }

    /// Fires when the message is not this member's any more.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }
}
