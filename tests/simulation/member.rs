//! One process: the shipped engine and lanes, and the little that the real driver does besides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jetring::engine::{Change, Command, Engine, EngineSettings, Event, Seen, Stop, Ticket, WatchScope};
use jetring::ids::{Epoch, Partition};
use jetring::junction::{Effect, Junction};
use jetring::lanes::{
    self, Action, ConsumerView, Delivered, Ended, Filter, Found, Lanes, Outcome, PullEnd, ReadId, Run, RunId,
};
use jetring::time::Time;

use crate::clock::Clock;
use crate::planted::Plant;

const CHECKPOINT: Duration = Duration::from_secs(1);
const DISCOVERY: Duration = Duration::from_secs(2);

/// The consumer that something is about.
pub(crate) type Of = (Partition, Filter, Epoch);

/// What comes in.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Event(Event),
    /// The watch of this number shows something.
    Seen(u64, Seen),
    Delivered(Of, Delivered<u64>),
    Undelivered(Of, usize),
    Lost(Of),
    /// The pull request of this number was not answered in time.
    Silence(Of, u64),
    Missing(Of),
    Inspected(Of, Option<ConsumerView>),
    HandlerEnded(RunId, Ended),
    /// The answer to the request of this number to store a dead letter.
    DeadLettered(RunId, u64, Result<(), String>),
    Read(ReadId, Found<u64>),
    /// Nothing has come of a read.
    ReadAgain(ReadId, u64),
    Leave,
    Reconnected,
    Timer,
}

/// What goes out.
#[derive(Debug)]
pub(crate) enum Out {
    Request(Ticket, Command),
    Watch(u64, WatchScope),
    Pull(Of, usize, u64),
    Inspect(Of),
    Ack(String),
    /// The end of a message that is stored as a dead letter.
    Terminate(String),
    InProgress(String),
    Start(Run<u64>),
    Cancel(RunId),
    /// Read a spilled message again.
    Read(ReadId, u64),
    /// Store this message as a dead letter.
    DeadLetter(RunId, u64, u64),
    Discover,
    Opened(Of),
    Told(Change),
    Overrun,
}

pub(crate) struct Member {
    pub(crate) junction: Junction<u64>,
    clock: Clock,
    now: Time,
    plant: Option<Plant>,
    /// The number of the last pull request for every filter.
    pulls: BTreeMap<(Partition, Filter), u64>,
    numbers: u64,
    checkpoint_at: Time,
    discover_at: Option<Time>,
    watch: u64,
    asked: BTreeSet<Ticket>,
    letters: BTreeMap<RunId, u64>,
    reads: BTreeSet<ReadId>,
    out: Vec<Out>,
    pub(crate) stop: Option<Stop>,
    /// A deadline that is not met although it was acted upon: the real loop would spin.
    pub(crate) spins: bool,
}

impl Member {
    pub(crate) fn start(
        settings: EngineSettings,
        lanes: lanes::Settings,
        life: u64,
        clock: Clock,
        world: u64,
        plant: Option<Plant>,
    ) -> Self {
        let now = clock.local(world);
        let discover_at = lanes.several_filters.then_some(now + DISCOVERY);
        let engine = Engine::new(settings, format!("life{life}"));
        let mut member = Self {
            junction: Junction::new(engine, Lanes::new(lanes, life)),
            clock,
            now,
            plant,
            pulls: BTreeMap::new(),
            numbers: 0,
            checkpoint_at: now + CHECKPOINT,
            discover_at,
            watch: 0,
            asked: BTreeSet::new(),
            letters: BTreeMap::new(),
            reads: BTreeSet::new(),
            out: Vec::new(),
            stop: None,
            spins: false,
        };
        member.junction.step(now, Event::Start);
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
        let deadlines = [self.junction.deadline(), checkpoint, self.discover_at];
        deadlines.into_iter().flatten().min().map(|at| self.clock.world(at))
    }

    pub(crate) fn take(&mut self, world: u64, input: Input) {
        self.now = self.now.max(self.clock.local(world));
        if self.stop.is_none() {
            self.take_one(input);
            self.settle();
        }
    }

    fn take_one(&mut self, input: Input) {
        let now = self.now;
        let junction = &mut self.junction;
        match input {
            Input::Event(event) => {
                if let Event::Done(ticket, _) | Event::Unanswered(ticket) = &event {
                    // Each is answered once: a late answer finds that the time-out was first.
                    if !self.asked.remove(ticket) {
                        return;
                    }
                }
                junction.step(now, event);
            }
            Input::Seen(watch, seen) if watch == self.watch => junction.step(now, Event::Seen(seen)),
            Input::Seen(..) | Input::Timer => {}
            Input::Delivered((partition, filter, epoch), delivered) => {
                if self.plant == Some(Plant::AckedAtOnce) {
                    self.out.push(Out::Ack(delivered.reply.to_string()));
                }
                junction.deliver(now, partition, &filter, epoch, delivered);
            }
            Input::Undelivered((partition, filter, epoch), count) => {
                let left = PullEnd {
                    messages: count,
                    bytes: count,
                    too_large: false,
                };
                junction.pull_ended(partition, &filter, epoch, left);
            }
            Input::Lost((partition, filter, epoch)) => junction.pulls_lost(partition, &filter, epoch),
            Input::Silence((partition, filter, epoch), number) => {
                if self.pulls.get(&(partition, filter.clone())) == Some(&number) {
                    junction.pulls_lost(partition, &filter, epoch);
                }
            }
            Input::Read(read, found) => {
                if self.reads.remove(&read) {
                    junction.read(read, found);
                }
            }
            Input::ReadAgain(read, sequence) => {
                if self.reads.contains(&read) {
                    self.out.push(Out::Read(read, sequence));
                }
            }
            Input::Missing((partition, filter, epoch)) => junction.missing(now, partition, &filter, epoch),
            Input::Inspected(..) if self.plant == Some(Plant::NoWatchdog) => {}
            Input::Inspected((partition, filter, epoch), view) => {
                junction.inspected(now, partition, &filter, epoch, view);
            }
            Input::HandlerEnded(run, ended) => junction.ended(now, run, ended),
            Input::DeadLettered(run, number, stored) => {
                if self.letters.get(&run) == Some(&number) {
                    self.letters.remove(&run);
                    junction.dead_lettered(now, run, stored);
                }
            }
            Input::Leave if self.plant == Some(Plant::StopsAtOnce) => self.stop = Some(Stop::Left),
            Input::Leave => junction.step(now, Event::Leave),
            Input::Reconnected => junction.reconnected(now),
        }
        self.follow();
    }

