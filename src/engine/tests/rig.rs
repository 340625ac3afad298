//! One engine on a bench: time stands still unless it is moved, and every answer can be held back, lost or made up.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::time::Duration;

use crate::engine::{Activity, Change, Command, Engine, EngineSettings, Event, Reply, Retention};
use crate::ids::{FencingToken, Generation, GroupName, Incarnation, MemberId, Partition, Revision};
use crate::lanes::{Filter, Marks};
use crate::partitioning::Partitions;
use crate::records::{AssignmentRecord, ClaimRecord, ClaimState, MemberRecord, MemberState, Share};
use crate::time::Time;

use super::server::Server;

/// How long the server takes for an answer.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// More commands than any good reason could have within one call.
const TOO_MANY: usize = 50_000;

type Filterer = Box<dyn Fn(&Command) -> bool>;
type Faults = Box<dyn Fn(&Command) -> Option<Reply>>;

/// The engine of member `a` and its surroundings.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) now: Time,
    pub(super) server: Server,
    /// Commands that wait for their answer.
    pub(super) waiting: Vec<Command>,
    /// Every command, in order.
    pub(super) log: Vec<(Time, Command)>,
    /// Members whose records are re-written every heartbeat interval.
    pub(super) beating: BTreeSet<MemberId>,
    /// Whether handlers end at once when they are told to.
    pub(super) handlers_end: bool,
    /// Whether the watch shows anything.
    pub(super) watching: bool,
    /// Commands whose answer is held back.
    pub(super) hold: Option<Filterer>,
    /// Answers in place of the server's, which then does nothing.
    pub(super) faults: Option<Faults>,
    /// What the lanes would say is finished.
    pub(super) marks: BTreeMap<Partition, BTreeMap<Filter, Marks>>,
    beat_at: Time,
}

