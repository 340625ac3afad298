//! What must never happen, what must be possible, and what must be true at rest.

use std::collections::BTreeSet;

use jetring::Activity;
use jetring::engine::MemberPhase;
use jetring::ids::Partition;
use stateright::Property;

use crate::bounds::Bounds;
use crate::process::{Life, Process};
use crate::world::World;

pub(crate) const ONE_OWNER: &str = "no two members may run handlers of one partition";
pub(crate) const NOTHING_LATE: &str = "a member that was frozen past its lease starts nothing";
pub(crate) const TOKENS_GROW: &str = "fencing tokens grow from owner to owner";
pub(crate) const EPOCHS_NEW: &str = "no epoch is used twice";
pub(crate) const NOTHING_SKIPPED: &str = "nothing is opened or saved ahead of unfinished work";
pub(crate) const NO_LIVING_DELETED: &str = "no deletion hits the consumer of a living owner";
pub(crate) const NO_FOREIGN_ACK: &str = "no ack hits the consumer of another tenure";
pub(crate) const ORDERLY: &str = "no deadline spins, nothing runs in a member that has ended";
pub(crate) const ALL_SERVED: &str = "at rest every partition is served, and nothing is lost";
pub(crate) const OWNED: &str = "every partition is served";
pub(crate) const HANDED_OVER: &str = "a handover completes";
pub(crate) const TAKEN_OVER: &str = "a takeover after a crash completes";
pub(crate) const REJOINED: &str = "a fenced member is back and serves";
pub(crate) const LEFT: &str = "a member leaves while another one serves";

/// Something that must never happen, seen in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Violation {
    StartedLate,
    TokenNotAbove,
    EpochReused,
    AheadOfWork,
    LivingConsumerDeleted,
    ForeignAck,
    Spins,
    RunsAfterEnd,
}

/// How the claim that is in force was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    First,
    Released,
    Taken,
}

impl World {
    fn never(&self, violation: Violation) -> bool {
        !self.violations.contains(&violation)
    }

    fn partitions(&self) -> impl Iterator<Item = Partition> {
        (0..self.stream.partitions).map(Partition)
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        (0..self.slots.len()).filter_map(|slot| self.process(slot))
    }

    /// Whether lanes are open, or their handlers have not ended, in no more than one process; the late ones are excused.
    fn has_one_owner(&self, partition: Partition) -> bool {
        let runs = |process: &&Process| process.lanes.contains_key(&partition) && !process.late;
        self.processes().filter(runs).count() <= 1
    }

    fn serving(&self, partition: Partition) -> Option<Life> {
        let serves = |slot: &usize| {
            self.process(*slot).is_some_and(|process| {
                process.lanes.contains_key(&partition)
                    && matches!(process.engine.activities().get(&partition), Some(Activity::Serving(_)))
            })
        };
        (0..self.slots.len()).find(serves).map(|slot| self.life(slot))
    }

    fn any_served_by(&self, origin: Origin) -> bool {
        self.partitions()
            .any(|partition| self.origins.get(&partition) == Some(&origin) && self.serving(partition).is_some())
    }

    /// Nothing is due before the end: whoever lives takes part, every partition is served by one of them from a consumer that is
    /// there, and what is not finished is in its lanes.
    fn rests_well(&self) -> bool {
        let reachable = |process: &&Process| !process.frozen && !process.cut;
        let living: Vec<&Process> = self.processes().filter(reachable).collect();
        let active = |process: &&Process| process.engine.phase() == MemberPhase::Active;
        living.iter().all(active)
            && (living.is_empty()
                || self
                    .partitions()
                    .all(|partition| self.is_served_well(partition, &living)))
    }

    fn is_served_well(&self, partition: Partition, living: &[&Process]) -> bool {
        let serves =
            |process: &&&Process| matches!(process.engine.activities().get(&partition), Some(Activity::Serving(_)));
        let serving: Vec<_> = living.iter().filter(serves).collect();
        let [owner] = serving[..] else { return false };
        let Some(lanes) = owner.lanes.get(&partition) else {
            return false;
        };
        let known: BTreeSet<u64> = lanes.held.iter().copied().chain(lanes.running).collect();
        self.stream
            .unfinished(partition)
            .all(|sequence| known.contains(&sequence))
            && self
                .stream
                .consumers
                .keys()
                .any(|name| name.partition == partition && name.epoch == lanes.epoch)
    }
}

/// The invariants, and what a search of these bounds must reach to mean anything.
pub(crate) fn properties(bounds: &Bounds) -> Vec<Property<Bounds>> {
    let mut properties = vec![
        Property::always(ONE_OWNER, |_: &Bounds, world: &World| {
            world.partitions().all(|partition| world.has_one_owner(partition))
        }),
        Property::always(NOTHING_LATE, |_: &Bounds, world: &World| {
            world.never(Violation::StartedLate)
        }),
        Property::always(TOKENS_GROW, |_: &Bounds, world: &World| {
            world.never(Violation::TokenNotAbove)
        }),
        Property::always(EPOCHS_NEW, |_: &Bounds, world: &World| {
            world.never(Violation::EpochReused)
        }),
        Property::always(NOTHING_SKIPPED, |_: &Bounds, world: &World| {
            world.never(Violation::AheadOfWork)
        }),
        Property::always(NO_LIVING_DELETED, |_: &Bounds, world: &World| {
            world.never(Violation::LivingConsumerDeleted)
        }),
        Property::always(NO_FOREIGN_ACK, |_: &Bounds, world: &World| {
            world.never(Violation::ForeignAck)
        }),
        Property::always(ORDERLY, |_: &Bounds, world: &World| {
            world.never(Violation::Spins) && world.never(Violation::RunsAfterEnd)
        }),
        Property::always(ALL_SERVED, |bounds: &Bounds, world: &World| {
            !world.is_at_rest(bounds) || world.rests_well()
        }),
        Property::sometimes(OWNED, |_: &Bounds, world: &World| {
            world.partitions().all(|partition| world.serving(partition).is_some())
        }),
    ];
    let faults = bounds.faults;
    if bounds.partitions > 1 || faults.leaves > 0 {
        properties.push(Property::sometimes(HANDED_OVER, |_: &Bounds, world: &World| {
            world.any_served_by(Origin::Released)
        }));
    }
    if faults.crashes > 0 {
        properties.push(Property::sometimes(TAKEN_OVER, |_: &Bounds, world: &World| {
            world.any_served_by(Origin::Taken) && (0..world.slots.len()).any(|slot| world.is_gone(slot))
        }));
    }
    if faults.freezes > 0 || faults.cuts > 0 {
        properties.push(Property::sometimes(REJOINED, |_: &Bounds, world: &World| {
            let second = |process: &Process| process.engine.incarnation().0.ends_with("-2");
            world
                .partitions()
                .filter_map(|partition| world.serving(partition))
                .any(|life| world.process(life.slot).is_some_and(second))
        }));
    }
    if faults.leaves > 0 {
        properties.push(Property::sometimes(LEFT, |_: &Bounds, world: &World| {
            let ended = |slot: usize| world.slots[slot].ended;
            (0..world.slots.len()).any(ended) && world.any_served_by(Origin::Released)
        }));
    }
    properties
}
