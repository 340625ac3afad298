//! The steps that a state allows. Time goes on only when nothing is left to do at its present point, so a round trip takes no
//! time unless it is one that the search makes slow or loses.

use std::sync::Arc;

use jetring::engine::{Event, Ticket};
use jetring::ids::Partition;
use stateright::{Model, Property};

use crate::bounds::Bounds;
use crate::planted::Plant;
use crate::process::{Asked, Flight, Life, Phase, Process};
use crate::properties::{Violation, properties};
use crate::server::wire_epoch;
use crate::world::World;

/// One step. Members are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time goes on to when something is due next.
    Tick,
    Start(usize),
    Wake(usize),
    /// A request goes to the server and its answer comes back; or waits if the process is frozen.
    Serve(usize, Ticket),
    /// An answer that waited is taken in.
    Deliver(usize, Ticket),
    /// A request has waited for too long.
    Unanswered(usize, Ticket),
    /// The watch shows the next thing.
    Hint(usize),
    HandlerSucceeds(usize, Partition),
    HandlerIsCancelled(usize, Partition),
    /// The server says that the consumer is gone.
    Missing(usize, Partition),

    /// The request or its reply is lost; a write may still take effect.
    Lose(usize, Ticket),
    /// A write that was lost takes effect.
    Land(Life, Ticket),
    /// A request is carried out, and its answer is slow.
    Slow(usize, Ticket),
    Crash(usize),
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
    Cut(usize),
    Mend(usize),
    Leave(usize),
    /// The server loses a consumer.
    Vanish(Partition),
}

impl Process {
    /// The requests that may reach the server next.
    pub(crate) fn arriving(&self, bounds: &Bounds) -> impl Iterator<Item = (Ticket, &Asked)> {
        let sent = |(_, asked): &(&Ticket, &Asked)| asked.flight == Flight::Sent;
        let count = match (self.cut, bounds.reorder) {
            (true, _) => 0,
            (false, true) => usize::MAX,
            (false, false) => 1,
        };
        let asked = self.asked.iter().filter(sent);
        asked.map(|(ticket, asked)| (*ticket, asked)).take(count)
    }

    /// What has come in or falls due, and is taken in before anything else happens anywhere.
    fn local(&self, bounds: &Bounds, world: &World, slot: usize) -> Vec<Action> {
        let (now, mut actions) = (world.now, Vec::new());
        if self.frozen {
            return actions;
        }
        for (&ticket, asked) in &self.asked {
            let overdue = asked.until <= now;
            if let Flight::Answered { slow, .. } = asked.flight
                && !self.cut
                && (!slow || overdue)
            {
                actions.push(Action::Deliver(slot, ticket));
            }
            if overdue {
                actions.push(Action::Unanswered(slot, ticket));
            }
        }
        if self.is_due(now) {
            actions.push(Action::Wake(slot));
        }
        if self.behind {
            actions.push(Action::Hint(slot));
        }
        for (&partition, lanes) in &self.lanes {
            let overdue = lanes.cancelled_until().is_some_and(|until| until <= now);
            if lanes.running.is_some() && overdue {
                actions.push(Action::HandlerIsCancelled(slot, partition));
            }
            let epoch = wire_epoch(bounds.plant, lanes.epoch);
            let pulls = !self.cut && !lanes.told_missing && lanes.phase == Phase::Open;
            if pulls && !world.stream.has_consumer(partition, epoch) {
                actions.push(Action::Missing(slot, partition));
            }
        }
        actions
    }

    /// What may happen now or later.
    fn optional(&self, slot: usize, now: u64, actions: &mut Vec<Action>) {
        if self.frozen {
            return;
        }
        for (&ticket, asked) in &self.asked {
            let slow = matches!(asked.flight, Flight::Answered { slow: true, .. });
            if slow && !self.cut && asked.until > now {
                actions.push(Action::Deliver(slot, ticket));
            }
        }
        for (&partition, lanes) in self.lanes.iter().filter(|(_, lanes)| lanes.running.is_some()) {
            let overdue = lanes.cancelled_until().is_some_and(|until| until <= now);
            if lanes.eventful || overdue {
                actions.push(Action::HandlerSucceeds(slot, partition));
            }
            // The last moment is seen to with what is urgent.
            if lanes.eventful && !overdue && lanes.cancelled_until().is_some() {
                actions.push(Action::HandlerIsCancelled(slot, partition));
            }
        }
    }
}

impl World {
    /// What one process takes in. It touches no other one but by what is sent then, so the order among processes is of no matter.
    fn local(&self, bounds: &Bounds) -> Vec<Action> {
        let of_slot = |slot: usize| match self.process(slot) {
            Some(process) => process.local(bounds, self, slot),
            None if self.slots[slot].life == 0 && bounds.starts_at(slot) <= self.now => vec![Action::Start(slot)],
            None => Vec::new(),
        };
        let mut found = (0..self.slots.len()).map(of_slot);
        found.find(|actions| !actions.is_empty()).unwrap_or_default()
    }

    /// Whether somebody else has more to ask.
    fn leaves_another(&self, bounds: &Bounds, slot: usize) -> bool {
        let last = self.turn.map(|(last, _)| last).filter(|last| *last != slot);
        last.and_then(|last| self.process(last))
            .is_some_and(|process| process.arriving(bounds).next().is_some())
    }

    fn may_turn_to(&self, bounds: &Bounds, slot: usize) -> bool {
        let (Some(most), Some((_, switches))) = (bounds.switches, self.turn) else {
            return true;
        };
        switches < most || !self.leaves_another(bounds, slot)
    }

