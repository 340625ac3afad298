//! A small world around the lanes of two members: a stream, its consumers, a network that loses deliveries, handlers that fail,
//! members that leave and die. It does what the driver and the server do, and tells the checker all that can be seen.

mod driver;
mod owners;
mod server;
mod step;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use self::server::Consumer;
pub(super) use self::step::{Ending, Step};
use super::bench::settings;
use super::check::{Check, Event, Place};
use crate::ids::{Epoch, Partition};
use crate::lanes::{Ended, Filter, Found, Lanes, Marks, Outcome, ReadId, RunId, Settings, Status};
use crate::time::Time;

struct Stored {
    place: Place,
    key: u8,
    time: u64,
    bytes: usize,
}

struct Member {
    lanes: Lanes<u64>,
    /// What runs: for each message a number that is unique over all members, and its sequence.
    runs: BTreeMap<RunId, Vec<(u64, u64)>>,
    letters: BTreeMap<RunId, u64>,
    reads: BTreeMap<ReadId, u64>,
    inspections: VecDeque<(Place, Epoch)>,
}

pub(super) struct World {
    work_queue: bool,
    settings: Settings,
    now: Time,
    stream: BTreeMap<u64, Stored>,
    /// Where every message belongs, those that are gone too.
    places: BTreeMap<u64, Place>,
    last: u64,
    members: [Member; 2],
    owners: BTreeMap<Partition, usize>,
    tokens: BTreeMap<Partition, u64>,
    /// Partitions between two owners, and who comes next.
    moving: BTreeMap<Partition, usize>,
    stopping: BTreeSet<Partition>,
    records: BTreeMap<Place, Marks>,
    /// Partitions whose record is waited for.
    unrecorded: BTreeSet<Partition>,
    /// Up to where a member that died may have begun with messages.
    careful: BTreeMap<Place, u64>,
    crashes: u32,
    consumers: BTreeMap<Place, Consumer>,
    acks_are_lost: bool,
    next_run: u64,
    pub(super) check: Check,
    /// How often each kind of thing was asked for.
    pub(super) asked: BTreeMap<&'static str, usize>,
}

pub(super) const PARTITIONS: u8 = 3;

/// The size of the largest messages.
pub(super) const LARGE: usize = 100;

/// Partition 0 has two filters, the others one.
fn places() -> Vec<Place> {
    [(0, "zero.x"), (0, "zero.y"), (1, "one"), (2, "two")]
        .into_iter()
        .map(|(partition, filter)| (Partition(partition), Filter::from(filter)))
        .collect()
}

fn place(number: u8) -> Place {
    let places = places();
    places[usize::from(number) % places.len()].clone()
}

pub(super) fn small_settings() -> Settings {
    let mut settings = settings();
    settings.concurrency = NonZeroUsize::new(3).unwrap();
    settings.max_held = NonZeroUsize::new(8).unwrap();
    settings.max_held_total = NonZeroUsize::new(16).unwrap();
    settings.max_bytes = NonZeroUsize::new(64).unwrap();
    settings.max_bytes_total = NonZeroUsize::new(128).unwrap();
    settings.lane_depth = NonZeroUsize::new(4).unwrap();
    settings.max_parked = NonZeroUsize::new(10).unwrap();
    settings.max_ranges = NonZeroUsize::new(3).unwrap();
    settings.several_filters = true;
    settings.retry.max_attempts = NonZeroU32::new(3);
    settings.max_kills = NonZeroU32::MIN;
    settings.dead_letter_killers = true;
    settings.inspect_interval = Some(Duration::from_millis(1500));
    settings.ack_check_interval = Duration::from_secs(3);
    settings
}

fn member(settings: &Settings, seed: u64) -> Member {
    Member {
        lanes: Lanes::new(settings.clone(), seed),
        runs: BTreeMap::new(),
        letters: BTreeMap::new(),
        reads: BTreeMap::new(),
        inspections: VecDeque::new(),
    }
}

