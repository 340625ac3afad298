//! Virtual time, and everything that happens in it, in one order that a seed repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::time::Duration;

use jetring::engine::{Command, EngineSettings, Event, Retention, Stop, Ticket, WatchScope};
use jetring::ids::{Epoch, GroupName, MemberId, Partition};
use jetring::lanes::{self, Outcome, RunId};
use jetring::names::ConsumerName;
use jetring::partitioning::Partitions;

use crate::bucket::Bucket;
use crate::check::Check;
use crate::clock::Clock;
use crate::faults::Fault;
use crate::member::{Input, Member, Out, patience};
use crate::planted::Plant;
use crate::random::Random;
use crate::stream::Stream;
use crate::{ACK_WAIT, MILLI, SECOND};

/// What a run is made of.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) members: usize,
    pub(crate) partitions: u16,
    pub(crate) keys: u64,
    pub(crate) messages: u64,
    pub(crate) retention: Retention,
    /// How long faults happen.
    pub(crate) chaos: u64,
    /// How long it may take until all is well again.
    pub(crate) rest: u64,
    pub(crate) plant: Option<Plant>,
    pub(crate) history: bool,
}

impl Options {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xABCD);
        Self {
            members: random.between(2, 5) as usize,
            partitions: random.between(2, 7) as u16,
            keys: random.between(4, 16),
            messages: random.between(60, 200),
            retention: [Retention::Limits, Retention::WorkQueue, Retention::Interest][(seed % 3) as usize],
            chaos: random.between(20, 50) * SECOND,
            rest: 70 * SECOND,
            plant: None,
            history: false,
        }
    }
}

/// Something that will happen.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// Something arrives at a process.
    Input(usize, u64, Input),
    /// A request arrives at the server; it was sent at the given time.
    Request(usize, u64, u64, Ticket, Command),
    Pull(usize, u64, Partition, Epoch, usize),
    PullExpires(ConsumerName, u64),
    Ack(String),
    InProgress(String),
    Watch(usize, u64, u64, WatchScope),
    Redeliver(ConsumerName),
    HandlerEnds(usize, u64, RunId, Outcome),
    Timer(usize, u64),
    Publish,
    Fault(Fault),
}

/// A place where one process of a member id runs, or does not.
pub(crate) struct Slot {
    pub(crate) id: MemberId,
    pub(crate) member: Option<Member>,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) runs: BTreeSet<RunId>,
    pub(crate) frozen: bool,
    pub(crate) backlog: Vec<Happening>,
    /// Nothing gets through to the server, or from it, until then.
    pub(crate) cut_up: u64,
    pub(crate) cut_down: u64,
    /// The watch shows nothing until then.
    pub(crate) stalled: u64,
    pub(crate) last_delivery: u64,
    timer_at: Option<u64>,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) options: Options,
    pub(crate) random: Random,
    pub(crate) slots: Vec<Slot>,
    pub(crate) bucket: Bucket,
    pub(crate) stream: Stream,
    pub(crate) check: Check,
    pub(crate) watchers: Vec<(usize, u64, u64, WatchScope)>,
    pub(crate) calm: bool,
    pub(crate) pulls: u64,
    pub(crate) redeliveries: BTreeMap<ConsumerName, u64>,
    /// Boxed, for the queue moves its entries about.
    queue: BTreeMap<(u64, u64), Box<Happening>>,
    queued: u64,
    lives: u64,
    published: u64,
    ready: bool,
    steps: u64,
}

pub(crate) fn settings(id: &MemberId, options: &Options) -> EngineSettings {
    EngineSettings {
        group: GroupName::new("g").unwrap(),
        member: id.clone(),
        weight: 1,
        address: String::new(),
        partitions: Partitions::new(u64::from(options.partitions)).unwrap(),
        retention: options.retention,
        ring_seed: 0,
        virtual_nodes: NonZeroU16::new(16).unwrap(),
        session_timeout: Duration::from_secs(4),
        heartbeat_interval: Duration::from_secs(1),
        lease_margin: Duration::from_millis(540),
        rebalance_delay: Duration::from_millis(200),
        drain_timeout: Duration::from_secs(2),
        retry_interval: Duration::from_millis(250),
        reconcile_interval: Duration::from_secs(20),
    }
}

