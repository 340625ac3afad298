//! One process: the shipped engine and the shipped lanes, and a driver as small as can be that does what the real one does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jetring::engine::{Change, Command, Engine, EngineSettings, Event, ReopenReason, Seen, Stop, Ticket, WatchScope};
use jetring::ids::{Epoch, Partition};
use jetring::lanes::{Action, Delivered, Filter, Found, Lanes, Outcome, PullEnd, ReadId, Run, RunId};
use jetring::records::AssignmentRecord;
use jetring::time::Time;

use crate::clock::Clock;
use crate::planted::Plant;
use crate::world::lane_settings;

const CHECKPOINT: Duration = Duration::from_secs(1);

/// What comes in.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Event(Event),
    /// The watch of this number shows something.
    Seen(u64, Seen),
    Delivered(Partition, Epoch, Delivered<u64>),
    Undelivered(Partition, Epoch, usize),
    /// The pull request of this number was not answered in time.
    Silence(Partition, Epoch, u64),
    Missing(Partition, Epoch),
    HandlerEnded(RunId, Outcome),
    Read(ReadId, Found<u64>),
    Leave,
    Reconnected,
    Timer,
}

/// What goes out.
#[derive(Debug)]
pub(crate) enum Out {
    Request(Ticket, Command),
    Watch(u64, WatchScope),
    Pull(Partition, Epoch, usize, u64),
    Ack(String),
    InProgress(String),
    Start(Run<u64>),
    Cancel(RunId),
    /// Read a spilled message again.
    Read(ReadId, u64),
    Opened(Partition, jetring::FencingToken),
    Told(Change),
    Overrun,
}

pub(crate) struct Member {
    pub(crate) engine: Engine,
    pub(crate) lanes: Lanes<u64>,
    clock: Clock,
    now: Time,
    plant: Option<Plant>,
    pulls: BTreeMap<(Partition, Filter), (Epoch, u64)>,
    pulled: u64,
    saved: BTreeMap<Partition, u64>,
    checkpoint_at: Time,
    watch: u64,
    asked: BTreeSet<Ticket>,
    out: Vec<Out>,
    queue: Vec<Input>,
    pub(crate) stop: Option<Stop>,
    /// A deadline that is not met although it was acted upon: the real loop would spin.
    pub(crate) spins: bool,
}

impl Member {
    pub(crate) fn start(settings: EngineSettings, life: u64, clock: Clock, world: u64, plant: Option<Plant>) -> Self {
        let now = clock.local(world);
        let mut member = Self {
            engine: Engine::new(settings, format!("life{life}")),
            lanes: Lanes::new(lane_settings(), life),
            clock,
            now,
            plant,
            pulls: BTreeMap::new(),
            pulled: 0,
            saved: BTreeMap::new(),
            checkpoint_at: now + CHECKPOINT,
            watch: 0,
            asked: BTreeSet::new(),
            out: Vec::new(),
            queue: Vec::new(),
            stop: None,
            spins: false,
        };
        member.step(Event::Start);
        member.settle();
        member
    }

