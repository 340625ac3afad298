//! Handlers of several messages at once, for bulk writes.

use std::fmt;
use std::future::Future;

use crate::config::{Settings, SettingsError};
use crate::handler::{Cancellation, Delivery, Failure, Handler};
use crate::ids::{FencingToken, Partition};
use crate::lanes::BatchSettings;

/// Handles the messages of a group in batches: the next ones of a key, or the next ones of a partition, as the
/// [`BatchSettings`] say.
///
/// All that is said of a [`Handler`] holds here too: order, repetition, cancellation, and the time that one run may take. A key is
/// never in two batches at a time.
///
/// Any `Fn(Batch) -> impl Future<Output = Result<(), BatchFailure>>` is a handler of batches.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles one batch. `Ok` finishes all of it.
    ///
    /// # Errors
    /// A [`BatchFailure`] says how far it came, and whether the message that failed is tried again. A panic, and a run that takes
    /// longer than `handler_timeout`, count as [`BatchFailure::all`] with [`Failure::retry`].
    fn handle(&self, batch: Batch) -> impl Future<Output = Result<(), BatchFailure>> + Send;
}

impl<F, Fut> BatchHandler for F
where
    F: Fn(Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BatchFailure>> + Send,
{
    fn handle(&self, batch: Batch) -> impl Future<Output = Result<(), BatchFailure>> + Send {
        self(batch)
    }
}

/// One attempt at several messages: never none, all of one partition, in stream order.
#[derive(Debug, Clone)]
pub struct Batch {
    deliveries: Vec<Delivery>,
    partition: Partition,
    token: FencingToken,
    cancellation: Cancellation,
}

impl Batch {
    /// `deliveries` must not be empty.
    pub(crate) fn new(
        deliveries: Vec<Delivery>,
        partition: Partition,
        token: FencingToken,
        cancellation: Cancellation,
    ) -> Self {
        debug_assert!(!deliveries.is_empty(), "a batch has a message");
        Self {
            deliveries,
            partition,
            token,
            cancellation,
        }
    }

    /// The messages.
    pub fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// Their partition.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// The number of this member's tenure of the partition, as in [`Delivery::fencing_token`].
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Fires when the messages are not this member's any more.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }
}

impl IntoIterator for Batch {
    type Item = Delivery;
    type IntoIter = std::vec::IntoIter<Delivery>;

    fn into_iter(self) -> Self::IntoIter {
        self.deliveries.into_iter()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Delivery;
    type IntoIter = std::slice::Iter<'a, Delivery>;

    fn into_iter(self) -> Self::IntoIter {
        self.deliveries.iter()
    }
}

/// How far a handler of batches came, and why no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFailure {
    pub(crate) index: usize,
    pub(crate) failure: Failure,
}

impl BatchFailure {
    /// Nothing is done: for a handler that writes all or nothing. The first message counts as the one that failed, so that its key
    /// waits and its attempts are counted; the others come again without.
    pub fn all(failure: impl Into<Failure>) -> Self {
        Self::at(0, failure)
    }

    /// Everything before `index` is done; the message at `index` failed; those after it were not tried. With an index that the batch
    /// does not have this is [`all`](Self::all): better to repeat messages than to pass one over.
    pub fn at(index: usize, failure: impl Into<Failure>) -> Self {
        Self {
            index,
            failure: failure.into(),
        }
    }

    /// How many messages are done.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Why the next one is not.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }
}

impl fmt::Display for BatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} messages: {}", self.index, self.failure)
    }
}

impl From<Failure> for BatchFailure {
    fn from(failure: Failure) -> Self {
        Self::all(failure)
    }
}

/// So that `?` works on any error in a handler: nothing is done, and all is tried again.
impl<E: std::error::Error> From<E> for BatchFailure {
    fn from(error: E) -> Self {
        Self::all(Failure::retry(error))
    }
}

/// A handler of one message as one of batches: there is one path for both. It is only given batches of one.
#[derive(Debug)]
pub(crate) struct Single<H>(pub(crate) H);

impl<H: Handler> BatchHandler for Single<H> {
    async fn handle(&self, batch: Batch) -> Result<(), BatchFailure> {
        for (index, delivery) in batch.into_iter().enumerate() {
            let handled = self.0.handle(delivery).await;
            handled.map_err(|failure| BatchFailure::at(index, failure))?;
        }
        Ok(())
    }
}

impl BatchSettings {
    /// Checks them against the settings of the member.
    ///
    /// # Errors
    /// [`SettingsError`] if a batch could never be full.
    pub fn validate(&self, settings: &Settings) -> Result<(), SettingsError> {
        let most = settings.max_held_per_partition;
        if self.max_messages <= most {
            return Ok(());
        }
        Err(SettingsError {
            field: "batch.max_messages",
            found: self.max_messages.to_string(),
            needed: format!("it has to be at most max_held_per_partition ({most})"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn failures_come_from_errors_and_from_failures_and_say_how_far_the_handler_came() {
        let io = || std::io::Error::other("broken pipe");
        assert_eq!(
            BatchFailure::from(io()),
            BatchFailure::all(Failure::retry("broken pipe"))
        );
        let rejected = BatchFailure::from(Failure::reject("bad"));
        assert!((rejected.index(), rejected.failure().is_reject()) == (0, true));
        assert_eq!(BatchFailure::at(3, io()).to_string(), "after 3 messages: broken pipe");
    }

    #[test]
    fn a_batch_has_to_fit_into_the_room_of_a_partition() {
        let settings = Settings::default();
        let with = |messages: usize| BatchSettings {
            max_messages: NonZeroUsize::new(messages).unwrap(),
            ..BatchSettings::SINGLE
        };
        let most = settings.max_held_per_partition.get();
        with(most).validate(&settings).unwrap();
        let error = with(most + 1).validate(&settings).unwrap_err();
        assert_eq!(error.field, "batch.max_messages");
    }
}
