//! Delivery inside one member: order per key, parallel keys, what is finished, retries, and how much to pull.
//!
//! ```text
//!  consumer ──deliver──▶ filter ──▶ lane of the key ──dispatch──▶ handler ──ended──▶ floor and ranges ──▶ ack
//!      ▲  gap: reopen      │              ▲   └── failed: waits, is tried again, or becomes a dead letter
//!      └────── pull ◀── room              └────── its next message
//! ```
//!
//! Nothing in here knows a clock, a socket or a task. The driver calls a method for what happened, passing the time, and then takes
//! the [`actions`](Lanes::actions) it is to carry out. Handlers start only by [`dispatch`](Lanes::dispatch), so that the driver can
//! check its lease before. The same calls give the same actions, always: simulations and property tests run this very code.
//!
//! | file | subject |
//! |---|---|
//! | `filter`, `marks` | the names and numbers of the progress record |
//! | `floor` | which messages are finished |
//! | `lane`, `partition` | the state: a key's queue, a filter, a tenure |
//! | `tenure` | open, re-open, stop, cancel, close |
//! | `delivery` | a delivery: new, known, finished, out of sequence |
//! | `dispatch`, `gather` | which messages run next, alone or in a batch |
//! | `care` | messages that may end their process |
//! | `outcome`, `retry` | how runs end; dead letters; how long to wait |
//! | `timers` | retries and in-progress acks that are due |
//! | `room`, `pull` | what is held, and asking for more |
//! | `spill` | keys that wait keep few messages in memory |
//! | `watchdog` | what no delivery shows |
//! | `status`, `settings`, `action` | what is shown, what is set, what is asked of the driver |

mod action;
mod care;
mod delivery;
mod dispatch;
mod filter;
mod floor;
mod gather;
mod lane;
mod marks;
mod outcome;
mod partition;
mod pull;
mod retry;
mod room;
mod settings;
mod spill;
mod status;
mod tenure;
#[cfg(test)]
mod tests;
mod timers;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slotmap::SlotMap;

pub use self::action::{
    Action, Attempt, ConsumerView, DeadLetter, Delivered, Ended, Found, Gap, Outcome, Parked, PullEnd, ReadId,
    Reopening, Run, RunId,
};
pub use self::filter::Filter;
pub use self::marks::{Death, MOST_DEATHS, Mark, Marks, Range};
pub use self::partition::Phase;
pub use self::room::Amount;
pub use self::settings::{BatchScope, BatchSettings, Retry, Settings};
pub use self::status::{FilterStatus, KeyDepth, PartitionStatus, Stall, Stalled, Status};

use self::care::Care;
use self::lane::{Lane, LaneId};
use self::partition::{FilterId, FilterState, Tenure};
use self::room::Load;
use self::timers::Timer;
use crate::ids::{Epoch, FencingToken, Partition};
use crate::time::Time;

/// All lanes of one member.
///
/// `M` is the message as the handler gets it; it is cloned for every attempt, so let it be cheap to clone.
#[derive(Debug)]
pub struct Lanes<M> {
    settings: Settings,
    seed: u64,
    tenures: BTreeMap<Partition, Tenure>,
    filters: SlotMap<FilterId, FilterState<M>>,
    lanes: SlotMap<LaneId, Lane>,
    runs: BTreeMap<RunId, Running>,
    /// Dead letters being stored or waiting to be, with the lane they hold up.
    burials: BTreeMap<RunId, LaneId>,
    /// Handlers of closed tenures that have not ended, by partition and tenure.
    leftover: BTreeMap<(Partition, FencingToken), usize>,
    /// The partitions with lanes that may run, in turn.
    line: VecDeque<Partition>,
    care: Care<M>,
    timers: BTreeSet<(Time, Timer)>,
    /// The time as of the last [`wake`](Self::wake).
    now: Time,
    /// When the watchdog looks next.
    next_look: Option<Time>,
    /// Filters that may have room to pull.
    wanting: BTreeSet<FilterId>,
    /// The filter after which the next look for room begins.
    pulled_last: FilterId,
    load: Load,
    reads: BTreeMap<ReadId, (FilterId, u64)>,
    next_id: u64,
    actions: VecDeque<Action<M>>,
}

/// A handler that runs.
#[derive(Debug)]
struct Running {
    partition: Partition,
    token: FencingToken,
    /// In the order that the handler has them in.
    messages: Vec<Tried>,
    cancelled: bool,
}

/// A message in the hands of a handler.
#[derive(Debug)]
struct Tried {
    filter: FilterId,
    lane: LaneId,
    sequence: u64,
    /// Whether another message took the sequence of this one: the outcome says nothing about it.
    replaced: bool,
}

impl<M: Clone> Lanes<M> {
    /// Lanes that own nothing. `seed` spreads retry delays, and should differ between members.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            tenures: BTreeMap::new(),
            filters: SlotMap::with_key(),
            lanes: SlotMap::with_key(),
            runs: BTreeMap::new(),
            burials: BTreeMap::new(),
            leftover: BTreeMap::new(),
            line: VecDeque::new(),
            care: Care::new(),
            timers: BTreeSet::new(),
            now: Time::ZERO,
            next_look: None,
            wanting: BTreeSet::new(),
            pulled_last: FilterId::default(),
            load: Load::default(),
            reads: BTreeMap::new(),
            next_id: 0,
            actions: VecDeque::new(),
        }
    }

    /// Takes what is to be done, in order. What is not taken stays.
    pub fn actions(&mut self) -> impl Iterator<Item = Action<M>> + '_ {
        self.pull();
        std::iter::from_fn(|| self.actions.pop_front())
    }

    /// One counter for all names, so that none is used twice.
    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The filter whose current consumer is the one of `epoch`.
    fn current(&self, partition: Partition, filter: &Filter, epoch: Epoch) -> Option<FilterId> {
        let id = *self.tenures.get(&partition)?.filters.get(filter)?;
        (self.filters.get(id)?.epoch == epoch).then_some(id)
    }

    fn phase(&self, partition: Partition) -> Option<Phase> {
        self.tenures.get(&partition).map(|tenure| tenure.phase)
    }

    fn changed(&mut self, partition: Partition) {
        if let Some(tenure) = self.tenures.get_mut(&partition) {
            tenure.changes += 1;
        }
    }
}
