//! The in-order queue of one key.

use std::collections::VecDeque;
use std::sync::Arc;

use super::action::RunId;
use super::partition::FilterId;
use super::room::Amount;
use crate::time::Time;

slotmap::new_key_type! {
    /// Names a lane. Never used twice, so that a reference that outlived its lane finds nothing.
    pub(super) struct LaneId;
}

/// The unfinished messages of one key, and what is being done about the first of them.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) filter: FilterId,
    pub(super) key: Arc<str>,
    /// Ascending sequences. What a handler has is among them until it is finished.
    queue: VecDeque<u64>,
    /// What is in memory or being read: so many from the front. The rest is spilled.
    pub(super) load: Amount,
    /// When the lane began to wait, in an order of its own.
    pub(super) waits_since: u64,
    pub(super) state: State,
    /// Whether the lane stands in its partition's line of lanes that are ready.
    pub(super) lined_up: bool,
    /// While the first message waits for company in a batch: until when.
    pub(super) gathers_until: Option<Time>,
}

/// What a lane is doing. At most one thing: this is why a key never has two handlers.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing: its first message may run.
    Ready,
    /// A handler runs.
    Running {
        /// The run, which knows its messages.
        run: RunId,
    },
    /// The first message failed and is tried again later.
    Waiting {
        /// When.
        until: Time,
    },
    /// The first message's dead letter is being stored.
    Burying(Burial),
    /// The dead letter could not be stored, or the first message is condemned.
    Parked {
        /// When the dead letter is tried again. `None`: condemned.
        until: Option<Time>,
        /// The dead letter.
        burial: Burial,
    },
}

/// A message on its way to become a dead letter.
#[derive(Debug, Clone)]
pub(super) struct Burial {
    pub(super) run: RunId,
    pub(super) sequence: u64,
    pub(super) error: String,
    /// How often it could not be stored.
    pub(super) failures: u32,
    /// Why not, the last time.
    pub(super) store_error: Option<String>,
}

impl Lane {
    pub(super) fn new(filter: FilterId, key: Arc<str>) -> Self {
        Self {
            filter,
            key,
            queue: VecDeque::new(),
            load: Amount::default(),
            waits_since: 0,
            state: State::Ready,
            lined_up: false,
            gathers_until: None,
        }
    }

    /// Puts a message in its place, and says whether it stays in memory. While the lane waits it keeps `depth` of them.
    ///
    /// A consumer delivers ascending sequences, and what was lost in a gap lies above all that were accepted, so that the place is
    /// the end; it is looked up all the same, for streams that were put back and copied again.
    pub(super) fn insert(&mut self, sequence: u64, bytes: usize, depth: usize) -> bool {
        let place = match self.queue.back() {
            Some(&last) if sequence < last => self.queue.partition_point(|&other| other < sequence),
            _ => self.queue.len(),
        };
        let nothing_spilled = self.load.messages == self.queue.len();
        let stays = place < self.load.messages || (nothing_spilled && (!self.is_waiting() || place < depth));
        self.queue.insert(place, sequence);
        if stays {
            self.load = self.load.plus(Amount::one(bytes));
        }
        stays
    }

    /// Takes a message out; `bytes` is its size.
    pub(super) fn remove(&mut self, sequence: u64, bytes: usize) {
        if let Ok(place) = self.queue.binary_search(&sequence) {
            self.queue.remove(place);
            if place < self.load.messages {
                self.load = self.load.minus(Amount::one(bytes));
            }
        }
    }

    /// The last message that is not spilled.
    pub(super) fn last_in_memory(&self) -> Option<u64> {
        self.queue.get(self.load.messages.checked_sub(1)?).copied()
    }

    /// The first message that is spilled.
    pub(super) fn first_spilled(&self) -> Option<u64> {
        self.queue.get(self.load.messages).copied()
    }

    /// The first messages, at most `count` of those that are not spilled.
    pub(super) fn front(&self, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.queue.iter().take(count.min(self.load.messages)).copied()
    }

    /// The next message to run.
    pub(super) fn first(&self) -> Option<u64> {
        self.queue.front().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn spilled(&self) -> usize {
        self.queue.len() - self.load.messages
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready) && !self.queue.is_empty()
    }

    /// Whether the lane waits for a retry or for its dead letter.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(
            self.state,
            State::Waiting { .. } | State::Burying(_) | State::Parked { .. }
        )
    }

    /// Whether the lane is of no more use.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Ready) && self.queue.is_empty()
    }

    /// The message that holds up a parked key: from the first time that its dead letter could not be stored until it is.
    pub(super) fn parked(&self) -> Option<&Burial> {
        match &self.state {
            State::Parked { burial, .. } => Some(burial),
            State::Burying(burial) => (burial.failures > 0).then_some(burial),
            State::Ready | State::Running { .. } | State::Waiting { .. } => None,
        }
    }

    /// When the lane's state is to be looked at again.
    pub(super) fn due(&self) -> Option<Time> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Parked { until, .. } => until,
            State::Ready => self.gathers_until,
            State::Running { .. } | State::Burying(_) => None,
        }
    }
}
