//! A group, its server and the network between them as one state, and every step that it can take.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jetring::engine::{Command, Engine, Event, Ticket};
use jetring::ids::{Epoch, Partition};

use crate::bounds::{Bounds, Faults};
use crate::bucket::Bucket;
use crate::process::{Asked, Flight, Life, Process, is_write};
use crate::properties::{Origin, Violation};
use crate::stream::Stream;

/// A place where one process of a member id runs, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// How many processes have been started here.
    pub(crate) life: u8,
    pub(crate) process: Option<Arc<Process>>,
    /// The hash of the process: most steps change one process only.
    digest: u64,
    /// The last process has ended by itself.
    pub(crate) ended: bool,
}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.life, self.digest, self.ended).hash(state);
    }
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Milliseconds.
    pub(crate) now: u64,
    pub(crate) slots: Vec<Slot>,
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) stream: Stream,
    /// Writes that nobody awaits an answer of any more, and that may still take effect.
    pub(crate) limbo: BTreeMap<(Life, Ticket), Command>,
    /// Whom the server has answered last in this burst of requests, and how often it has left somebody for another one.
    pub(crate) turn: Option<(usize, u8)>,
    /// The faults that may still happen.
    pub(crate) left: Faults,
    /// The last epoch that was opened, and by whom.
    pub(crate) opened: BTreeMap<Partition, (Epoch, Life)>,
    pub(crate) origins: BTreeMap<Partition, Origin>,
    pub(crate) violations: BTreeSet<Violation>,
}

impl World {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        let slot = Slot {
            life: 0,
            process: None,
            digest: 0,
            ended: false,
        };
        Self {
            now: 0,
            slots: vec![slot; bounds.members],
            bucket: Arc::default(),
            stream: Stream::new(bounds.retention, bounds.partitions, bounds.messages),
            limbo: BTreeMap::new(),
            turn: None,
            left: bounds.faults,
            opened: BTreeMap::new(),
            origins: BTreeMap::new(),
            violations: BTreeSet::new(),
        }
    }

    pub(crate) fn process(&self, slot: usize) -> Option<&Process> {
        self.slots[slot].process.as_deref()
    }

    pub(crate) fn life(&self, slot: usize) -> Life {
        Life {
            slot,
            number: self.slots[slot].life,
        }
    }

    /// Brings the hashes of the processes up to date that are not those of `before` any more.
    pub(crate) fn digest(&mut self, before: &Self) {
        for (slot, old) in self.slots.iter_mut().zip(&before.slots) {
            let same = match (&slot.process, &old.process) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                _ => false,
            };
            if !same {
                let mut hasher = DefaultHasher::new();
                slot.process.hash(&mut hasher);
                slot.digest = hasher.finish();
            }
        }
    }

    /// Changes a process; only the one that is changed is copied.
    pub(crate) fn alter<T>(&mut self, slot: usize, act: impl FnOnce(&mut Process) -> T) -> Option<T> {
        self.slots[slot].process.as_mut().map(Arc::make_mut).map(act)
    }

    pub(crate) fn violate(&mut self, violation: Violation) {
        self.violations.insert(violation);
    }

    /// Whether a process has crashed here.
    pub(crate) fn is_gone(&self, slot: usize) -> bool {
        let slot = &self.slots[slot];
        slot.life > 0 && slot.process.is_none() && !slot.ended
    }

    pub(crate) fn start(&mut self, bounds: &Bounds, slot: usize) {
        let place = &mut self.slots[slot];
        place.life += 1;
        let seed = format!("{slot}.{}", place.life);
        place.process = Some(Arc::new(Process::new(Engine::new(bounds.settings(slot), seed))));
        self.step(bounds, slot, Event::Start);
    }

    /// The process is gone at once, and what it had sent has happened or never will.
    pub(crate) fn end(&mut self, slot: usize, by_itself: bool) {
        let place = &mut self.slots[slot];
        place.process = None;
        place.ended = by_itself;
    }

    /// A request does not come through, or its answer does not.
    pub(crate) fn lose(&mut self, slot: usize, ticket: Ticket) {
        let life = self.life(slot);
        let lost = self.alter(slot, |process| {
            process.asked.get_mut(&ticket).map(|asked| {
                asked.flight = Flight::Lost;
                asked.command.clone()
            })
        });
        if let Some(command) = lost.flatten().filter(is_write) {
            self.limbo.insert((life, ticket), command);
        }
    }

    /// The server carries out a request. Its answer is taken in at once, or waits.
    pub(crate) fn serve(&mut self, bounds: &Bounds, slot: usize, ticket: Ticket, slow: bool) {
        let life = self.life(slot);
        let found = self.process(slot).and_then(|process| process.asked.get(&ticket));
        let Some(command) = found.map(|asked| asked.command.clone()) else {
            return;
        };
        let reply = self.execute(bounds.plant, life, &command);
        let waits = slow || self.process(slot).is_some_and(|process| process.frozen);
        if waits {
            self.alter(slot, |process| {
                if let Some(asked) = process.asked.get_mut(&ticket) {
                    asked.flight = Flight::Answered { reply, slow };
                }
            });
        } else {
            self.alter(slot, |process| process.asked.remove(&ticket));
            self.step(bounds, slot, Event::Done(ticket, reply));
        }
    }

    /// An answer that waited is taken in.
    pub(crate) fn deliver(&mut self, bounds: &Bounds, slot: usize, ticket: Ticket) {
        let asked = self.alter(slot, |process| process.asked.remove(&ticket)).flatten();
        if let Some(Asked {
            flight: Flight::Answered { reply, .. },
            ..
        }) = asked
        {
            self.step(bounds, slot, Event::Done(ticket, reply));
        }
    }
}
