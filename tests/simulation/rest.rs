//! What must be true when nothing has gone wrong for a long while.

use std::collections::BTreeMap;

use jetring::engine::MemberPhase;
use jetring::ids::{MemberId, Partition};
use jetring::names::ConsumerName;

use crate::process::Slot;
use crate::world::World;

impl World {
    /// Every partition has one owner, the loads are what they should be, and everything is handled.
    pub(crate) fn check_rest(&self) -> Result<(), String> {
        let loads = self.loads()?;
        self.check_loads(&loads)?;
        self.check_consumers()?;
        match self.check.unfinished() {
            0 => Ok(()),
            left => Err(format!("at rest: not handled: {left}")),
        }
    }

    /// The members that take part.
    fn active(&self) -> Vec<usize> {
        let active = |slot: &&usize| {
            let member = self.slots[**slot].member.as_ref();
            member.is_some_and(|member| member.junction.engine().phase() == MemberPhase::Active)
        };
        (0..self.slots.len())
            .collect::<Vec<_>>()
            .iter()
            .filter(active)
            .copied()
            .collect()
    }

    /// How many partitions every member serves. Each is served by one.
    fn loads(&self) -> Result<BTreeMap<MemberId, u64>, String> {
        let members = self.active();
        let alive = self.slots.iter().filter(|place| place.member.is_some()).count();
        if members.len() != alive || alive == 0 {
            return Err(format!("at rest: {} of {alive} members are active", members.len()));
        }
        let id = |slot: &usize| self.slots[*slot].id.clone();
        let mut loads: BTreeMap<MemberId, u64> = members.iter().map(|slot| (id(slot), 0)).collect();
        for partition in (0..self.course.partitions).map(Partition) {
            let owners: Vec<_> = members.iter().filter(|slot| self.serves(**slot, partition)).collect();
            let [owner] = owners[..] else {
                return Err(format!("at rest: partition {partition} is served by {owners:?}"));
            };
            *loads.entry(id(owner)).or_default() += 1;
        }
        Ok(loads)
    }

    /// Whether all is well, apart from what is still to be handled.
    pub(crate) fn is_settled(&self) -> bool {
        self.loads().is_ok_and(|loads| self.check_loads(&loads).is_ok()) && self.check_one_each().is_ok()
    }

    /// Every load is the member's share by weight, rounded down or up.
    fn check_loads(&self, loads: &BTreeMap<MemberId, u64>) -> Result<(), String> {
        let weight = |slot: &&Slot| loads.contains_key(&slot.id).then_some(u64::from(slot.weight));
        let all = self.slots.iter().collect::<Vec<_>>();
        let total: u64 = all.iter().filter_map(weight).sum();
        let count = u64::from(self.course.partitions);
        for slot in all.iter().filter(|slot| loads.contains_key(&slot.id)) {
            let share = count * u64::from(slot.weight);
            let load = loads[&slot.id];
            if load < share / total || load > share.div_ceil(total) {
                return Err(format!("at rest: loads {loads:?}"));
            }
        }
        Ok(())
    }

    /// A filter has one consumer, and that of a partition is there.
    fn check_one_each(&self) -> Result<(), String> {
        let names = || self.server.stream.consumers.keys();
        for partition in (0..self.course.partitions).map(Partition) {
            let of_partition: Vec<&ConsumerName> = names().filter(|name| name.partition == partition).collect();
            let mut filters: Vec<u64> = of_partition.iter().map(|name| name.filter_hash).collect();
            filters.sort_unstable();
            filters.dedup();
            let missing = filters.is_empty() && !self.course.by_key;
            if filters.len() < of_partition.len() || missing {
                return Err(format!(
                    "at rest: partition {partition} has the consumers {of_partition:?}"
                ));
            }
        }
        Ok(())
    }

    /// Nothing is left to ack once everything is handled.
    fn check_consumers(&self) -> Result<(), String> {
        self.check_one_each()?;
        for name in self.server.stream.consumers.keys() {
            let lag = self.server.stream.lag(name);
            if lag > 0 && self.check.unfinished() == 0 {
                return Err(format!("at rest: lag {lag} of {name}"));
            }
        }
        Ok(())
    }
}