impl World {
    pub(super) fn new(work_queue: bool, settings: Settings) -> Self {
        let mut world = Self {
            work_queue,
            now: Time::ZERO,
            stream: BTreeMap::new(),
            places: BTreeMap::new(),
            last: 0,
            members: [member(&settings, 1), member(&settings, 2)],
            settings,
            owners: BTreeMap::new(),
            tokens: BTreeMap::new(),
            moving: BTreeMap::new(),
            stopping: BTreeSet::new(),
            records: BTreeMap::new(),
            unrecorded: BTreeSet::new(),
            careful: BTreeMap::new(),
            crashes: 0,
            consumers: BTreeMap::new(),
            acks_are_lost: false,
            next_run: 0,
            check: Check::default(),
            asked: BTreeMap::new(),
        };
        for number in 0..PARTITIONS {
            world.take_over(Partition(number.into()), usize::from(number) % 2, true, None);
        }
        world
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Store {
                place: number,
                key,
                messages,
            } => {
                for _ in 0..messages {
                    self.store(place(number), key);
                }
            }
            Step::Serve {
                place: number,
                messages,
            } => self.serve(&place(number), messages),
            Step::Arrive {
                place: number,
                messages,
            } => self.arrive(&place(number), messages),
            Step::Lose { place: number } => {
                if let Some(consumer) = self.consumers.get_mut(&place(number)) {
                    consumer.wire.pop_front();
                }
            }
            Step::Redeliver { place: number, which } => self.redeliver(&place(number), which),
            Step::PullExpires { place: number } => self.pull_expires(&place(number)),
            Step::Reconnect { member } => self.reconnect(usize::from(member % 2)),
            Step::Reopen { place: number } => self.reopen(&place(number)),
            Step::Dispatch { member } => self.members[usize::from(member % 2)].lanes.dispatch(),
            Step::End {
                which,
                finished,
                outcome,
            } => self.end(which, finished, outcome),
            Step::Letter { which, stored } => self.letter(which, stored),
            Step::Read { which } => self.read(which),
            Step::Purge { which } => self.purge(which),
            Step::Stick { place: number } => {
                if let Some(consumer) = self.consumers.get_mut(&place(number)) {
                    consumer.stuck = true;
                }
            }
            Step::LoseAcks { lost } => self.acks_are_lost = lost,
            Step::Inspect { member } => self.inspect(usize::from(member % 2)),
            Step::Tick { millis } => self.tick(millis),
            Step::Checkpoint { partition } => self.checkpoint(Partition(u16::from(partition % PARTITIONS))),
            Step::Record { which } => {
                let count = self.unrecorded.len().max(1);
                if let Some(&partition) = self.unrecorded.iter().nth(usize::from(which) % count) {
                    self.checkpoint(partition);
                }
            }
            Step::Stop { partition } => self.stop(Partition(u16::from(partition % PARTITIONS))),
            Step::Cancel { partition } => {
                let partition = Partition(u16::from(partition % PARTITIONS));
                if let Some(&owner) = self.owners.get(&partition) {
                    self.members[owner].lanes.cancel(partition);
                }
            }
            Step::Fence { partition, to } => {
                self.fence(Partition(u16::from(partition % PARTITIONS)), usize::from(to % 2))
            }
            Step::Crash { member } => self.crash(usize::from(member % 2)),
        }
        self.carry_out();
        self.look();
    }

    /// Lets everything come to rest: nothing fails any more.
    pub(super) fn settle(&mut self) {
        self.acks_are_lost = false;
        for _ in 0..2000 {
            for place in places() {
                self.reopen_if_over(&place);
                self.serve(&place, 255);
                self.carry_out();
                self.arrive(&place, 255);
                self.carry_out();
            }
            for member in 0..2 {
                self.members[member].lanes.dispatch();
                self.carry_out();
            }
            for partition in self.unrecorded.clone() {
                self.checkpoint(partition);
            }
            while self.members.iter().any(|member| !member.runs.is_empty()) {
                self.end(0, 0, Ending::Success);
                self.carry_out();
            }
            while self.members.iter().any(|member| !member.letters.is_empty()) {
                self.letter(0, true);
                self.carry_out();
            }
            while self.members.iter().any(|member| !member.reads.is_empty()) {
                self.read(0);
                self.carry_out();
            }
            self.tick(500);
            self.carry_out();
            // Only the watchdog finds what no delivery shows.
            for member in 0..2 {
                while !self.members[member].inspections.is_empty() {
                    self.inspect(member);
                }
            }
            self.carry_out();
            self.look();
            if self.is_settled() {
                break;
            }
        }
        self.check.event(Event::End);
    }

    /// Nothing is held, and every consumer has delivered everything.
    fn is_settled(&self) -> bool {
        let delivered = self.consumers.iter().all(|(place, consumer)| {
            let rest = self
                .stream
                .range(consumer.position + 1..)
                .any(|(_, stored)| stored.place == *place);
            !rest && consumer.unacked.is_empty() && consumer.wire.is_empty()
        });
        delivered
            && self.moving.is_empty()
            && self
                .members
                .iter()
                .all(|member| member.lanes.status().held.messages == 0)
    }

    /// For whoever looks at a failure.
    pub(super) fn statuses(&self) -> Vec<Status> {
        self.members.iter().map(|member| member.lanes.status()).collect()
    }

    /// The highest sequence of a filter that was ever stored, and the owner's floor.
    pub(super) fn ends(&self) -> Vec<(u64, u64)> {
        let floor = |place: &Place| {
            let owner = self.owners[&place.0];
            self.members[owner].lanes.progress(place.0)[&place.1].floor.sequence
        };
        let stored = |place: &Place| {
            self.stream
                .iter()
                .filter(|(_, s)| s.place == *place)
                .map(|(&s, _)| s)
                .max()
        };
        places()
            .iter()
            .map(|place| (stored(place).unwrap_or(0), floor(place)))
            .collect()
    }

    fn store(&mut self, place: Place, key: u8) {
        self.last += 1 + u64::from(key % 3);
        let sequence = self.last;
        self.check.event(Event::Stored {
            place: place.clone(),
            key,
            sequence,
        });
        self.places.insert(sequence, place.clone());
        let time = sequence * 10;
        // Now and then one that no request for several has room for.
        let bytes = if sequence.is_multiple_of(11) {
            LARGE
        } else {
            1 + usize::from(key)
        };
        self.stream.insert(
            sequence,
            Stored {
                place,
                key,
                time,
                bytes,
            },
        );
    }

    /// Ends a handler. Of a batch, the first `finished` are done whatever the outcome of the next one is.
    fn end(&mut self, which: u8, finished: u8, outcome: Ending) {
        let all = self
            .members
            .iter()
            .enumerate()
            .flat_map(|(member, m)| m.runs.keys().map(move |&run| (member, run)));
        let all: Vec<_> = all.collect();
        let Some(&(member, run)) = all.get(usize::from(which) % all.len().max(1)) else {
            return;
        };
        let Member { lanes, runs, .. } = &mut self.members[member];
        let Some(batch) = runs.remove(&run) else {
            return;
        };
        let finished = match outcome {
            Ending::Success => batch.len(),
            _ => usize::from(finished) % batch.len(),
        };
        for (index, (run, sequence)) in batch.into_iter().enumerate() {
            // Only a run of the tenure that is open can finish anything.
            let owned = self.places.get(&sequence).is_some_and(|place| {
                let progress = lanes.progress(place.0);
                let marks = progress.get(&place.1);
                marks.is_some_and(|marks| marks.started.contains(&sequence))
            });
            let finished = owned && index < finished;
            self.check.event(Event::Ended { run, finished });
        }
        let error = "no".to_owned();
        let then = match outcome {
            Ending::Success => Outcome::Success,
            Ending::Retry => Outcome::Retry { after: None, error },
            Ending::Reject => Outcome::Reject { error },
            Ending::Cancelled => Outcome::Cancelled,
        };
        lanes.ended(self.now, run, Ended { finished, then });
    }

    fn letter(&mut self, which: u8, stored: bool) {
        let all = self
            .members
            .iter()
            .enumerate()
            .flat_map(|(member, m)| m.letters.keys().map(move |&run| (member, run)));
        let all: Vec<_> = all.collect();
        let Some(&(member, run)) = all.get(usize::from(which) % all.len().max(1)) else {
            return;
        };
        let Member { lanes, letters, .. } = &mut self.members[member];
        if let Some(sequence) = letters.remove(&run).filter(|_| stored) {
            self.check.event(Event::Buried { sequence });
        }
        lanes.dead_lettered(self.now, run, if stored { Ok(()) } else { Err("no".to_owned()) });
    }

    fn read(&mut self, which: u8) {
        let all = self.members.iter().enumerate();
        let all: Vec<_> = all
            .flat_map(|(member, m)| m.reads.keys().map(move |&read| (member, read)))
            .collect();
        let Some(&(member, read)) = all.get(usize::from(which) % all.len().max(1)) else {
            return;
        };
        let Member { lanes, reads, .. } = &mut self.members[member];
        if let Some(sequence) = reads.remove(&read) {
            let found = self.stream.get(&sequence).map(|stored| Found::Message {
                time: stored.time,
                message: sequence,
            });
            lanes.read(read, found.unwrap_or(Found::Gone));
        }
    }

    fn tick(&mut self, millis: u16) {
        self.now = self.now + Duration::from_millis(millis.into());
        for member in &mut self.members {
            member.lanes.wake(self.now);
            assert!(member.lanes.deadline().is_none_or(|at| at > self.now));
        }
    }
}
