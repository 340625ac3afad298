//! Where engine and lanes meet: what the one asks for and only the other can do.
//!
//! ```text
//!  inputs ──▶ engine ──commands──▶ ┐                    ┌──▶ effects ──▶ driver
//!               ▲ ▲                ├─ about delivery ─┐ │
//!               │ └── drained, ended, checkpoints ──┐ ▼ │
//!  inputs ──────┼──────────────────────────────▶ lanes ─┘
//!               └── reopen: a gap, a consumer that is gone
//! ```
//!
//! Pure like both of them: no clock, no socket, no task. The driver carries out the [`Effect`]s that are left; the simulator runs
//! this very code.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::engine::{Command, Engine, Event, ReopenReason};
use crate::ids::{Epoch, Partition};
use crate::lanes::{Action, ConsumerView, Delivered, Ended, Filter, Found, Lanes, PullEnd, ReadId, Reopening, RunId};
use crate::time::Time;

/// What is left to be done outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<M> {
    /// Of the engine: a request, the watch, a notice, the end. What is about delivery inside the member is done already.
    Command(Command),
    /// Of the lanes: handlers, answers to the server, pulls, reads, dead letters. [`Action::Reopen`] is only told.
    Action(Action<M>),
    /// Pull from the consumer of this epoch, in place of the filter's former one.
    StartPull {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The epoch, which with group, partition and filter names the consumer.
        epoch: Epoch,
    },
    /// Pull from no consumer of a partition any more.
    StopPulls(Partition),
}

/// The engine and the lanes of one member.
#[derive(Debug)]
pub struct Junction<M> {
    engine: Engine,
    lanes: Lanes<M>,
    /// The consumer that every open filter is pulled from.
    pulled: BTreeMap<(Partition, Filter), Epoch>,
    /// The number of a partition's marks that were last handed to the engine for saving.
    saved: BTreeMap<Partition, u64>,
    effects: Vec<Effect<M>>,
}