    fn settle(&mut self) {
        if self.plant != Some(Plant::NeverWoken) {
            self.junction.wake(self.now);
        }
        if self.now >= self.checkpoint_at {
            self.checkpoint_at = self.now + CHECKPOINT;
            self.junction.checkpoint(self.now);
        }
        if self.discover_at.is_some_and(|at| self.now >= at) {
            self.discover_at = Some(self.now + DISCOVERY);
            self.out.push(Out::Discover);
        }
        loop {
            let more = self.stop.is_none() && self.junction.dispatch(self.now);
            self.follow();
            if !more {
                break;
            }
        }
        let behind = self.junction.deadline().is_some_and(|at| self.now >= at);
        self.spins |= behind && self.stop.is_none();
    }

    /// Carries out what engine and lanes want done.
    fn follow(&mut self) {
        for effect in self.junction.effects() {
            match effect {
                Effect::Command(command) => self.carry_out(command),
                Effect::Action(action) => self.act(action),
                Effect::StartPull {
                    partition,
                    filter,
                    mut epoch,
                } => {
                    self.pulls.insert((partition, filter.clone()), 0);
                    if self.plant == Some(Plant::EpochForgotten) {
                        epoch.reopen = 0;
                    }
                    self.out.push(Out::Opened((partition, filter, epoch)));
                }
                Effect::StopPulls(partition) => self.pulls.retain(|(other, _), _| *other != partition),
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn act(&mut self, action: Action<u64>) {
        match action {
            Action::Run(mut run) => {
                if self.plant == Some(Plant::BatchReversed) {
                    run.attempts.reverse();
                }
                if self.plant == Some(Plant::EndedTooEarly) {
                    let ended = Outcome::Success.into();
                    self.junction.ended(self.now, run.run, ended);
                }
                self.out.push(Out::Start(run));
            }
            Action::Cancel { run } => self.out.push(Out::Cancel(run)),
            Action::Ack { reply } => self.out.push(Out::Ack(reply.to_string())),
            Action::Terminate { reply } => self.out.push(Out::Terminate(reply.to_string())),
            Action::InProgress { reply } => self.out.push(Out::InProgress(reply.to_string())),
            Action::Pull {
                partition,
                filter,
                epoch,
                messages,
                ..
            } => {
                if self.junction.pulled(partition, &filter) == Some(epoch) {
                    let number = self.number();
                    self.pulls.insert((partition, filter.clone()), number);
                    self.out.push(Out::Pull((partition, filter, epoch), messages, number));
                }
            }
            Action::Inspect {
                partition,
                filter,
                epoch,
            } => self.out.push(Out::Inspect((partition, filter, epoch))),
            Action::Read { read, sequence, .. } => {
                self.reads.insert(read);
                self.out.push(Out::Read(read, sequence));
            }
            Action::DeadLetter(letter) => {
                let number = self.number();
                self.letters.insert(letter.run, number);
                self.out.push(Out::DeadLetter(letter.run, number, letter.message));
            }
            // Only told. What the junction has seen to does not come.
            Action::Parked(_)
            | Action::Gone { .. }
            | Action::Reopen { .. }
            | Action::Record { .. }
            | Action::Drained { .. }
            | Action::Ended { .. } => {}
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Watch(scope) => {
                self.watch += 1;
                self.out.push(Out::Watch(self.watch, scope));
            }
            Command::Notify(change) => self.out.push(Out::Told(change)),
            Command::Overrun => self.out.push(Out::Overrun),
            Command::Stop(stop) => self.stop = Some(stop),
            mut request => {
                if let Some(plant) = self.plant {
                    plant.spoil(&mut request);
                }
                if let Some(ticket) = request.ticket() {
                    self.asked.insert(ticket);
                    self.out.push(Out::Request(ticket, request));
                }
            }
        }
    }

    pub(crate) fn is_serving(&self, partition: Partition) -> bool {
        let activity = self.junction.engine().activities().get(&partition).copied();
        matches!(activity, Some(jetring::Activity::Serving(_)))
    }
}

/// How long a request may take before it counts as not answered.
pub(crate) fn patience(command: &Command) -> Duration {
    match command {
        Command::ReadMember(..) | Command::WriteMember(..) | Command::PurgeMember(..) => Duration::from_secs(1),
        _ => Duration::from_secs(2),
    }
}