    fn turn_to(&mut self, bounds: &Bounds, slot: usize) {
        let switches = self.turn.map_or(0, |(_, switches)| switches);
        let more = u8::from(self.leaves_another(bounds, slot));
        self.turn = bounds.switches.map(|_| (slot, switches + more));
    }

    /// What must reach the server, or be looked at, before time goes on.
    fn under_way(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        for slot in 0..self.slots.len() {
            let Some(process) = self.process(slot) else { continue };
            let requests = process.arriving(bounds).filter(|_| self.may_turn_to(bounds, slot));
            actions.extend(requests.map(|(ticket, _)| Action::Serve(slot, ticket)));
            if !process.frozen && !process.hints.is_empty() {
                actions.push(Action::Hint(slot));
            }
        }
        actions
    }

    /// The next point in time at which something is due, within the horizon.
    fn next_due(&self, bounds: &Bounds) -> Option<u64> {
        let due = |slot: usize| match self.process(slot) {
            Some(process) => process.next_due(self.now),
            None => Some(bounds.starts_at(slot)).filter(|at| self.slots[slot].life == 0 && *at > self.now),
        };
        let next = (0..self.slots.len()).filter_map(due).min()?;
        (next <= bounds.horizon()).then_some(next)
    }

    /// Whether the history ends here, unless a handler does.
    pub(crate) fn is_at_rest(&self, bounds: &Bounds) -> bool {
        self.next_due(bounds).is_none() && self.under_way(bounds).is_empty() && self.local(bounds).is_empty()
    }

    fn act(&mut self, bounds: &Bounds, action: Action) {
        if matches!(action, Action::Tick | Action::Serve(..)) {
            self.pass();
        }
        match action {
            Action::Tick => {
                if let Some(next) = self.next_due(bounds) {
                    self.pass_time(next);
                }
            }
            Action::Start(slot) => self.start(bounds, slot),
            Action::Wake(slot) => {
                if bounds.plant != Some(Plant::DeadlineIgnored) {
                    self.step(bounds, slot, Event::Wake);
                }
                if self.process(slot).is_some_and(|process| process.is_due(self.now)) {
                    self.violate(Violation::Spins);
                }
            }
            Action::Serve(slot, ticket) => {
                self.turn_to(bounds, slot);
                self.serve(bounds, slot, ticket, false);
            }
            Action::Deliver(slot, ticket) => self.deliver(bounds, slot, ticket),
            Action::Unanswered(slot, ticket) => {
                self.alter(slot, |process| process.asked.remove(&ticket));
                self.step(bounds, slot, Event::Unanswered(ticket));
            }
            Action::Hint(slot) => {
                self.hint(bounds, slot);
            }
            Action::HandlerSucceeds(slot, partition) => self.handler_ends(bounds, slot, partition, true),
            Action::HandlerIsCancelled(slot, partition) => self.handler_ends(bounds, slot, partition, false),
            Action::Missing(slot, partition) => self.missing(bounds, slot, partition),
            fault => self.go_wrong(bounds, fault),
        }
    }

    fn pass_time(&mut self, until: u64) {
        self.now = until;
        // The bucket is not this group's alone. So what has become of earlier writes, not how many there were, makes states
        // differ.
        let revision = self.bucket.revision.max(until);
        Arc::make_mut(&mut self.bucket).revision = revision;
        self.note_late();
    }

    /// Handlers that have not ended by now go on until something happens to them.
    fn pass(&mut self) {
        for slot in 0..self.slots.len() {
            let eventful = |process: &Process| process.lanes.values().any(|lanes| lanes.eventful);
            if self.process(slot).is_some_and(eventful) {
                self.alter(slot, |process| {
                    process.lanes.values_mut().for_each(|lanes| lanes.eventful = false);
                });
            }
        }
    }

    /// Shows what was written to those who have nothing else to look at, unless hints come late.
    fn show(&mut self, bounds: &Bounds) {
        self.show_changes();
        if bounds.hints_late {
            return;
        }
        loop {
            let attentive = |slot: &usize| {
                self.process(*slot)
                    .is_some_and(|process| !process.frozen && !process.behind && !process.hints.is_empty())
            };
            let Some(slot) = (0..self.slots.len()).find(attentive) else {
                return;
            };
            self.hint(bounds, slot);
        }
    }

    fn hint(&mut self, bounds: &Bounds, slot: usize) {
        let seen = self.alter(slot, |process| {
            let seen = process.hints.pop_front();
            process.behind &= !process.hints.is_empty();
            seen
        });
        if let Some(seen) = seen.flatten() {
            self.step(bounds, slot, Event::Seen(seen));
        }
    }
}

impl Model for Bounds {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.violations.is_empty() {
            return;
        }
        let local = world.local(self);
        let busy = !local.is_empty();
        actions.extend(local);
        for slot in 0..self.members {
            if let Some(process) = world.process(slot) {
                process.optional(slot, world.now, actions);
            }
        }
        if busy {
            return;
        }
        let under_way = world.under_way(self);
        if under_way.is_empty() && world.next_due(self).is_some() {
            actions.push(Action::Tick);
        }
        actions.extend(under_way);
        world.faults(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.act(self, action);
        next.show(self);
        if next.turn.is_some() && next.under_way(self).is_empty() {
            next.turn = None;
        }
        next.digest(world);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties(self)
    }
}
