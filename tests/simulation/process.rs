//! The places where members' processes run, and carrying out what they want.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::time::Duration;

use jetring::engine::{EngineSettings, Event, Stop};
use jetring::ids::{MemberId, Partition};
use jetring::lanes::{self, BatchSettings, Ended, Outcome, Run, RunId};
use jetring::partitioning::Partitions;

use crate::check::InHand;
use crate::clock::Clock;
use crate::course::Course;
use crate::member::{Input, Member, Out, patience};
use crate::planted::Plant;
use crate::random::Random;
use crate::subjects::group;
use crate::world::{Happening, Request, World};
use crate::{ACK_WAIT, MILLI, SECOND};

/// How long a cancelled handler may take to end.
const CANCEL_GRACE: Duration = Duration::from_millis(495);

/// A place where one process of a member id runs, or does not.
pub(crate) struct Slot {
    pub(crate) id: MemberId,
    pub(crate) weight: u16,
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
    /// How long after it has left it comes back.
    pub(crate) back: Option<u64>,
    timer_at: Option<u64>,
}

impl Slot {
    pub(crate) fn new(number: usize, weight: u16, plant: Option<Plant>, random: &mut Random) -> Self {
        let rate = match plant {
            // A third slower than the others, which nothing makes up for.
            Some(Plant::ClockTooSlow) if number == 0 => -350_000,
            _ => random.between(0, 6_000) as i64 - 3_000,
        };
        Self {
            id: MemberId::new(format!("m{number}")).unwrap(),
            weight,
            member: None,
            life: 0,
            clock: Clock {
                origin: random.between(0, 1_000_000) * SECOND,
                rate,
            },
            runs: BTreeSet::new(),
            frozen: false,
            backlog: Vec::new(),
            cut_up: 0,
            cut_down: 0,
            stalled: 0,
            last_delivery: 0,
            back: None,
            timer_at: None,
        }
    }

    pub(crate) fn timer_met(&mut self, now: u64) {
        if self.timer_at.is_some_and(|at| at <= now) {
            self.timer_at = None;
        }
    }
}