    /// Everything that has gone out since.
    pub(crate) fn out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    /// When something falls due, in world time.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.stop.is_some() {
            return None;
        }
        let checkpoint = (!self.pulls.is_empty()).then_some(self.checkpoint_at);
        let deadlines = [self.engine.deadline(), self.lanes.deadline(), checkpoint];
        deadlines.into_iter().flatten().min().map(|at| self.clock.world(at))
    }

    pub(crate) fn take(&mut self, world: u64, input: Input) {
        self.now = self.now.max(self.clock.local(world));
        self.queue.push(input);
        while !self.queue.is_empty() && self.stop.is_none() {
            for input in std::mem::take(&mut self.queue) {
                self.take_one(input);
            }
            self.settle();
        }
    }

    fn take_one(&mut self, input: Input) {
        match input {
            Input::Event(event) => {
                if let Event::Done(ticket, _) | Event::Unanswered(ticket) = &event {
                    // Each is answered once: a late answer finds that the time-out was first.
                    if !self.asked.remove(ticket) {
                        return;
                    }
                }
                self.step(event);
            }
            Input::Seen(watch, seen) if watch == self.watch => self.step(Event::Seen(seen)),
            Input::Seen(..) | Input::Timer => {}
            Input::Delivered(partition, epoch, delivered) => {
                let filter = crate::stream::filter(partition);
                self.lanes.deliver(self.now, partition, &filter, epoch, delivered);
            }
            Input::Undelivered(partition, epoch, count) => {
                let filter = crate::stream::filter(partition);
                let left = PullEnd {
                    messages: count,
                    bytes: count,
                    too_large: false,
                };
                self.lanes.pull_ended(partition, &filter, epoch, left);
            }
            Input::Silence(partition, epoch, number) => {
                let filter = crate::stream::filter(partition);
                if self.pulls.get(&(partition, filter.clone())) == Some(&(epoch, number)) {
                    self.lanes.pulls_lost(partition, &filter, epoch);
                }
            }
            Input::Read(read, found) => self.lanes.read(read, found),
            Input::Missing(partition, epoch) => self.reopen(partition, epoch, ReopenReason::Missing),
            Input::HandlerEnded(run, outcome) => self.lanes.ended(self.now, run, outcome),
            Input::Leave => self.step(Event::Leave),
            Input::Reconnected => {
                for ((partition, filter), (epoch, _)) in self.pulls.clone() {
                    self.lanes.pulls_lost(partition, &filter, epoch);
                }
                self.step(Event::Reconnected);
            }
        }
    }

    fn reopen(&mut self, partition: Partition, epoch: Epoch, reason: ReopenReason) {
        let filter = crate::stream::filter(partition);
        let Some(floor) = self.lanes.floor(partition, &filter) else {
            return;
        };
        self.step(Event::Reopen {
            partition,
            filter,
            epoch,
            floor,
            reason,
        });
    }

    fn step(&mut self, event: Event) {
        if self.plant == Some(Plant::LeaseIgnored) && event == Event::Wake {
            return;
        }
        for command in self.engine.step(self.now, event) {
            self.carry_out(command);
        }
    }

    fn settle(&mut self) {
        if self.engine.deadline().is_some_and(|at| self.now >= at) {
            self.step(Event::Wake);
            let behind = self.engine.deadline().is_some_and(|at| self.now >= at);
            self.spins |= behind && self.stop.is_none() && self.plant != Some(Plant::LeaseIgnored);
        }
        self.checkpoint();
        self.lanes.wake(self.now);
        loop {
            let allowed = self.engine.may_dispatch(self.now) || self.plant == Some(Plant::LeaseIgnored);
            if allowed && self.stop.is_none() {
                self.lanes.dispatch();
            }
            let actions: Vec<_> = self.lanes.actions().collect();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.act(action);
            }
        }
    }

    fn checkpoint(&mut self) {
        if self.now < self.checkpoint_at {
            return;
        }
        self.checkpoint_at = self.now + CHECKPOINT;
        let partitions: BTreeSet<Partition> = self.pulls.keys().map(|(partition, _)| *partition).collect();
        for partition in partitions {
            if self.saved.get(&partition) != Some(&self.lanes.changes(partition)) {
                self.save(partition, false);
            }
        }
    }

    fn save(&mut self, partition: Partition, urgent: bool) {
        let changes = self.lanes.changes(partition);
        self.saved.insert(partition, changes);
        let mut marks = self.lanes.progress(partition);
        if self.plant == Some(Plant::ProgressAhead) {
            marks.values_mut().for_each(|marks| marks.floor.sequence += 20);
        }
        self.step(Event::Checkpoint {
            partition,
            marks,
            changes,
            urgent,
        });
    }

    fn act(&mut self, action: Action<u64>) {
        match action {
            Action::Run(run) => self.out.push(Out::Start(run)),
            Action::Cancel { run } => self.out.push(Out::Cancel(run)),
            Action::Ack { reply } | Action::Terminate { reply } => self.out.push(Out::Ack(reply.to_string())),
            Action::InProgress { reply } => self.out.push(Out::InProgress(reply.to_string())),
            Action::Pull {
                partition,
                filter,
                epoch,
                messages,
                ..
            } => {
                if let Some((pulled, number)) = self.pulls.get_mut(&(partition, filter))
                    && *pulled == epoch
                {
                    self.pulled += 1;
                    *number = self.pulled;
                    self.out.push(Out::Pull(partition, epoch, messages, *number));
                }
            }
            Action::Reopen { partition, epoch, .. } => self.reopen(partition, epoch, ReopenReason::Gap),
            // The settings ask for no watchdog.
            Action::Inspect { .. } => {}
            Action::Drained { partition, marks, .. } => {
                self.pulls.retain(|(other, _), _| *other != partition);
                self.lanes.close(partition);
                self.saved.remove(&partition);
                self.step(Event::Drained { partition, marks });
            }
            Action::Ended { partition, token } => self.step(Event::Ended { partition, token }),
            Action::Record { partition } => self.save(partition, true),
            Action::Read { read, sequence, .. } => self.out.push(Out::Read(read, sequence)),
            // No message is given up here, and one that is gone counts as finished.
            Action::DeadLetter(_) | Action::Parked(_) | Action::Gone { .. } => {}
        }
    }

    fn truncate(&mut self, partition: Partition, last: u64) {
        for (filter, marks) in self.lanes.progress(partition) {
            let pull = self.pulls.get(&(partition, filter.clone())).copied();
            if let (true, Some((epoch, _))) = (marks.highest() > last, pull) {
                self.lanes.truncate(partition, &filter, last);
                self.reopen(partition, epoch, ReopenReason::StreamShrunk);
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Watch(scope) => {
                self.watch += 1;
                self.out.push(Out::Watch(self.watch, scope));
            }
            Command::Open {
                partition,
                filter,
                epoch,
                marks,
                careful_until,
            } => {
                self.out.push(Out::Opened(partition, epoch.token));
                self.pulls.insert((partition, filter.clone()), (epoch, 0));
                self.lanes.open(partition, filter.clone(), epoch, marks);
                self.lanes.be_careful(partition, &filter, careful_until);
            }
            Command::Reopen {
                partition,
                filter,
                epoch,
            } => {
                self.pulls.insert((partition, filter.clone()), (epoch, 0));
                self.lanes.reopen(partition, &filter, epoch);
            }
            Command::Truncate(partition, last) => self.truncate(partition, last),
            Command::Recorded(partition, token, changes) => self.lanes.recorded(partition, token, changes),
            Command::Absolve(partition, incarnation) => self.lanes.absolve(partition, &incarnation),
            Command::Drain(partition) => self.lanes.stop(partition),
            Command::CancelHandlers(partition) => self.lanes.cancel(partition),
            Command::Close(..) if self.plant == Some(Plant::LeaseIgnored) => {}
            Command::Close(partition, token) => {
                self.pulls.retain(|(other, _), _| *other != partition);
                self.saved.remove(&partition);
                self.lanes.close(partition);
                if self.lanes.running(partition) == 0 {
                    self.queue.push(Input::Event(Event::Ended { partition, token }));
                }
            }
            Command::Notify(change) => self.out.push(Out::Told(change)),
            Command::Overrun => self.out.push(Out::Overrun),
            Command::Stop(stop) => self.stop = Some(stop),
            request => self.request(request),
        }
    }

    fn request(&mut self, mut command: Command) {
        match (self.plant, &mut command) {
            (Some(Plant::NameReused), Command::CreateConsumer(_, spec)) => spec.name.epoch.reopen = 0,
            (Some(Plant::PlanUneven), Command::WriteAssignment(_, AssignmentRecord { owners, .. }, _)) => {
                owners.fill(0);
            }
            _ => {}
        }
        if let Some(ticket) = ticket(&command) {
            self.asked.insert(ticket);
            self.out.push(Out::Request(ticket, command));
        }
    }

    pub(crate) fn is_serving(&self, partition: Partition) -> bool {
        let activity = self.engine.activities().get(&partition).copied();
        matches!(activity, Some(jetring::Activity::Serving(_)))
    }
}

/// The ticket of a command that is answered.
fn ticket(command: &Command) -> Option<Ticket> {
    match command {
        Command::Prepare(ticket)
        | Command::ReadMember(ticket, ..)
        | Command::WriteMember(ticket, ..)
        | Command::PurgeMember(ticket, ..)
        | Command::ReadGroup(ticket)
        | Command::ReadAssignment(ticket)
        | Command::WriteAssignment(ticket, ..)
        | Command::ReadClaim(ticket, ..)
        | Command::ReadClaims(ticket)
        | Command::WriteClaim(ticket, ..)
        | Command::ReadProgress(ticket, ..)
        | Command::WriteProgress(ticket, ..)
        | Command::Survey(ticket)
        | Command::FindReplaced(ticket, ..)
        | Command::InspectConsumer(ticket, ..)
        | Command::CreateConsumer(ticket, ..)
        | Command::DeleteConsumer(ticket, ..) => Some(*ticket),
        _ => None,
    }
}

/// How long a request may take before it counts as not answered.
pub(crate) fn patience(command: &Command) -> Duration {
    match command {
        Command::ReadMember(..) | Command::WriteMember(..) | Command::PurgeMember(..) => Duration::from_secs(1),
        _ => Duration::from_secs(2),
    }
}
