//! What a member keeps of one partition in one tenure, and of one filter in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::action::ReadId;
use super::filter::Filter;
use super::floor::Floor;
use super::lane::LaneId;
use super::marks::{Death, Marks};
use super::room::{Amount, Load};
use super::watchdog::Watched;
use crate::ids::{Epoch, FencingToken, Partition};
use crate::time::Time;

slotmap::new_key_type! {
    /// Names one filter in one tenure. Never used twice, so that a reference from an older tenure finds nothing.
    pub(super) struct FilterId;
}

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
    /// The lanes whose first message waits for company in a batch.
    pub(super) gathering: BTreeSet<LaneId>,
    /// Whether the partition stands in the member's line.
    pub(super) lined_up: bool,
    pub(super) load: Load,
    /// Messages spilled.
    pub(super) spilled: usize,
    /// Handlers that run.
    pub(super) running: usize,
    /// Dead letters that are being stored.
    pub(super) burying: usize,
    /// Grows with every change of the marks.
    pub(super) changes: u64,
    /// The number of changes that the progress record is confirmed to hold.
    pub(super) recorded: u64,
}

impl Tenure {
    pub(super) fn new(token: FencingToken) -> Self {
        Self {
            token,
            phase: Phase::Serving,
            filters: BTreeMap::new(),
            line: VecDeque::new(),
            gathering: BTreeSet::new(),
            lined_up: false,
            load: Load::default(),
            spilled: 0,
            running: 0,
            burying: 0,
            changes: 0,
            recorded: 0,
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
    /// Whether what is started runs while nothing else does.
    pub(super) alone: bool,
    /// The processes that died with unfinished messages.
    pub(super) deaths: BTreeMap<u64, Vec<Death>>,
    /// Up to here, a member that died may have begun with any message without having said so.
    pub(super) careful_until: u64,
    /// What is unfinished: queued, running, waiting or spilled.
    pub(super) entries: BTreeMap<u64, Entry<M>>,
    pub(super) keys: BTreeMap<Arc<str>, LaneId>,
    pub(super) load: Load,
    /// What the waiting lanes have in memory.
    pub(super) waiting: Amount,
    /// Waiting lanes that may have more than one message in memory, longest waiting first.
    pub(super) spillable: BTreeSet<(u64, LaneId)>,
    /// Messages spilled.
    pub(super) spilled: usize,
    /// The average size of a message, for how many bytes to ask for.
    pub(super) average_bytes: usize,
    /// The next message is known to be larger than this.
    pub(super) next_above: Option<usize>,
    /// How many messages may be asked for and not yet delivered: few while nothing comes, more with everything that does.
    pub(super) pace: usize,
    /// When its timer for in-progress acks is due: it has one while it holds messages.
    pub(super) keep_timer: Option<Time>,
    pub(super) watched: Watched,
}

/// One message that is unfinished.
#[derive(Debug)]
pub(super) struct Entry<M> {
    pub(super) lane: LaneId,
    pub(super) time: u64,
    /// Of the latest delivery.
    pub(super) reply: Arc<str>,
    pub(super) read_sequence: u64,
    /// Of its first delivery by the current consumer; 0 before that.
    pub(super) consumer_sequence: u64,
    pub(super) bytes: usize,
    /// When it was delivered first.
    pub(super) since: Time,
    pub(super) body: Body<M>,
    /// When the next in-progress ack is due.
    pub(super) keep_at: Option<Time>,
}

/// Where the message itself is.
#[derive(Debug)]
pub(super) enum Body<M> {
    /// In memory.
    Held(M),
    /// On its way from the stream, and counted as if it were in memory.
    Reading(ReadId),
    /// Only in the stream.
    Spilled,
}

impl<M> FilterState<M> {
    pub(super) fn new(partition: Partition, name: Filter, epoch: Epoch, marks: Marks, pace: usize) -> Self {
        Self {
            partition,
            name,
            epoch,
            expected: 1,
            lost: false,
            floor: Floor::open(&marks),
            attempts: marks.attempts,
            started: BTreeSet::new(),
            alone: false,
            deaths: marks.deaths,
            careful_until: 0,
            entries: BTreeMap::new(),
            keys: BTreeMap::new(),
            load: Load::default(),
            waiting: Amount::default(),
            spillable: BTreeSet::new(),
            spilled: 0,
            average_bytes: 0,
            next_above: None,
            pace,
            keep_timer: None,
            watched: Watched::new(),
        }
    }

    /// A new consumer of the same tenure takes over; what is known stays.
    pub(super) fn reopen(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.expected = 1;
        self.lost = false;
        self.next_above = None;
        self.watched.reopen();
        for entry in self.entries.values_mut() {
            entry.consumer_sequence = 0;
        }
    }

    /// What the progress record is to hold.
    pub(super) fn marks(&self) -> Marks {
        Marks {
            floor: self.floor.mark(),
            ranges: self.floor.ranges().collect(),
            attempts: self.attempts.clone(),
            started: self.started.clone(),
            alone: self.alone,
            deaths: self.deaths.clone(),
        }
    }

    /// Drops what is kept of messages that the floor has passed without a delivery: they are gone from the stream.
    pub(super) fn forget_passed(&mut self) {
        let next = self.floor.mark().sequence.saturating_add(1);
        forget_below(&mut self.attempts, next);
        forget_below(&mut self.deaths, next);
    }

    /// Drops what is kept of messages between two deliveries that follow each other: they are not there any more. A floor that stands
    /// at an unfinished message does not pass them. Whether there was anything.
    pub(super) fn forget_undelivered(&mut self, after: u64, before: u64) -> bool {
        if after.saturating_add(1) >= before {
            return false;
        }
        let kept = self.deaths.range(after + 1..before).map(|(&sequence, _)| sequence);
        let kept = kept.chain(self.attempts.range(after + 1..before).map(|(&sequence, _)| sequence));
        let gone: Vec<u64> = kept.filter(|sequence| !self.entries.contains_key(sequence)).collect();
        for sequence in &gone {
            self.deaths.remove(sequence);
            self.attempts.remove(sequence);
        }
        !gone.is_empty()
    }

    /// Drops what is kept of messages from this sequence on: the stream has become younger.
    pub(super) fn forget_from(&mut self, sequence: u64) {
        self.attempts.split_off(&sequence);
        self.deaths.split_off(&sequence);
    }
}

fn forget_below<T>(kept: &mut BTreeMap<u64, T>, sequence: u64) {
    while let Some(first) = kept.first_entry()
        && *first.key() < sequence
    {
        first.remove();
    }
}
