//! A small language for courses that are told step by step.
//!
//! The network is quick and loses nothing unless the scenario says so; members are called by their number. Whatever is awaited has a
//! bound in virtual time, and every invariant is looked at all along. The history is printed, which a test that passes does not show.

use std::collections::BTreeMap;

use jetring::ids::{FencingToken, Partition};
use jetring::records::ClaimState;

use crate::course::{Course, Kind, REST, Step};
use crate::world::World;
use crate::{MILLI, SECOND};

/// For faults that last until they are mended.
const FOR_EVER: u64 = 1_000_000 * SECOND;

pub(crate) struct Scenario {
    pub(crate) world: World,
    published: u64,
    keys: u64,
}

impl Scenario {
    /// Members that are not there yet, on a stream with messages of 3 keys per partition.
    pub(crate) fn new(kind: Kind, members: usize, partitions: u16) -> Self {
        Self::of(Course::quiet(kind, members, partitions))
    }

    pub(crate) fn of(course: Course) -> Self {
        Self {
            keys: u64::from(course.partitions) * 3,
            world: World::told(course),
            published: 0,
        }
    }

    pub(crate) fn step(&mut self, step: Step) -> &mut Self {
        self.world.step(step);
        self.pass(0)
    }

    pub(crate) fn join(&mut self, members: impl IntoIterator<Item = usize>) -> &mut Self {
        for slot in members {
            self.step(Step::Start(slot));
        }
        self
    }

    /// The process is gone at once, and stays away.
    pub(crate) fn kill(&mut self, slot: usize) -> &mut Self {
        self.world.tell(|| format!("KILL {slot}"));
        self.world.end(slot);
        self.pass(0)
    }

    pub(crate) fn leave(&mut self, slot: usize) -> &mut Self {
        self.step(Step::Leave { slot, back: None })
    }

    pub(crate) fn freeze(&mut self, slot: usize) -> &mut Self {
        assert!(self.world.freeze(slot), "nobody is there to be frozen");
        self
    }

    pub(crate) fn thaw(&mut self, slot: usize) -> &mut Self {
        let life = self.world.slots[slot].life;
        self.world.thaw(slot, life);
        self.pass(0)
    }

    /// Nothing gets through from or to a member until it is healed.
    pub(crate) fn cut(&mut self, slot: usize) -> &mut Self {
        self.world.cut(slot, true, true, FOR_EVER);
        self
    }

    pub(crate) fn heal(&mut self, slot: usize) -> &mut Self {
        self.world.reconnect(slot);
        self.pass(0)
    }

    /// The pull requests of a member are lost at the server, and nobody is told.
    pub(crate) fn lose_pulls(&mut self, slot: usize) -> &mut Self {
        let life = self.world.slots[slot].life;
        for consumer in self.world.server.stream.consumers.values_mut() {
            consumer.pulls.retain(|pull| pull.to.1 != life);
        }
        self
    }

    /// Publishes so many messages, one key after the other.
    pub(crate) fn publish(&mut self, count: u64) -> &mut Self {
        for _ in 0..count {
            let key = self.published % self.keys;
            self.published += 1;
            self.step(Step::Publish(key));
        }
        self
    }

    /// So many milliseconds pass.
    pub(crate) fn pass(&mut self, millis: u64) -> &mut Self {
        let end = self.world.now + millis * MILLI;
        self.run_until(end, |_| false);
        self
    }

    fn run_until(&mut self, end: u64, found: impl Fn(&World) -> bool) -> bool {
        match self.world.run_until(end, found) {
            Ok(found) => found,
            Err(violation) => panic!("{violation}"),
        }
    }

    /// Waits until something is the case, for so many seconds at most.
    pub(crate) fn await_that(&mut self, what: &str, seconds: u64, found: impl Fn(&World) -> bool) -> &mut Self {
        let end = self.world.now + seconds * SECOND;
        assert!(self.run_until(end, found), "{what}: not within {seconds} s");
        self
    }

    /// Waits until every partition has an owner again, the loads are even, and each has one consumer.
    pub(crate) fn await_settled(&mut self, seconds: u64) -> &mut Self {
        self.await_that("the group settles", seconds, World::is_settled)
    }

    /// Waits until everything that was published is handled.
    pub(crate) fn await_handled(&mut self, seconds: u64) -> &mut Self {
        self.await_that("all is handled", seconds, |world| world.check.unfinished() == 0)
    }

    /// Who serves every partition, and in which tenure.
    pub(crate) fn tenures(&self) -> BTreeMap<Partition, (usize, FencingToken)> {
        let mut tenures = BTreeMap::new();
        for (slot, place) in self.world.slots.iter().enumerate() {
            let Some(member) = &place.member else { continue };
            for (partition, activity) in member.junction.engine().activities() {
                if let jetring::Activity::Serving(token) = activity {
                    tenures.insert(partition, (slot, token));
                }
            }
        }
        tenures
    }

    /// How often a message was handled again.
    pub(crate) fn repeated(&self) -> u64 {
        self.world.check.repeated
    }

    /// Nothing goes wrong any more, and after a while all must be well.
    pub(crate) fn end(&mut self) {
        self.world.calm_down();
        self.pass(REST);
        if let Err(violation) = self.world.check_rest() {
            panic!("{violation}");
        }
    }
}

/// Whether a claim is held by the member in a slot.
pub(crate) fn claimed_by(world: &World, partition: Partition, slot: usize) -> bool {
    let claim = world.bucket.claim(partition).value;
    claim.is_some_and(|claim| claim.state == ClaimState::Held && claim.owner == world.slots[slot].id)
}

/// Whether a claim is released.
pub(crate) fn is_released(world: &World, partition: Partition) -> bool {
    let claim = world.bucket.claim(partition).value;
    claim.is_some_and(|claim| claim.state == ClaimState::Released)
}

/// The partitions that the assignment gives to the member in a slot.
pub(crate) fn assigned_to(world: &World, slot: usize) -> Vec<Partition> {
    let Some(record) = world.bucket.assignment().value else {
        return Vec::new();
    };
    let all = (0..world.course.partitions).map(Partition);
    all.filter(|partition| record.owner(*partition) == Some(&world.slots[slot].id))
        .collect()
}
