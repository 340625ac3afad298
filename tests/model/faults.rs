//! What may go wrong, when, and how it is mended.

use jetring::engine::{Event, MemberPhase};

use crate::actions::Action;
use crate::bounds::Bounds;
use crate::process::{Flight, Process, is_write, time};
use crate::world::World;

impl Process {
    /// What may go wrong.
    fn faults(&self, bounds: &Bounds, world: &World, slot: usize, actions: &mut Vec<Action>) {
        let left = world.left;
        if left.losses > 0 {
            for (ticket, asked) in self.arriving(bounds) {
                // A process that does not run sees no difference, unless it is a write.
                if !self.frozen || is_write(&asked.command) {
                    actions.push(Action::Lose(slot, ticket));
                }
                if !self.frozen {
                    actions.push(Action::Slow(slot, ticket));
                }
            }
        }
        if left.crashes > 0 {
            actions.push(Action::Crash(slot));
        }
        if left.freezes > 0 && !self.frozen {
            actions.push(Action::Freeze(slot));
        }
        if left.cuts > 0 && !self.cut {
            actions.push(Action::Cut(slot));
        }
        if left.leaves > 0 && !self.frozen && self.engine.phase() == MemberPhase::Active {
            actions.push(Action::Leave(slot));
        }
    }
}

impl World {
    /// What may go wrong in this state, or be mended.
    pub(crate) fn faults(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.now <= bounds.mends_until {
            actions.extend(self.limbo.keys().map(|&(life, ticket)| Action::Land(life, ticket)));
            for slot in 0..self.slots.len() {
                match self.process(slot) {
                    Some(process) if process.frozen => actions.push(Action::Thaw(slot)),
                    Some(process) if process.cut => actions.push(Action::Mend(slot)),
                    None if self.left.restarts > 0 && self.is_gone(slot) => actions.push(Action::Restart(slot)),
                    _ => {}
                }
            }
        }
        if (bounds.faults_from..=bounds.faults_until).contains(&self.now) {
            for slot in 0..self.slots.len() {
                if let Some(process) = self.process(slot) {
                    process.faults(bounds, self, slot, actions);
                }
            }
            if self.left.vanishes > 0 {
                actions.extend(self.stream.consumers.keys().map(|name| Action::Vanish(name.partition)));
            }
        }
    }

    pub(crate) fn go_wrong(&mut self, bounds: &Bounds, action: Action) {
        let left = &mut self.left;
        match action {
            Action::Lose(slot, ticket) => {
                left.losses -= 1;
                self.lose(slot, ticket);
            }
            Action::Slow(slot, ticket) => {
                left.losses -= 1;
                self.serve(bounds, slot, ticket, true);
            }
            Action::Land(life, ticket) => {
                if let Some(command) = self.limbo.remove(&(life, ticket)) {
                    self.execute(bounds.plant, life, &command);
                }
            }
            Action::Crash(slot) => {
                left.crashes -= 1;
                self.end(slot, false);
            }
            Action::Restart(slot) => {
                left.restarts -= 1;
                self.start(bounds, slot);
            }
            Action::Freeze(slot) => {
                left.freezes -= 1;
                self.alter(slot, |process| {
                    process.frozen = true;
                    process.behind = true;
                });
            }
            Action::Thaw(slot) => {
                self.alter(slot, |process| {
                    process.frozen = false;
                    process.behind = !process.hints.is_empty();
                    process.lanes.values_mut().for_each(|lanes| lanes.eventful = true);
                });
            }
            Action::Cut(slot) => {
                left.cuts -= 1;
                self.alter(slot, |process| {
                    process.cut = true;
                    process.hints.clear();
                });
            }
            Action::Mend(slot) => self.mend(bounds, slot),
            Action::Leave(slot) => {
                left.leaves -= 1;
                self.step(bounds, slot, Event::Leave);
            }
            Action::Vanish(partition) => {
                left.vanishes -= 1;
                self.stream.consumers.retain(|name, _| name.partition != partition);
            }
            _ => {}
        }
    }

    /// The link is back: what was under way is lost, and the watch begins anew.
    fn mend(&mut self, bounds: &Bounds, slot: usize) {
        let bucket = &self.bucket;
        let scope = self.process(slot).and_then(|process| process.watch.clone());
        let snapshot = scope.map(|scope| bucket.snapshot(&scope)).unwrap_or_default();
        self.alter(slot, |process| {
            process.cut = false;
            process.hints = snapshot.into();
            let sent = process.asked.values_mut().filter(|asked| asked.flight == Flight::Sent);
            sent.for_each(|asked| asked.flight = Flight::Lost);
        });
        self.step(bounds, slot, Event::Reconnected);
    }

    /// A process that is frozen past its lease is the named exception from now on, as far as it runs something.
    pub(crate) fn note_late(&mut self) {
        for slot in 0..self.slots.len() {
            let over = self.process(slot).is_some_and(|process| {
                let end = process.engine.lease_end();
                process.frozen && !process.lanes.is_empty() && end.is_none_or(|end| end <= time(self.now))
            });
            if over {
                self.alter(slot, |process| process.late = true);
            }
        }
    }
}