pub(super) fn id(name: &str) -> MemberId {
    MemberId::new(name).unwrap()
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn settings(retention: Retention) -> EngineSettings {
    EngineSettings {
        group: GroupName::new("g").unwrap(),
        member: id("a"),
        weight: 1,
        address: String::new(),
        partitions: Partitions::new(4).unwrap(),
        retention,
        ring_seed: 0,
        virtual_nodes: NonZeroU16::new(16).unwrap(),
        session_timeout: seconds(4),
        heartbeat_interval: seconds(1),
        lease_margin: millis(540),
        rebalance_delay: millis(200),
        drain_timeout: seconds(10),
        retry_interval: millis(250),
        reconcile_interval: seconds(20),
    }
}

/// The record of another member.
pub(super) fn record(incarnation: &str, joined: u64, state: MemberState) -> MemberRecord {
    MemberRecord {
        incarnation: Incarnation(incarnation.to_owned()),
        beat: 1,
        joined: Some(Revision(joined)),
        weight: 1,
        state,
        address: String::new(),
        version: "0".to_owned(),
    }
}

pub(super) fn claim(owner: &str, incarnation: &str, state: ClaimState) -> ClaimRecord {
    ClaimRecord {
        owner: id(owner),
        incarnation: Incarnation(incarnation.to_owned()),
        generation: Generation(1),
        state,
        token: FencingToken(super::server::BUCKET_CREATED),
    }
}

/// An assignment of partition 0, 1, .. to the named members, made for them and for `a` and `b`.
pub(super) fn assignment(generation: u64, owners: &[&str]) -> AssignmentRecord {
    let names: BTreeSet<&str> = owners.iter().copied().chain(["a", "b"]).collect();
    let members: Vec<Share> = names
        .iter()
        .map(|name| Share {
            id: id(name),
            weight: 1,
        })
        .collect();
    let index = |owner: &&str| names.iter().position(|name| name == owner).unwrap() as u16;
    AssignmentRecord {
        generation: Generation(generation),
        members,
        owners: owners.iter().map(index).collect(),
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(settings(Retention::Limits))
    }

    pub(super) fn with(settings: EngineSettings) -> Self {
        Self {
            server: Server::new(settings.partitions.get(), settings.retention),
            engine: Engine::new(settings, "seed"),
            now: Time::ZERO,
            waiting: Vec::new(),
            log: Vec::new(),
            beating: BTreeSet::new(),
            handlers_end: true,
            watching: true,
            hold: None,
            faults: None,
            marks: BTreeMap::new(),
            beat_at: Time::ZERO,
        }
    }

    /// Member `a` alone, serving everything.
    pub(super) fn serving() -> Self {
        Self::new().started()
    }

    pub(super) fn started(mut self) -> Self {
        self.step(Event::Start);
        self.run();
        self.advance(seconds(2));
        let serving = self.serving_count();
        assert_eq!(serving, 4, "{:?}", self.engine.activities());
        self
    }

    pub(super) fn serving_count(&self) -> usize {
        let activities = self.engine.activities();
        activities
            .values()
            .filter(|activity| matches!(activity, Activity::Serving(_)))
            .count()
    }

    /// Another member that goes on beating.
    pub(super) fn peer(&mut self, name: &str, joined: u64) {
        let record = record(&format!("{name}-1"), joined, MemberState::Active);
        self.server.put_member(&id(name), Some(record));
        self.beating.insert(id(name));
    }

    /// Hands the engine one event; nothing is answered.
    pub(super) fn step(&mut self, event: Event) {
        let commands = self.engine.step(self.now, event);
        let mut events = Vec::new();
        for command in commands {
            self.log.push((self.now, command.clone()));
            assert!(self.log.len() < TOO_MANY, "too many commands; the last: {command:?}");
            match &command {
                Command::Open {
                    partition,
                    filter,
                    marks,
                    ..
                } => {
                    let marks = marks.clone();
                    self.marks.entry(*partition).or_default().insert(filter.clone(), marks);
                }
                Command::Drain(partition) if self.handlers_end => events.push(self.drained(*partition)),
                Command::Close(partition, token) if self.handlers_end => events.push(Event::Ended {
                    partition: *partition,
                    token: *token,
                }),
                _ => {}
            }
            if command.ticket().is_some() {
                self.waiting.push(command);
            }
        }
        for event in events {
            self.step(event);
        }
    }

    /// What the driver says when a partition runs nothing any more.
    pub(super) fn drained(&self, partition: Partition) -> Event {
        let marks = self.marks.get(&partition).cloned().unwrap_or_default();
        Event::Drained { partition, marks }
    }

    /// Answers everything that is not held back, until there is nothing left to answer at this time.
    pub(super) fn run(&mut self) {
        loop {
            let hold = self.hold.take();
            let held = |command: &Command| hold.as_ref().is_some_and(|hold| hold(command));
            let (kept, now) = std::mem::take(&mut self.waiting).into_iter().partition(|c| held(c));
            self.waiting = kept;
            self.hold = hold;
            let ready: Vec<Command> = now;
            let hints = std::mem::take(&mut self.server.hints);
            if ready.is_empty() && hints.is_empty() {
                return;
            }
            if self.watching {
                for seen in hints {
                    self.step(Event::Seen(seen));
                }
            }
            if !ready.is_empty() {
                self.now = self.now + ROUND_TRIP;
            }
            for command in ready {
                self.answer(&command);
            }
        }
    }

    /// Answers one command as the server would.
    pub(super) fn answer(&mut self, command: &Command) {
        let fault = self.faults.as_ref().and_then(|faults| faults(command));
        let reply = fault.unwrap_or_else(|| self.server.answer(command));
        self.reply(command, reply);
    }

    /// Answers one command.
    pub(super) fn reply(&mut self, command: &Command, reply: Reply) {
        self.step(Event::Done(command.ticket().unwrap(), reply));
    }

    /// Lets one command go without an answer.
    pub(super) fn lose(&mut self, command: &Command) {
        self.step(Event::Unanswered(command.ticket().unwrap()));
    }

    /// Takes the only waiting command that fits.
    pub(super) fn take(&mut self, fits: impl Fn(&Command) -> bool) -> Command {
        let found: Vec<usize> = (0..self.waiting.len()).filter(|&at| fits(&self.waiting[at])).collect();
        assert_eq!(found.len(), 1, "{:?}", self.waiting);
        self.waiting.remove(found[0])
    }

    /// Lets time pass, with everything that falls due in it.
    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let due = self.engine.deadline().map_or(end, |at| at.max(self.now));
            let beat = self.beat_at.max(self.now);
            let next = due.min(beat);
            if next >= end {
                break;
            }
            self.now = next;
            if self.now >= self.beat_at {
                self.beat_peers();
            }
            self.step(Event::Wake);
            self.run();
            assert!(
                self.engine.deadline().is_none_or(|at| at > next),
                "a deadline that is not met at {next:?}"
            );
        }
        self.now = self.now.max(end);
        self.step(Event::Wake);
        self.run();
    }

    fn beat_peers(&mut self) {
        self.beat_at = self.now + seconds(1);
        for peer in self.beating.clone() {
            if let Some(mut record) = self.server.member(&peer).value {
                record.beat += 1;
                self.server.put_member(&peer, Some(record));
            }
        }
    }

    /// How many commands fit since the log had this length.
    pub(super) fn count_since(&self, from: usize, fits: impl Fn(&Command) -> bool) -> usize {
        self.log[from..].iter().filter(|(_, command)| fits(command)).count()
    }

    pub(super) fn count(&self, fits: impl Fn(&Command) -> bool) -> usize {
        self.count_since(0, fits)
    }

    /// Whether listeners were told so.
    pub(super) fn told(&self, fits: impl Fn(&Change) -> bool) -> bool {
        self.count(|command| matches!(command, Command::Notify(change) if fits(change))) > 0
    }

    /// The places in the log of the first commands that fit, in the order given.
    pub(super) fn order(&self, from: usize, fits: &[&dyn Fn(&Command) -> bool]) -> Vec<usize> {
        fits.iter()
            .map(|fits| from + self.log[from..].iter().position(|(_, command)| fits(command)).unwrap())
            .collect()
    }
}