impl<M: Clone> Junction<M> {
    /// Joins the two.
    pub fn new(engine: Engine, lanes: Lanes<M>) -> Self {
        Self {
            engine,
            lanes,
            pulled: BTreeMap::new(),
            saved: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The lanes.
    pub fn lanes(&self) -> &Lanes<M> {
        &self.lanes
    }

    /// The epoch of the consumer that a filter is pulled from.
    pub fn pulled(&self, partition: Partition, filter: &Filter) -> Option<Epoch> {
        self.pulled.get(&(partition, filter.clone())).copied()
    }

    /// When something is due at the latest.
    pub fn deadline(&self) -> Option<Time> {
        [self.engine.deadline(), self.lanes.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes what is to be done, in order.
    pub fn effects(&mut self) -> Vec<Effect<M>> {
        std::mem::take(&mut self.effects)
    }

    /// Hands the engine one event.
    pub fn step(&mut self, now: Time, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for command in self.engine.step(now, event) {
                events.extend(self.carry_out(command));
            }
        }
    }

    /// Does what is due. Handlers start only by [`dispatch`](Self::dispatch).
    pub fn wake(&mut self, now: Time) {
        if self.engine.deadline().is_some_and(|at| now >= at) {
            self.step(now, Event::Wake);
        }
        self.lanes.wake(now);
    }

    /// Starts the handlers that can start while the lease is in force at `now`, and does what the lanes ask for. Whether there was
    /// anything: then more may follow from it.
    pub fn dispatch(&mut self, now: Time) -> bool {
        if self.engine.may_dispatch(now) {
            self.lanes.dispatch();
        }
        let actions: Vec<_> = self.lanes.actions().collect();
        let any = !actions.is_empty();
        for action in actions {
            self.act(now, action);
        }
        any
    }

    /// Hands the engine what the lanes have finished since the last time.
    pub fn checkpoint(&mut self, now: Time) {
        let partitions: BTreeSet<Partition> = self.pulled.keys().map(|(partition, _)| *partition).collect();
        for partition in partitions {
            if self.saved.get(&partition) != Some(&self.lanes.changes(partition)) {
                self.save(now, partition, false);
            }
        }
    }

    /// The connection was lost and made again: what was asked for will not come.
    pub fn reconnected(&mut self, now: Time) {
        for ((partition, filter), epoch) in &self.pulled {
            self.lanes.pulls_lost(*partition, filter, *epoch);
        }
        self.step(now, Event::Reconnected);
    }

    /// A delivery.
    pub fn deliver(&mut self, now: Time, partition: Partition, filter: &Filter, epoch: Epoch, delivered: Delivered<M>) {
        self.lanes.deliver(now, partition, filter, epoch, delivered);
    }

    /// A pull request has ended.
    pub fn pull_ended(&mut self, partition: Partition, filter: &Filter, epoch: Epoch, end: PullEnd) {
        self.lanes.pull_ended(partition, filter, epoch, end);
    }

    /// Whatever was asked of a consumer will not come.
    pub fn pulls_lost(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        self.lanes.pulls_lost(partition, filter, epoch);
    }

    /// The server says that a consumer does not exist.
    pub fn missing(&mut self, now: Time, partition: Partition, filter: &Filter, epoch: Epoch) {
        self.reopen(now, partition, filter, epoch, ReopenReason::Missing);
    }

    /// How far a consumer is; `None`: there is none.
    pub fn inspected(
        &mut self,
        now: Time,
        partition: Partition,
        filter: &Filter,
        epoch: Epoch,
        view: Option<ConsumerView>,
    ) {
        match view {
            Some(view) => self.lanes.inspected(now, partition, filter, epoch, view),
            None => self.missing(now, partition, filter, epoch),
        }
    }

    /// The stream's leader answers, and nobody answers for the consumer.
    pub fn leaderless(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        self.lanes.leaderless(partition, filter, epoch);
    }

    /// A handler has ended.
    pub fn ended(&mut self, now: Time, run: RunId, ended: Ended) {
        self.lanes.ended(now, run, ended);
    }

    /// A dead letter is stored, or could not be.
    pub fn dead_lettered(&mut self, now: Time, run: RunId, stored: Result<(), String>) {
        self.lanes.dead_lettered(now, run, stored);
    }

    /// A spilled message was read again, or is gone.
    pub fn read(&mut self, read: ReadId, found: Found<M>) {
        self.lanes.read(read, found);
    }

    fn reopen(&mut self, now: Time, partition: Partition, filter: &Filter, epoch: Epoch, reason: ReopenReason) {
        let Some(floor) = self.lanes.floor(partition, filter) else {
            return;
        };
        let event = Event::Reopen {
            partition,
            filter: filter.clone(),
            epoch,
            floor,
            reason,
        };
        self.step(now, event);
    }

    /// Has the lanes forget what lies beyond the stream's end; the filters that this touches have to be re-opened.
    fn truncate(&mut self, partition: Partition, last: u64) -> Vec<Event> {
        let mut touched = Vec::new();
        for (filter, marks) in self.lanes.progress(partition) {
            let epoch = self.pulled(partition, &filter);
            if let (true, Some(epoch)) = (marks.highest() > last, epoch) {
                self.lanes.truncate(partition, &filter, last);
                let Some(floor) = self.lanes.floor(partition, &filter) else {
                    continue;
                };
                touched.push(Event::Reopen {
                    partition,
                    filter,
                    epoch,
                    floor,
                    reason: ReopenReason::StreamShrunk,
                });
            }
        }
        touched
    }

    fn save(&mut self, now: Time, partition: Partition, urgent: bool) {
        let changes = self.lanes.changes(partition);
        self.saved.insert(partition, changes);
        let event = Event::Checkpoint {
            partition,
            marks: self.lanes.progress(partition),
            changes,
            urgent,
        };
        self.step(now, event);
    }

    fn stop_pulls(&mut self, partition: Partition) {
        self.pulled.retain(|(other, _), _| *other != partition);
        self.saved.remove(&partition);
        self.effects.push(Effect::StopPulls(partition));
    }

    fn start_pull(&mut self, partition: Partition, filter: Filter, epoch: Epoch) {
        self.pulled.insert((partition, filter.clone()), epoch);
        self.effects.push(Effect::StartPull {
            partition,
            filter,
            epoch,
        });
    }

    /// Does what a command is about inside the member, and hands the others on. What the engine must be told of it follows.
    fn carry_out(&mut self, command: Command) -> Vec<Event> {
        let lanes = &mut self.lanes;
        match command {
            Command::Open {
                partition,
                filter,
                epoch,
                marks,
                careful_until,
            } => {
                lanes.open(partition, filter.clone(), epoch, marks);
                lanes.be_careful(partition, &filter, careful_until);
                self.start_pull(partition, filter, epoch);
            }
            Command::Reopen {
                partition,
                filter,
                epoch,
            } => {
                lanes.reopen(partition, &filter, epoch);
                self.start_pull(partition, filter, epoch);
            }
            Command::Truncate(partition, last) => return self.truncate(partition, last),
            Command::Recorded(partition, token, changes) => lanes.recorded(partition, token, changes),
            Command::Absolve(partition, incarnation) => lanes.absolve(partition, &incarnation),
            Command::Drain(partition) => lanes.stop(partition),
            Command::CancelHandlers(partition) => lanes.cancel(partition),
            Command::Close(partition, token) => {
                lanes.close(partition);
                let quiet = lanes.running(partition) == 0;
                self.stop_pulls(partition);
                if quiet {
                    // Also where the lanes had drained it already and so say nothing more.
                    return vec![Event::Ended { partition, token }];
                }
            }
            other => self.effects.push(Effect::Command(other)),
        }
        Vec::new()
    }

    fn act(&mut self, now: Time, action: Action<M>) {
        match action {
            Action::Reopen {
                partition,
                ref filter,
                epoch,
                reason,
            } => {
                let filter = filter.clone();
                self.effects.push(Effect::Action(action));
                let reason = match reason {
                    Reopening::Gap(_) | Reopening::Swallowed { .. } => ReopenReason::Gap,
                    Reopening::Stuck { .. } => ReopenReason::Stuck,
                    Reopening::Leaderless => ReopenReason::Leaderless,
                    Reopening::LostAcks { .. } => ReopenReason::LostAcks,
                };
                self.reopen(now, partition, &filter, epoch, reason);
            }
            Action::Record { partition } => self.save(now, partition, true),
            Action::Drained { partition, marks, .. } => {
                self.stop_pulls(partition);
                self.lanes.close(partition);
                self.step(now, Event::Drained { partition, marks });
            }
            Action::Ended { partition, token } => self.step(now, Event::Ended { partition, token }),
            other => self.effects.push(Effect::Action(other)),
        }
    }
}
