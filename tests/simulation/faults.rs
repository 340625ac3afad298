//! What goes wrong, when, and how it is mended; and what must be true when nothing goes wrong any more.

use std::collections::BTreeMap;

use jetring::engine::MemberPhase;
use jetring::ids::Partition;

use crate::member::Input;
use crate::planted::Plant;
use crate::world::{Happening, World};
use crate::{MILLI, SECOND};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Start(usize),
    Crash(usize),
    Freeze(usize),
    Thaw(usize, u64),
    Cut {
        slot: usize,
        up: bool,
        down: bool,
    },
    Reconnect(usize),
    Stall(usize),
    Leave(usize),
    RestartServer,
    DeleteBucket,
    DeleteConsumer,
    /// From now on nothing goes wrong any more.
    Calm,
}

impl World {
    pub(crate) fn plan_faults(&mut self) {
        let members = self.slots.len() as u64;
        let mut at = self.random.between(500, 4_000) * MILLI;
        while at < self.options.chaos {
            let slot = self.random.between(0, members) as usize;
            let fault = match self.random.between(0, 100) {
                0..15 => Fault::Crash(slot),
                15..30 => Fault::Freeze(slot),
                30..42 => Fault::Cut {
                    slot,
                    up: true,
                    down: true,
                },
                42..50 => Fault::Cut {
                    slot,
                    up: true,
                    down: false,
                },
                50..58 => Fault::Cut {
                    slot,
                    up: false,
                    down: true,
                },
                58..66 => Fault::Stall(slot),
                66..78 => Fault::Leave(slot),
                78..84 => Fault::RestartServer,
                84..87 => Fault::DeleteBucket,
                87..92 => Fault::DeleteConsumer,
                _ => Fault::Reconnect(slot),
            };
            self.after(at, Happening::Fault(fault));
            at += self.random.between(300, 6_000) * MILLI;
        }
        if self.options.plant == Some(Plant::TokensForgotten) {
            self.after(10 * SECOND, Happening::Fault(Fault::DeleteBucket));
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        if self.calm && !matches!(fault, Fault::Start(_) | Fault::Reconnect(_) | Fault::Thaw(..)) {
            return;
        }
        self.tell(|| format!("FAULT {fault:?}"));
        match fault {
            Fault::Start(slot) => self.start(slot),
            Fault::Crash(slot) => {
                self.end(slot);
                let pause = self.random.between(0, 12_000);
                self.after(pause * MILLI, Happening::Fault(Fault::Start(slot)));
            }
            Fault::Freeze(slot) => {
                if self.slots[slot].member.is_some() && !self.slots[slot].frozen {
                    self.slots[slot].frozen = true;
                    let life = self.slots[slot].life;
                    let long = if self.random.percent(50) { 4_000 } else { 15_000 };
                    let pause = self.random.between(100, long);
                    self.after(pause * MILLI, Happening::Fault(Fault::Thaw(slot, life)));
                }
            }
            Fault::Thaw(slot, life) => self.thaw(slot, life),
            Fault::Cut { slot, up, down } => {
                let until = self.now + self.random.between(200, 9_000) * MILLI;
                if up {
                    self.slots[slot].cut_up = until;
                }
                if down {
                    self.slots[slot].cut_down = until;
                }
                self.at(until + MILLI, Happening::Fault(Fault::Reconnect(slot)));
            }
            Fault::Reconnect(slot) => self.reconnect(slot),
            Fault::Stall(slot) => self.slots[slot].stalled = self.now + self.random.between(1_000, 15_000) * MILLI,
            Fault::Leave(slot) => {
                let life = self.slots[slot].life;
                self.input(slot, life, Input::Leave);
            }
            Fault::RestartServer => self.restart_server(),
            Fault::DeleteBucket => self.bucket.delete(),
            Fault::DeleteConsumer => {
                let names: Vec<_> = self.stream.consumers.keys().cloned().collect();
                if self.consumers_are_disposable()
                    && let Some(name) = self.random.pick(&names).cloned()
                {
                    let quietly = self.random.percent(30);
                    self.delete_consumer(&name, quietly);
                }
            }
            Fault::Calm => self.calm_down(),
        }
    }

    fn thaw(&mut self, slot: usize, life: u64) {
        if self.slots[slot].life != life || !self.slots[slot].frozen {
            return;
        }
        self.excuse_the_frozen();
        self.slots[slot].frozen = false;
        self.tell(|| format!("m{slot} wakes"));
        for happening in std::mem::take(&mut self.slots[slot].backlog) {
            self.at(self.now, happening);
        }
    }

    /// The client of a member connects again: the watch starts anew, and what was pulled is lost.
    fn reconnect(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        (place.cut_up, place.cut_down) = (0, 0);
        let life = place.life;
        for consumer in self.stream.consumers.values_mut() {
            consumer.pulls.retain(|pull| pull.to.1 != life);
        }
        self.input(slot, life, Input::Reconnected);
        self.show_all(slot);
    }

    fn restart_server(&mut self) {
        let until = self.now + self.random.between(200, 4_000) * MILLI;
        let forgets = self.consumers_are_disposable() && self.random.percent(60);
        let names: Vec<_> = self.stream.consumers.keys().cloned().collect();
        for name in names {
            if forgets {
                self.delete_consumer(&name, true);
            } else if let Some(consumer) = self.stream.consumers.get_mut(&name) {
                consumer.pulls.clear();
            }
        }
        for slot in 0..self.slots.len() {
            self.slots[slot].cut_up = until;
            self.slots[slot].cut_down = until;
            let later = until + self.random.between(1, 500) * MILLI;
            self.at(later, Happening::Fault(Fault::Reconnect(slot)));
        }
    }

    fn calm_down(&mut self) {
        self.calm = true;
        let keep = self.random.between(0, self.slots.len() as u64) as usize;
        for slot in 0..self.slots.len() {
            let life = self.slots[slot].life;
            self.thaw(slot, life);
            let place = &mut self.slots[slot];
            let was_cut = place.cut_up.max(place.cut_down) > self.now;
            (place.cut_up, place.cut_down, place.stalled) = (0, 0, 0);
            if was_cut {
                self.reconnect(slot);
            }
            if slot == keep || self.random.percent(70) {
                self.after(SECOND, Happening::Fault(Fault::Start(slot)));
            }
        }
    }

    /// Nothing has gone wrong for a long while: all is well.
    pub(crate) fn check_rest(&self) -> Result<(), String> {
        let active = |place: &&crate::world::Slot| {
            place
                .member
                .as_ref()
                .is_some_and(|member| member.engine.phase() == MemberPhase::Active)
        };
        let members: Vec<_> = self.slots.iter().filter(active).collect();
        let alive = self.slots.iter().filter(|place| place.member.is_some()).count();
        if members.len() != alive || alive == 0 {
            return Err(format!("at rest: {} of {alive} members are active", members.len()));
        }
        let mut loads: BTreeMap<_, usize> = members.iter().map(|place| (&place.id, 0)).collect();
        for partition in (0..self.options.partitions).map(Partition) {
            let serving =
                |place: &&&crate::world::Slot| place.member.as_ref().is_some_and(|member| member.is_serving(partition));
            let owners: Vec<_> = members.iter().filter(serving).map(|place| &place.id).collect();
            let [owner] = owners[..] else {
                return Err(format!("at rest: partition {partition} is served by {owners:?}"));
            };
            *loads.entry(owner).or_default() += 1;
            let consumers: Vec<_> = self
                .stream
                .consumers
                .keys()
                .filter(|name| name.partition == partition)
                .collect();
            let [consumer] = consumers[..] else {
                return Err(format!(
                    "at rest: partition {partition} has the consumers {consumers:?}"
                ));
            };
            let lag = self.stream.lag(consumer);
            if lag > 0 && self.check.unfinished() == 0 {
                return Err(format!("at rest: lag {lag} of {consumer}"));
            }
        }
        let (least, most) = (loads.values().min(), loads.values().max());
        if most.zip(least).is_some_and(|(most, least)| most - least > 1) {
            return Err(format!("at rest: loads {loads:?}"));
        }
        match self.check.unfinished() {
            0 => Ok(()),
            left => Err(format!("at rest: not handled: {left}")),
        }
    }
}
