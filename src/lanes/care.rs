//! Messages that may end their process: found out by what was started when a member died, and without blaming others.
//!
//! Three degrees of care, by what the progress record tells of a message:
//! - **recorded**: a member died not long ago and may have begun with it, or it has died with somebody before. Its run is
//!   *withheld* until the record says that all its messages are started; otherwise one that kills at once would never be seen.
//! - **suspected**: [`FEW`] members have died with it. It runs alone: the member waits until nothing runs, sees to it that the records
//!   of all its partitions say so, runs this message only, and goes on when the record says that it has ended. If the process dies,
//!   this message and no other was running.
//! - **condemned**: that has happened `max_kills` times. It is not run any more.
//!
//! A withheld run counts as running for order and concurrency. It has not begun, so it is dropped without a trace when its partition
//! stops or is lost.

use std::collections::{BTreeMap, BTreeSet};

use super::action::{Action, Run, RunId};
use super::filter::Filter;
use super::lane::{Burial, LaneId, State};
use super::marks::absolve;
use super::partition::{FilterId, FilterState, Phase};
use super::{Lanes, Running};
use crate::ids::{FencingToken, Incarnation, Partition};

/// With how many deaths a message is suspected. Whatever ran along dies along, so this is no proof; running alone is.
const FEW: usize = 2;

/// What is being done with care.
#[derive(Debug)]
pub(super) struct Care<M> {
    withheld: BTreeMap<RunId, Withheld<M>>,
    /// Partitions whose record something waits for, to be asked for once per dispatch.
    unrecorded: BTreeSet<Partition>,
    solo: Option<Solo>,
}

/// A run that starts when the record is as far as this.
#[derive(Debug)]
struct Withheld<M> {
    run: Run<M>,
    changes: u64,
}

/// A suspect that runs alone. While there is one, nothing else starts.
#[derive(Debug)]
enum Solo {
    /// Until nothing runs any more.
    Waiting(LaneId),
    /// Until these partitions' records say that this run and nothing else is started.
    Preparing(RunId, Awaited),
    /// It runs.
    Running(RunId),
    /// Until the record says that it has ended.
    Clearing(Awaited),
}

/// Tenures, with the number of changes that their records must have reached.
type Awaited = BTreeMap<(Partition, FencingToken), u64>;

impl<M> Care<M> {
    pub(super) fn new() -> Self {
        Self {
            withheld: BTreeMap::new(),
            unrecorded: BTreeSet::new(),
            solo: None,
        }
    }

    /// Whether a suspect has the member for itself, or is about to.
    pub(super) fn is_alone(&self) -> bool {
        self.solo.is_some()
    }
}

impl<M> FilterState<M> {
    /// Whether the record must say that the message is started before it is.
    fn is_delicate(&self, sequence: u64) -> bool {
        sequence <= self.careful_until || self.deaths.contains_key(&sequence)
    }

    fn deaths_of(&self, sequence: u64) -> usize {
        self.deaths.get(&sequence).map_or(0, Vec::len)
    }

    fn deaths_alone(&self, sequence: u64) -> usize {
        let deaths = self.deaths.get(&sequence).into_iter().flatten();
        deaths.filter(|death| death.alone).count()
    }
}

impl<M: Clone> Lanes<M> {
    /// Up to this sequence a member that died may have begun with any message and not have said so: none of them is started before
    /// the progress record says that it is. To be called right after [`open`](Self::open).
    pub fn be_careful(&mut self, partition: Partition, filter: &Filter, until: u64) {
        let id = self
            .tenures
            .get(&partition)
            .and_then(|tenure| tenure.filters.get(filter));
        if let Some(filter) = id.and_then(|id| self.filters.get_mut(*id)) {
            filter.careful_until = until;
        }
    }

    /// The progress record of a tenure is confirmed to hold the marks of this number of [`changes`](Self::changes), or later ones.
    pub fn recorded(&mut self, partition: Partition, token: FencingToken, changes: u64) {
        if let Some(tenure) = self.tenures.get_mut(&partition).filter(|tenure| tenure.token == token) {
            tenure.recorded = tenure.recorded.max(changes);
        }
    }

    /// A process is alive in this incarnation: what was counted against messages when an earlier one of it ended is taken back. Keys
    /// that wait for no other reason go on.
    pub fn absolve(&mut self, partition: Partition, incarnation: &Incarnation) {
        let ids: Vec<_> = self
            .tenures
            .get(&partition)
            .into_iter()
            .flat_map(|tenure| tenure.filters.values().copied())
            .collect();
        for id in ids {
            let Some(filter) = self.filters.get_mut(id) else {
                continue;
            };
            if absolve(&mut filter.deaths, |death| incarnation.outlives(death)) {
                self.changed(partition);
                self.let_go_on(id);
            }
        }
    }