/// How long a cancelled handler may take to end.
const CANCEL_GRACE: Duration = Duration::from_millis(495);

pub(crate) fn lane_settings() -> lanes::Settings {
    lanes::Settings {
        concurrency: NonZeroUsize::new(6).unwrap(),
        max_held: NonZeroUsize::new(12).unwrap(),
        max_held_total: NonZeroUsize::new(40).unwrap(),
        max_bytes: NonZeroUsize::new(12).unwrap(),
        max_bytes_total: NonZeroUsize::new(40).unwrap(),
        lane_depth: NonZeroUsize::new(3).unwrap(),
        max_parked: NonZeroUsize::new(40).unwrap(),
        max_ranges: NonZeroUsize::new(100).unwrap(),
        idle_pull: NonZeroUsize::new(4).unwrap(),
        several_filters: false,
        ack_wait: Some(Duration::from_nanos(ACK_WAIT)),
        retry: lanes::Retry {
            initial: Duration::from_millis(20),
            max: Duration::from_secs(1),
            max_attempts: None,
        },
        // Members die here whatever they run.
        max_kills: NonZeroU32::MAX,
        dead_letter_killers: false,
        inspect_interval: None,
        ack_check_interval: Duration::from_nanos(ACK_WAIT),
        batch: lanes::BatchSettings::SINGLE,
    }
}

