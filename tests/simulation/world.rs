//! Virtual time, and everything that happens in it, in one order that a course repeats.

use std::collections::{BTreeMap, BTreeSet};

use jetring::engine::{Command, Retention, Ticket, WatchScope};
use jetring::ids::Partition;
use jetring::lanes::{Ended, ReadId, RunId};
use jetring::names::ConsumerName;

use crate::bucket::Bucket;
use crate::check::Check;
use crate::course::{Course, Kind, REST, Step};
use crate::member::{Input, Of};
use crate::planted::Plant;
use crate::process::Slot;
use crate::random::Random;
use crate::server::Server;
use crate::subjects::filter_of;
use crate::{MILLI, SECOND};

/// Something that will happen.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// Something arrives at a process.
    Input(usize, u64, Input),
    HandlerEnds(usize, u64, RunId, Ended),
    Timer(usize, u64),
    /// Something arrives at the server.
    At(usize, u64, Request),
    PullExpires(ConsumerName, u64),
    Redeliver(ConsumerName),
    Step(Step),
    /// A frozen process goes on.
    Thaw(usize, u64),
    Calm,
}

/// What a process sends to the server.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// Sent at the given time.
    Command(u64, Ticket, Command),
    Watch(u64, WatchScope),
    Pull(Of, usize),
    Inspect(Of),
    Ack(String),
    InProgress(String),
    Read(ReadId, u64),
    DeadLetter(RunId, u64, u64),
    Discover,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) course: Course,
    /// Where the history is printed, if it is.
    pub(crate) history: bool,
    pub(crate) random: Random,
    pub(crate) slots: Vec<Slot>,
    pub(crate) bucket: Bucket,
    pub(crate) server: Server,
    pub(crate) check: Check,
    pub(crate) watchers: Vec<(usize, u64, u64, WatchScope)>,
    pub(crate) calm: bool,
    pub(crate) lives: u64,
    /// Boxed, for the queue moves its entries about.
    queue: BTreeMap<(u64, u64), Box<Happening>>,
    queued: u64,
    published: u64,
    to_publish: u64,
    ready: bool,
    steps: u64,
}

impl World {
    pub(crate) fn new(course: Course) -> Self {
        let mut random = Random::new(course.seed);
        let slots = course.weights.iter().enumerate();
        let slots = slots.map(|(number, &weight)| Slot::new(number, weight, course.plant, &mut random));
        let mut world = Self {
            now: SECOND,
            history: false,
            slots: slots.collect(),
            bucket: Bucket::new(),
            server: Server::new(course.kind),
            check: Check::default(),
            watchers: Vec::new(),
            calm: false,
            lives: 0,
            queue: BTreeMap::new(),
            queued: 0,
            published: 0,
            to_publish: 0,
            ready: false,
            steps: 0,
            random,
            course,
        };
        for (at, step) in std::mem::take(&mut world.course.steps) {
            world.to_publish += u64::from(matches!(step, Step::Publish(_)));
            world.at(SECOND + at * MILLI, Happening::Step(step));
        }
        world
    }

    /// The same, and prints what happens.
    pub(crate) fn told(course: Course) -> Self {
        Self {
            history: true,
            ..Self::new(course)
        }
    }

    /// Runs a whole course to its end, or to the first violation.
    pub(crate) fn run(mut self) -> Result<Self, String> {
        let calm_at = SECOND + self.course.calm_at * MILLI;
        self.at(calm_at, Happening::Calm);
        self.run_until(calm_at + REST * MILLI, |_| false)?;
        self.check_rest()?;
        Ok(self)
    }

    /// Runs until something is the case, or until a point in time. Whether it is the case.
    pub(crate) fn run_until(&mut self, end: u64, found: impl Fn(&Self) -> bool) -> Result<bool, String> {
        while !found(self) {
            let Some(((at, _), happening)) = self.queue.pop_first() else {
                break;
            };
            if at > end {
                self.at(at, *happening);
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
        let found = found(self);
        if !found {
            self.now = end;
        }
        Ok(found)
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.history {
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
            Happening::HandlerEnds(slot, life, run, ended) => self.handler_ends(slot, life, run, ended),
            Happening::Timer(slot, life) => {
                self.slots[slot].timer_met(self.now);
                self.input(slot, life, Input::Timer);
            }
            Happening::Step(step) => self.step(step),
            Happening::Thaw(slot, life) => self.thaw(slot, life),
            Happening::Calm => self.calm_down(),
            Happening::At(slot, life, request) => self.at_server(slot, life, request),
            Happening::PullExpires(name, id) => self.pull_expires(&name, id),
            Happening::Redeliver(name) => self.redeliver(&name),
        }
        for stored in std::mem::take(&mut self.server.stream.dropped) {
            self.check.dropped(stored.id);
        }
    }

    /// The partition of a key.
    pub(crate) fn partition(&self, key: u64) -> Partition {
        Partition((key % u64::from(self.course.partitions)) as u16)
    }

    pub(crate) fn publish(&mut self, key: u64) {
        if self.server.stream.retention == Retention::Interest && !self.ready {
            // Nobody wants its messages before the group says that it is ready.
            let wanted: BTreeSet<Partition> = self.server.stream.consumers.keys().map(|name| name.partition).collect();
            if wanted.len() < usize::from(self.course.partitions) {
                if !self.calm {
                    self.after(500 * MILLI, Happening::Step(Step::Publish(key)));
                }
                return;
            }
            self.ready = true;
        }
        let partition = self.partition(key);
        let id = self.published;
        self.published += 1;
        let astray = self.is_stored_astray(id);
        let (sequence, time) = self.server.publish(partition, key, id, self.now, astray);
        let filter = filter_of(partition, key, self.course.by_key);
        self.check.published(&filter, key, sequence, id, time);
        self.tell(|| format!("publish {sequence} (message {id}) key {key} partition {partition}"));
        self.serve_matching(partition);
    }

    fn is_stored_astray(&self, id: u64) -> bool {
        self.course.plant == Some(Plant::MessagesAstray) && id + 1 == self.to_publish
    }

    /// Delivers what has come for a partition.
    pub(crate) fn serve_matching(&mut self, partition: Partition) {
        let of_partition = |name: &&ConsumerName| name.partition == partition;
        let names = self.server.stream.consumers.keys().filter(of_partition);
        for name in names.cloned().collect::<Vec<_>>() {
            self.serve(&name);
        }
    }

    /// Whether losing a consumer loses nothing else.
    pub(crate) fn consumers_are_disposable(&self) -> bool {
        self.course.kind != Kind::Interest
    }
}