    /// Keys that were condemned and are not any more.
    fn let_go_on(&mut self, id: FilterId) {
        let lanes: Vec<_> = self
            .filters
            .get(id)
            .into_iter()
            .flat_map(|filter| filter.keys.values().copied())
            .collect();
        for lane in lanes {
            let waits_for = self.lanes.get(lane).and_then(|lane| match &lane.state {
                State::Parked { until: None, burial } => Some(burial.sequence),
                _ => None,
            });
            if waits_for.is_some_and(|sequence| !self.is_condemned(id, sequence)) {
                self.set_state(lane, State::Ready);
                self.settle(lane);
            }
        }
    }

    /// Whether the first message of a lane may only run alone.
    pub(super) fn is_suspect(&self, id: LaneId) -> bool {
        let lane = self.lanes.get(id);
        let first = lane.and_then(|lane| Some((lane.filter, lane.first()?)));
        first.is_some_and(|(filter, sequence)| self.must_run_alone(filter, sequence))
    }

    /// Whether a message may only run alone, if it may run at all: it shares no run with others.
    pub(super) fn must_run_alone(&self, id: FilterId, sequence: u64) -> bool {
        let suspected = self
            .filters
            .get(id)
            .is_some_and(|filter| filter.deaths_of(sequence) >= FEW);
        suspected || self.is_condemned(id, sequence)
    }

    fn is_condemned(&self, id: FilterId, sequence: u64) -> bool {
        let most = usize::try_from(self.settings.max_kills.get()).unwrap_or(usize::MAX);
        self.filters
            .get(id)
            .is_some_and(|filter| filter.deaths_alone(sequence) >= most)
    }

    /// Parks a lane whose first message is condemned, or gives that message up, as the settings say. Whether it is.
    pub(super) fn condemn(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(id) else {
            return false;
        };
        let Some(sequence) = lane.first().filter(|&first| self.is_condemned(lane.filter, first)) else {
            return false;
        };
        let alone = self
            .filters
            .get(lane.filter)
            .map_or(0, |filter| filter.deaths_alone(sequence));
        let burial = Burial {
            run: RunId(self.next_id()),
            sequence,
            error: format!("its process died {alone} times while it ran this message and nothing else"),
            failures: 0,
            store_error: None,
        };
        if self.settings.dead_letter_killers {
            self.bury(id, burial);
        } else {
            self.set_state(id, State::Parked { until: None, burial });
            self.say_parked(id);
        }
        true
    }

    /// Starts a run, or withholds it until the record says so.
    pub(super) fn start(&mut self, run: Run<M>) {
        let messages = self.runs.get(&run.run).map_or(&[][..], |running| &running.messages);
        let delicate = messages.iter().any(|tried| {
            let filter = self.filters.get(tried.filter);
            filter.is_some_and(|filter| filter.is_delicate(tried.sequence))
        });
        if !delicate && !run.alone {
            self.actions.push_back(Action::Run(run));
            return;
        }
        let changes = self.changes(run.partition);
        self.care.unrecorded.insert(run.partition);
        self.care.withheld.insert(run.run, Withheld { run, changes });
    }

    /// Starts what was withheld and is recorded by now, and takes the next steps of the suspect whose turn it is.
    pub(super) fn dispatch_careful(&mut self) {
        match &self.care.solo {
            None if self.care.withheld.is_empty() => {}
            None | Some(Solo::Waiting(_)) => self.dispatch_recorded(),
            Some(Solo::Preparing(run, awaited)) => {
                let run = *run;
                if self.is_recorded(awaited) {
                    self.care.solo = Some(Solo::Running(run));
                    self.release(run);
                }
            }
            Some(Solo::Running(_)) => {}
            Some(Solo::Clearing(awaited)) => {
                if self.is_recorded(awaited) {
                    self.care.solo = None;
                }
            }
        }
    }

    fn dispatch_recorded(&mut self) {
        let recorded = |withheld: &Withheld<M>| {
            let tenure = self.tenures.get(&withheld.run.partition);
            tenure.is_some_and(|tenure| tenure.recorded >= withheld.changes)
        };
        let withheld = self.care.withheld.iter();
        let ready: Vec<_> = withheld.filter(|(_, w)| recorded(w)).map(|(&run, _)| run).collect();
        for run in ready {
            self.release(run);
        }
    }