fn engine_settings(slot: &Slot, course: &Course) -> EngineSettings {
    EngineSettings {
        group: group(),
        member: slot.id.clone(),
        weight: slot.weight,
        address: String::new(),
        partitions: Partitions::new(u64::from(course.partitions)).unwrap(),
        retention: course.kind.into(),
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

fn lane_settings(course: &Course) -> lanes::Settings {
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
        several_filters: course.by_key,
        ack_wait: Some(Duration::from_nanos(ACK_WAIT)),
        retry: lanes::Retry {
            initial: Duration::from_millis(20),
            max: Duration::from_secs(1),
            max_attempts: NonZeroU32::new(course.attempts),
        },
        // Members die here whatever they run.
        max_kills: NonZeroU32::MAX,
        dead_letter_killers: false,
        inspect_interval: Some(Duration::from_secs(4)),
        ack_check_interval: Duration::from_secs(20),
        batch: match course.batches {
            None => BatchSettings::SINGLE,
            Some(batches) => BatchSettings {
                scope: batches.into(),
                max_messages: NonZeroUsize::new(4).unwrap(),
                max_wait: Duration::from_millis(30),
            },
        },
    }
}

impl World {
    pub(crate) fn start(&mut self, slot: usize) {
        if self.slots[slot].member.is_some() {
            return;
        }
        self.lives += 1;
        let life = self.lives;
        let place = &mut self.slots[slot];
        let (engine, lanes) = (engine_settings(place, &self.course), lane_settings(&self.course));
        place.life = life;
        place.runs.clear();
        place.timer_at = None;
        let member = Member::start(engine, lanes, life, place.clock, self.now, self.course.plant);
        place.member = Some(member);
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
        if self.history && !matches!(input, Input::Timer) {
            self.tell(|| format!("m{slot} <- {}", short(&format!("{input:?}"))));
        }
        if let Some(member) = self.slots[slot].member.as_mut() {
            member.take(self.now, input);
        }
        self.after_input(slot);
    }

    pub(crate) fn handler_ends(&mut self, slot: usize, life: u64, run: RunId, ended: Ended) {
        let place = &mut self.slots[slot];
        if place.life != life || place.member.is_none() {
            return;
        }
        if place.frozen {
            place.backlog.push(Happening::HandlerEnds(slot, life, run, ended));
            return;
        }
        if !place.runs.remove(&run) {
            return;
        }
        let finished = match ended.then {
            Outcome::Success => self.check.in_hand(life, run),
            _ => ended.finished,
        };
        let failed = matches!(ended.then, Outcome::Retry { .. });
        self.check.ended(life, run, finished, failed);
        let told = match (self.course.plant, ended.then) {
            (Some(Plant::FailureIsSuccess), _) => Outcome::Success.into(),
            (Some(Plant::FailureIsRejection), Outcome::Retry { error, .. }) => Ended {
                finished: ended.finished,
                then: Outcome::Reject { error },
            },
            (_, then) => Ended {
                finished: ended.finished,
                then,
            },
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
            let due = due.max(self.now + 1);
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
            // One that was asked to leave just before may be among those that are to be there in the end.
            Stop::Left if self.calm => self.course.in_the_end.contains(&slot).then_some(1_000),
            Stop::Left => self.slots[slot].back.take(),
            Stop::Duplicate { .. } => Some(2_000),
            // Refused: trying again would end the same way.
            _ => None,
        };
        if let Some(pause) = again {
            self.after(pause * MILLI, Happening::Step(crate::course::Step::Start(slot)));
        }
    }

    fn carry_out(&mut self, slot: usize, life: u64, out: Out) {
        let request = match out {
            Out::Request(ticket, command) => {
                self.tell(|| format!("m{slot} -> {}", short(&format!("{command:?}"))));
                let limit = self.slots[slot].clock.span(patience(&command));
                let unanswered = Input::Event(Event::Unanswered(ticket));
                self.after(limit, Happening::Input(slot, life, unanswered));
                Request::Command(self.now, ticket, command)
            }
            Out::Watch(number, scope) => Request::Watch(number, scope),
            Out::Pull(of, messages, number) => {
                let silence = Input::Silence(of.clone(), number);
                self.after(7 * SECOND, Happening::Input(slot, life, silence));
                Request::Pull(of, messages)
            }
            Out::Inspect(of) => Request::Inspect(of),
            Out::Read(read, sequence) => {
                let again = Input::ReadAgain(read, sequence);
                self.after(SECOND, Happening::Input(slot, life, again));
                Request::Read(read, sequence)
            }
            Out::DeadLetter(run, number, id) => {
                let late = Input::DeadLettered(run, number, Err("no answer".to_owned()));
                self.after(2 * SECOND, Happening::Input(slot, life, late));
                Request::DeadLetter(run, number, id)
            }
            Out::Discover => Request::Discover,
            Out::Ack(_) if self.course.plant == Some(Plant::AcksLost) => return,
            Out::Ack(reply) | Out::Terminate(reply) => Request::Ack(reply),
            Out::InProgress(reply) => Request::InProgress(reply),
            Out::Start(run) => return self.run_handler(slot, life, run),
            Out::Cancel(run) => {
                let grace = self.slots[slot].clock.span(CANCEL_GRACE);
                let takes = self.random.between(0, grace);
                let cancelled = Outcome::Cancelled.into();
                return self.after(takes, Happening::HandlerEnds(slot, life, run, cancelled));
            }
            Out::Opened(of) => {
                self.tell(|| format!("m{slot} opens {} of partition {} in epoch {}", of.1, of.0, of.2));
                return self.check.opened(life, &of);
            }
            Out::Told(change) => return self.tell(|| format!("m{slot} tells {change:?}")),
            Out::Overrun => return self.tell(|| format!("m{slot} overruns")),
        };
        self.send(slot, life, request);
    }

    fn run_handler(&mut self, slot: usize, life: u64, run: Run<u64>) {
        self.excuse_the_frozen();
        let in_hand = |attempt: &lanes::Attempt<u64>| InHand {
            key: attempt.key.parse().unwrap(),
            sequence: attempt.stream_sequence,
            id: attempt.message,
        };
        let messages: Vec<InHand> = run.attempts.iter().map(in_hand).collect();
        self.tell(|| format!("m{slot} runs {messages:?} of partition {}", run.partition));
        self.slots[slot].runs.insert(run.run);
        self.check.started(life, run.run, run.partition, messages.clone());
        let slow = self.course.plant == Some(Plant::ClockTooSlow);
        let takes = match self.random.between(0, 100) {
            _ if slow => self.random.between(3_000, 9_000),
            0..95 => self.random.between(1, 40),
            _ => self.random.between(200, 4_000),
        };
        let ended = self.outcome(&messages);
        self.after(takes * MILLI, Happening::HandlerEnds(slot, life, run.run, ended));
    }

    /// What a handler will make of its messages.
    fn outcome(&mut self, messages: &[InHand]) -> Ended {
        for (finished, message) in messages.iter().enumerate() {
            if self.is_rejected(message.id) {
                let error = "never".to_owned();
                return Ended {
                    finished,
                    then: Outcome::Reject { error },
                };
            }
            if self.random.percent(self.course.failures) {
                let then = Outcome::Retry {
                    after: None,
                    error: "no".to_owned(),
                };
                return Ended { finished, then };
            }
        }
        Outcome::Success.into()
    }

    /// Whether handlers reject this message.
    pub(crate) fn is_rejected(&self, id: u64) -> bool {
        Random::new(id ^ 0x5EED).percent(self.course.rejects)
    }

    /// A handler of a process that is frozen past its lease is the named exception.
    pub(crate) fn excuse_the_frozen(&mut self) {
        for slot in &self.slots {
            let Some(member) = slot.member.as_ref().filter(|_| slot.frozen) else {
                continue;
            };
            let end = member.junction.engine().lease_end();
            if end.is_none_or(|end| slot.clock.world(end) <= self.now) {
                self.check.excuse(slot.life);
            }
        }
    }

    /// Whether a member serves a partition.
    pub(crate) fn serves(&self, slot: usize, partition: Partition) -> bool {
        let member = self.slots[slot].member.as_ref();
        member.is_some_and(|member| member.is_serving(partition))
    }
}

fn short(text: &str) -> String {
    text.chars().take(260).collect()
}
