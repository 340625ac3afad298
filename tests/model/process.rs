//! One process: the shipped engine, what it waits for, and lanes reduced to what ownership depends on.

use std::collections::{BTreeMap, VecDeque};

use jetring::engine::{Command, Engine, Reply, Seen, Ticket, WatchScope};
use jetring::ids::{Epoch, FencingToken, Partition};
use jetring::lanes::{Mark, Marks};
use jetring::time::Time;

/// A process of a member id: the number of the id, and how many it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Life {
    pub(crate) slot: usize,
    pub(crate) number: u8,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Flight {
    /// On its way to the server.
    Sent,
    /// The answer is on its way back, or waits for a frozen process.
    Answered {
        reply: Reply,
        /// The network keeps it: time may pass before it arrives.
        slow: bool,
    },
    /// No answer will come.
    Lost,
}

/// A request that is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    pub(crate) command: Command,
    pub(crate) flight: Flight,
    /// When the process gives it up.
    pub(crate) until: u64,
}

/// Where the lanes of a partition stand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Open,
    /// No message is started any more. The handler is cancelled and must have ended at the given time, if any.
    Draining(Option<u64>),
    /// The tenure is lost. The handler is cancelled and must have ended at the given time.
    Closing(FencingToken, u64),
}

/// The lanes of a partition: one key, and so one handler at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lanes {
    pub(crate) epoch: Epoch,
    pub(crate) phase: Phase,
    pub(crate) marks: Marks,
    pub(crate) changes: u64,
    /// The message whose handler runs.
    pub(crate) running: Option<u64>,
    /// Whether something has just happened to the handler: it began, is to end, was cancelled, or its process woke up.
    pub(crate) eventful: bool,
    /// What was delivered and is not started.
    pub(crate) held: VecDeque<u64>,
    /// Whether the engine was told that the consumer is gone.
    pub(crate) told_missing: bool,
}

impl Lanes {
    pub(crate) fn new(epoch: Epoch, marks: Marks) -> Self {
        Self {
            epoch,
            phase: Phase::Open,
            marks,
            changes: 0,
            running: None,
            eventful: false,
            held: VecDeque::new(),
            told_missing: false,
        }
    }

    /// A message was handled to its end. They come in order, so the floor goes along.
    pub(crate) fn finish(&mut self, sequence: u64) {
        self.marks.raise(Mark {
            sequence,
            time: sequence,
        });
        self.changes += 1;
    }

    /// When the handler must have ended.
    pub(crate) fn cancelled_until(&self) -> Option<u64> {
        match self.phase {
            Phase::Open => None,
            Phase::Draining(until) => until,
            Phase::Closing(_, until) => Some(until),
        }
    }
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) engine: Engine,
    pub(crate) lanes: BTreeMap<Partition, Lanes>,
    pub(crate) asked: BTreeMap<Ticket, Asked>,
    pub(crate) watch: Option<WatchScope>,
    /// What the watch has shown and the process has not looked at.
    pub(crate) hints: VecDeque<Seen>,
    pub(crate) frozen: bool,
    /// It was frozen, and has not caught up with the watch.
    pub(crate) behind: bool,
    /// Neither requests nor hints get through.
    pub(crate) cut: bool,
    /// It was frozen past its lease, and the handlers of that time have not ended: the named exception.
    pub(crate) late: bool,
}

impl Process {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            lanes: BTreeMap::new(),
            asked: BTreeMap::new(),
            watch: None,
            hints: VecDeque::new(),
            frozen: false,
            behind: false,
            cut: false,
            late: false,
        }
    }

    /// Whether the engine wants to be woken.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.engine.deadline().is_some_and(|at| at <= time(now))
    }

    /// The next point in time after `now` at which something falls due.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let lease = self.engine.lease_end().filter(|_| self.frozen);
        let engine = self.engine.deadline().filter(|_| !self.frozen);
        let engine = lease.into_iter().chain(engine).map(millis);
        let requests = self.asked.values().map(|asked| asked.until);
        let handlers = self.lanes.values().filter_map(Lanes::cancelled_until);
        let awake = requests.chain(handlers).filter(|_| !self.frozen);
        engine.chain(awake).filter(|at| *at > now).min()
    }

    /// Takes a hint in, in place of an older one about the same record if it sleeps.
    pub(crate) fn show(&mut self, seen: Seen) {
        if self.frozen {
            self.hints.retain(|older| !same_record(older, &seen));
        }
        self.hints.push_back(seen);
    }
}

fn same_record(a: &Seen, b: &Seen) -> bool {
    match (a, b) {
        (Seen::Member(a, _), Seen::Member(b, _)) => a == b,
        (Seen::Claim(a, _), Seen::Claim(b, _)) => a == b,
        (Seen::Assignment(_), Seen::Assignment(_)) => true,
        _ => false,
    }
}

pub(crate) fn time(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

/// The first millisecond at which `time` has come.
fn millis(time: Time) -> u64 {
    time.as_nanos().div_ceil(1_000_000)
}

/// Whether a command changes something at the server.
pub(crate) fn is_write(command: &Command) -> bool {
    matches!(
        command,
        Command::WriteMember(..)
            | Command::PurgeMember(..)
            | Command::WriteAssignment(..)
            | Command::WriteClaim(..)
            | Command::WriteProgress(..)
            | Command::CreateConsumer(..)
            | Command::DeleteConsumer(..)
    )
}