    fn release(&mut self, run: RunId) {
        let replaced = |running: &Running| running.messages.iter().any(|tried| tried.replaced);
        if self.runs.get(&run).is_some_and(replaced) {
            // Another message was stored in the place of one before it began. The others take their turn again.
            self.drop_run(run);
        } else if let Some(withheld) = self.care.withheld.remove(&run) {
            self.actions.push_back(Action::Run(withheld.run));
        }
    }

    /// Whether the records are that far. Tenures that serve no more are not waited for: they write only once more, at their end.
    fn is_recorded(&self, awaited: &Awaited) -> bool {
        awaited.iter().all(|(&(partition, token), &changes)| {
            let tenure = self.tenures.get(&partition).filter(|tenure| tenure.token == token);
            tenure.is_none_or(|tenure| tenure.phase != Phase::Serving || tenure.recorded >= changes)
        })
    }

    /// It is the turn of a lane whose first message is suspected: from now on nothing starts before it has run.
    pub(super) fn wait_to_be_alone(&mut self, id: LaneId) {
        self.care.solo = Some(Solo::Waiting(id));
    }

    /// Prepares the suspect's run when nothing else runs. Whether it gives way to the others, because it is no suspect any more or not
    /// there.
    pub(super) fn gives_way(&mut self) -> bool {
        if let Some(Solo::Waiting(id)) = self.care.solo
            && self.runs.is_empty()
        {
            self.care.solo = None;
            self.prepare_alone(id);
            return self.care.solo.is_none();
        }
        false
    }

    /// Asks for the records that something waits for.
    pub(super) fn ask_for_records(&mut self) {
        for partition in std::mem::take(&mut self.care.unrecorded) {
            if self.phase(partition) == Some(Phase::Serving) {
                self.actions.push_back(Action::Record { partition });
            }
        }
    }

    fn prepare_alone(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(id).filter(|lane| lane.is_ready() && !lane.lined_up) else {
            return;
        };
        let Some(partition) = self.filters.get(lane.filter).map(|filter| filter.partition) else {
            return;
        };
        if !self.is_suspect(id) || self.phase(partition) != Some(Phase::Serving) || self.has_leftover(partition) {
            // It takes its turn with the others again, if it has one.
            return self.settle(id);
        }
        if self.condemn(id) {
            return;
        }
        let messages = self.front(id, 1);
        let Some(run) = self.run(partition, messages, true) else {
            return;
        };
        // What the records of other partitions last said to be started has ended by now: it must not be blamed.
        let mut awaited = Awaited::new();
        for (&partition, tenure) in &self.tenures {
            if tenure.phase == Phase::Serving && tenure.recorded < tenure.changes {
                awaited.insert((partition, tenure.token), tenure.changes);
                self.care.unrecorded.insert(partition);
            }
        }
        self.care.solo = Some(Solo::Preparing(run, awaited));
    }

    /// A run has ended. If it was alone, the others go on when the record says so.
    pub(super) fn ended_alone(&mut self, run: RunId, running: &Running) {
        let alone = matches!(&self.care.solo, Some(Solo::Preparing(other, _) | Solo::Running(other)) if *other == run);
        if !alone {
            return;
        }
        for tried in &running.messages {
            if let Some(filter) = self.filters.get_mut(tried.filter) {
                filter.alone = false;
            }
        }
        let (partition, token) = (running.partition, running.token);
        let changes = self.changes(partition);
        self.care.unrecorded.insert(partition);
        self.care.solo = Some(Solo::Clearing(Awaited::from([((partition, token), changes)])));
    }

    /// Drops the withheld runs of a partition: they have not begun.
    pub(super) fn drop_withheld(&mut self, partition: Partition) {
        let withheld = self.care.withheld.values();
        let runs: Vec<_> = withheld
            .filter(|withheld| withheld.run.partition == partition)
            .map(|withheld| withheld.run.run)
            .collect();
        for run in runs {
            self.drop_run(run);
        }
    }

    fn drop_run(&mut self, run: RunId) {
        self.care.withheld.remove(&run);
        let Some(running) = self.runs.remove(&run) else {
            return;
        };
        if let Some(tenure) = self.tenures.get_mut(&running.partition) {
            tenure.running -= 1;
            tenure.changes += 1;
        }
        self.ended_alone(run, &running);
        self.hand_back(&running);
        self.settle_all(&running);
    }
}
