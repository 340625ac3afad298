//! What a member keeps of one partition in one tenure, and of one filter in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::filter::Filter;
use super::floor::Floor;
use super::lane::LaneId;
use super::marks::Marks;
use crate::ids::{Epoch, FencingToken, Partition};
use crate::time::Time;

/// Names one filter in one tenure. Never used twice, so that a reference from an older tenure finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FilterId(pub(super) u64);

/// How far a tenure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Messages are pulled and run.
    Serving,
    /// Told to stop: what runs is left to end.
    Draining,
    /// Nothing runs any more, and nothing will.
    Drained,
}

/// One tenure of one partition.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) token: FencingToken,
    pub(super) phase: Phase,
    pub(super) filters: BTreeMap<Filter, FilterId>,
    /// The lanes that may run, first come first served.
    pub(super) line: VecDeque<LaneId>,
    /// Whether the partition stands in the member's line.
    pub(super) lined_up: bool,
    pub(super) held: usize,
    pub(super) outstanding: usize,
    /// Handlers that run.
    pub(super) running: usize,
    /// Dead letters that are being stored.
    pub(super) burying: usize,
    /// Grows with every change of the marks.
    pub(super) changes: u64,
}

impl Tenure {
    pub(super) fn new(token: FencingToken) -> Self {
        Self {
            token,
            phase: Phase::Serving,
            filters: BTreeMap::new(),
            line: VecDeque::new(),
            lined_up: false,
            held: 0,
            outstanding: 0,
            running: 0,
            burying: 0,
            changes: 0,
        }
    }

    /// Whether a drain has nothing left to wait for. A dead letter on its way counts: its message would run again elsewhere.
    pub(super) fn is_quiet(&self) -> bool {
        self.running == 0 && self.burying == 0
    }
}

/// One filter: its consumer, its marks, and the messages it holds.
#[derive(Debug)]
pub(super) struct FilterState<M> {
    pub(super) partition: Partition,
    pub(super) name: Filter,
    pub(super) epoch: Epoch,
    /// The consumer sequence that must come next.
    pub(super) expected: u64,
    /// Whether a gap ended the epoch: nothing is accepted until the re-open.
    pub(super) lost: bool,
    pub(super) floor: Floor,
    /// Failed attempts, of messages not yet delivered too.
    pub(super) attempts: BTreeMap<u64, u32>,
    pub(super) started: BTreeSet<u64>,
    /// What is held: queued, running or waiting.
    pub(super) entries: BTreeMap<u64, Entry<M>>,
    pub(super) keys: BTreeMap<Arc<str>, LaneId>,
    /// Messages asked for and not yet delivered.
    pub(super) outstanding: usize,
}

/// One message that is held.
#[derive(Debug)]
pub(super) struct Entry<M> {
    pub(super) lane: LaneId,
    pub(super) time: u64,
    /// Of the latest delivery.
    pub(super) reply: Arc<str>,
    pub(super) message: M,
    /// When the next in-progress ack is due.
    pub(super) keep_at: Time,
}

impl<M> FilterState<M> {
    pub(super) fn new(partition: Partition, name: Filter, epoch: Epoch, marks: Marks) -> Self {
        Self {
            partition,
            name,
            epoch,
            expected: 1,
            lost: false,
            floor: Floor::open(&marks),
            attempts: marks.attempts,
            started: BTreeSet::new(),
            entries: BTreeMap::new(),
            keys: BTreeMap::new(),
            outstanding: 0,
        }
    }

    /// A new consumer of the same tenure takes over; what is known stays.
    pub(super) fn reopen(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.expected = 1;
        self.lost = false;
    }

    /// What the progress record is to hold.
    pub(super) fn marks(&self) -> Marks {
        Marks {
            floor: self.floor.mark(),
            ranges: self.floor.ranges().collect(),
            attempts: self.attempts.clone(),
            started: self.started.clone(),
        }
    }

    /// Drops the attempts of messages that the floor has passed without a delivery: they are gone from the stream.
    pub(super) fn forget_passed_attempts(&mut self) {
        let floor = self.floor.mark().sequence;
        while let Some(attempts) = self.attempts.first_entry()
            && *attempts.key() <= floor
        {
            attempts.remove();
        }
    }
}