impl World {
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let slots = (0..options.members)
            .map(|number| Slot {
                id: MemberId::new(format!("m{number}")).unwrap(),
                member: None,
                life: 0,
                clock: Clock {
                    origin: random.between(0, 1_000_000) * SECOND,
                    rate: random.between(0, 6_000) as i64 - 3_000,
                },
                runs: BTreeSet::new(),
                frozen: false,
                backlog: Vec::new(),
                cut_up: 0,
                cut_down: 0,
                stalled: 0,
                last_delivery: 0,
                timer_at: None,
            })
            .collect();
        let mut world = Self {
            now: SECOND,
            stream: Stream::new(options.retention),
            slots,
            random,
            bucket: Bucket::default(),
            check: Check::default(),
            watchers: Vec::new(),
            calm: false,
            pulls: 0,
            redeliveries: BTreeMap::new(),
            queue: BTreeMap::new(),
            queued: 0,
            lives: 0,
            published: 0,
            ready: false,
            steps: 0,
            options,
        };
        world.plan();
        world
    }

    /// What is known beforehand.
    fn plan(&mut self) {
        for slot in 0..self.slots.len() {
            let at = if self.random.percent(70) {
                0
            } else {
                self.random.between(0, 10_000)
            };
            self.after(at * MILLI, Happening::Fault(Fault::Start(slot)));
        }
        for _ in 0..self.options.messages {
            let at = self.random.between(0, self.options.chaos);
            self.after(at, Happening::Publish);
        }
        self.plan_faults();
        self.after(self.options.chaos, Happening::Fault(Fault::Calm));
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(mut self) -> Result<Self, String> {
        let end = self.now + self.options.chaos + self.options.rest;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            if at > end {
                break;
            }
            self.now = at;
            self.steps += 1;
            if self.steps > 3_000_000 {
                self.check.fail("a hot loop: too many steps".to_owned());
            }
            self.happen(*happening);
            if let Some(violation) = self.check.violation.take() {
                self.tell(|| format!("VIOLATION {violation}"));
                return Err(violation);
            }
        }
        self.now = end;
        self.check_rest()?;
        Ok(self)
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.options.history {
            println!("{:>10.4} {}", self.now as f64 / SECOND as f64, what());
        }
    }

    pub(crate) fn at(&mut self, at: u64, happening: Happening) {
        self.queued += 1;
        self.queue.insert((at.max(self.now), self.queued), Box::new(happening));
    }

    pub(crate) fn after(&mut self, by: u64, happening: Happening) {
        self.at(self.now + by, happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Input(slot, life, input) => self.input(slot, life, input),
            Happening::HandlerEnds(slot, life, run, outcome) => self.handler_ends(slot, life, run, outcome),
            Happening::Timer(slot, life) => {
                if self.slots[slot].timer_at.is_some_and(|at| at <= self.now) {
                    self.slots[slot].timer_at = None;
                }
                self.input(slot, life, Input::Timer);
            }
            Happening::Publish => self.publish(),
            Happening::Fault(fault) => self.fault(fault),
            other => self.at_server(other),
        }
    }

    fn publish(&mut self) {
        let partitions = self.options.partitions;
        if self.options.retention == Retention::Interest && !self.ready {
            // Nobody wants its messages before the group says that it is ready.
            let wanted: BTreeSet<Partition> = self.stream.consumers.keys().map(|name| name.partition).collect();
            if wanted.len() < usize::from(partitions) {
                if !self.calm {
                    self.after(500 * MILLI, Happening::Publish);
                }
                return;
            }
            self.ready = true;
        }
        let key = self.random.between(0, self.options.keys);
        let partition = Partition((key % u64::from(partitions)) as u16);
        self.published += 1;
        let skipped = self.options.plant == Some(Plant::MessagesSkipped) && self.published == self.options.messages;
        let stored_under = if skipped { Partition(u16::MAX) } else { partition };
        let sequence = self.stream.publish(stored_under, key, self.now);
        self.check.published(partition, key, sequence);
        self.tell(|| format!("publish {sequence} key {key} partition {partition}"));
        self.serve_partition(partition);
    }

    pub(crate) fn start(&mut self, slot: usize) {
        if self.slots[slot].member.is_some() {
            return;
        }
        self.lives += 1;
        let life = self.lives;
        let place = &mut self.slots[slot];
        let settings = settings(&place.id, &self.options);
        place.life = life;
        place.runs.clear();
        place.timer_at = None;
        place.member = Some(Member::start(settings, life, place.clock, self.now, self.options.plant));
        self.tell(|| format!("m{slot} starts as life {life}"));
        self.after_input(slot);
    }

    /// The process is gone at once.
    pub(crate) fn end(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        place.member = None;
        place.frozen = false;
        place.backlog.clear();
        place.runs.clear();
        let life = place.life;
        self.check.life_ended(life);
        self.watchers.retain(|(_, other, ..)| *other != life);
    }

    pub(crate) fn input(&mut self, slot: usize, life: u64, input: Input) {
        let place = &mut self.slots[slot];
        if place.life != life || place.member.is_none() {
            return;
        }
        if place.frozen {
            place.backlog.push(Happening::Input(slot, life, input));
            return;
        }
        if self.options.history && !matches!(input, Input::Timer) {
            self.tell(|| format!("m{slot} <- {}", short(&format!("{input:?}"))));
        }
        if let Some(member) = self.slots[slot].member.as_mut() {
            member.take(self.now, input);
        }
        self.after_input(slot);
    }

    fn handler_ends(&mut self, slot: usize, life: u64, run: RunId, outcome: Outcome) {
        let place = &mut self.slots[slot];
        if place.life != life || place.member.is_none() {
            return;
        }
        if place.frozen {
            place.backlog.push(Happening::HandlerEnds(slot, life, run, outcome));
            return;
        }
        if !place.runs.remove(&run) {
            return;
        }
        self.check.ended(life, run, outcome == Outcome::Success);
        let told = match self.options.plant {
            Some(Plant::FailureIsSuccess) => Outcome::Success,
            _ => outcome,
        };
        self.input(slot, life, Input::HandlerEnded(run, told));
    }

    /// Carries out what a process wants.
    fn after_input(&mut self, slot: usize) {
        let life = self.slots[slot].life;
        let Some(member) = self.slots[slot].member.as_mut() else {
            return;
        };
        let (out, spins, stop, due) = (member.out(), member.spins, member.stop.clone(), member.due());
        for out in out {
            self.carry_out(slot, life, out);
        }
        if spins {
            self.check
                .fail(format!("m{slot} spins: a deadline was acted upon and is still due"));
        }
        if let Some(stop) = stop {
            return self.stopped(slot, &stop);
        }
        if let Some(due) = due {
            // A planted fault that never acts on its deadlines must not stop time.
            let least = if self.options.plant == Some(Plant::LeaseIgnored) {
                50 * MILLI
            } else {
                1
            };
            let due = due.max(self.now + least);
            if self.slots[slot].timer_at.is_none_or(|at| due < at) {
                self.slots[slot].timer_at = Some(due);
                self.at(due, Happening::Timer(slot, life));
            }
        }
    }

    fn stopped(&mut self, slot: usize, stop: &Stop) {
        self.tell(|| format!("m{slot} stops: {stop:?}"));
        if !self.slots[slot].runs.is_empty() {
            self.check
                .fail(format!("m{slot} stops ({stop:?}) and handlers still run"));
        }
        self.end(slot);
        let again = match stop {
            Stop::Left => !self.calm && self.random.percent(60),
            _ => true,
        };
        if again {
            let pause = self.random.between(500, 6_000);
            self.after(pause * MILLI, Happening::Fault(Fault::Start(slot)));
        }
    }

    fn carry_out(&mut self, slot: usize, life: u64, out: Out) {
        match out {
            Out::Request(ticket, command) => {
                self.tell(|| format!("m{slot} -> {}", short(&format!("{command:?}"))));
                let limit = self.slots[slot].clock.span(patience(&command));
                let unanswered = Input::Event(Event::Unanswered(ticket));
                self.after(limit, Happening::Input(slot, life, unanswered));
                let sent = self.now;
                self.send(slot, Happening::Request(slot, life, sent, ticket, command));
            }
            Out::Watch(number, scope) => self.send(slot, Happening::Watch(slot, life, number, scope)),
            Out::Pull(partition, epoch, messages, number) => {
                self.send(slot, Happening::Pull(slot, life, partition, epoch, messages));
                let silence = Input::Silence(partition, epoch, number);
                self.after(7 * SECOND, Happening::Input(slot, life, silence));
            }
            Out::Read(read, sequence) => {
                let found = self.stream.found(sequence);
                self.after(SECOND / 500, Happening::Input(slot, life, Input::Read(read, found)));
            }
            Out::Ack(_) if self.options.plant == Some(Plant::AcksLost) => {}
            Out::Ack(reply) => self.send(slot, Happening::Ack(reply)),
            Out::InProgress(reply) => self.send(slot, Happening::InProgress(reply)),
            Out::Start(run) => {
                self.excuse_the_frozen();
                let [attempt] = &run.attempts[..] else {
                    panic!("{} messages in a run without batches", run.attempts.len());
                };
                let (key, sequence) = (attempt.key.parse().unwrap(), attempt.stream_sequence);
                self.tell(|| format!("m{slot} runs {sequence} key {key} partition {}", run.partition));
                self.slots[slot].runs.insert(run.run);
                self.check.started(life, run.run, run.partition, key, sequence);
                let takes = match self.random.between(0, 100) {
                    _ if self.options.plant == Some(Plant::LeaseIgnored) => self.random.between(3_000, 9_000),
                    0..95 => self.random.between(1, 40),
                    _ => self.random.between(200, 4_000),
                };
                let failed = || Outcome::Retry {
                    after: None,
                    error: "no".to_owned(),
                };
                let fails = self.random.percent(8);
                let outcome = if fails { failed() } else { Outcome::Success };
                self.after(takes * MILLI, Happening::HandlerEnds(slot, life, run.run, outcome));
            }
            Out::Cancel(run) => {
                let grace = self.slots[slot].clock.span(CANCEL_GRACE);
                let takes = self.random.between(0, grace);
                self.after(takes, Happening::HandlerEnds(slot, life, run, Outcome::Cancelled));
            }
            Out::Opened(partition, token) => {
                self.tell(|| format!("m{slot} opens partition {partition} with token {token}"));
                self.check.opened(life, partition, token);
            }
            Out::Told(change) => self.tell(|| format!("m{slot} tells {change:?}")),
            Out::Overrun => self.tell(|| format!("m{slot} overruns")),
        }
    }

    /// A handler of a process that is frozen past its lease is the named exception.
    pub(crate) fn excuse_the_frozen(&mut self) {
        for slot in &self.slots {
            let Some(member) = slot.member.as_ref().filter(|_| slot.frozen) else {
                continue;
            };
            let over = member
                .engine
                .lease_end()
                .is_none_or(|end| slot.clock.world(end) <= self.now);
            if over {
                self.check.excuse(slot.life);
            }
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(260).collect()
}
