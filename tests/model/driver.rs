//! What a process does besides its engine: a driver as small as can be that does what the real one does.

use std::collections::{BTreeMap, VecDeque};

use jetring::engine::{Command, Event, ReopenReason};
use jetring::ids::{Epoch, Partition};
use jetring::lanes::Marks;
use jetring::names::ConsumerName;

use crate::bounds::{Bounds, CANCEL_GRACE, GROUP, PATIENCE};
use crate::planted::Plant;
use crate::process::{Asked, Flight, Lanes, Phase, time};
use crate::properties::Violation;
use crate::server::wire;
use crate::stream::filter;
use crate::world::World;

impl World {
    /// The engine takes an event, and everything that follows from it inside the process.
    pub(crate) fn step(&mut self, bounds: &Bounds, slot: usize, event: Event) {
        let now = time(self.now);
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(commands) = self.alter(slot, |process| process.engine.step(now, event)) else {
                return;
            };
            for command in commands {
                self.carry_out(bounds, slot, command, &mut events);
            }
        }
        self.dispatch(bounds, slot);
        self.alter(slot, |process| process.late &= !process.lanes.is_empty());
    }

    fn carry_out(&mut self, bounds: &Bounds, slot: usize, command: Command, events: &mut VecDeque<Event>) {
        match command {
            Command::Watch(scope) => {
                let snapshot = self.bucket.snapshot(&scope);
                self.alter(slot, |process| {
                    process.watch = Some(scope);
                    process.hints = if process.cut { VecDeque::new() } else { snapshot.into() };
                });
            }
            Command::Open {
                partition,
                epoch,
                marks,
                ..
            } => {
                self.check_marks(partition, &marks);
                self.check_epoch(slot, partition, epoch);
                self.alter(slot, |process| {
                    process.lanes.insert(partition, Lanes::new(epoch, marks))
                });
                self.pull(bounds, slot, partition);
            }
            Command::Reopen {
                partition, mut epoch, ..
            } => {
                if bounds.plant == Some(Plant::ReopenKept) {
                    epoch.reopen = 0;
                }
                self.check_epoch(slot, partition, epoch);
                self.alter_lanes(slot, partition, |lanes| {
                    lanes.epoch = epoch;
                    lanes.told_missing = false;
                });
                self.pull(bounds, slot, partition);
            }
            Command::Drain(partition) => {
                self.alter_lanes(slot, partition, |lanes| {
                    lanes.phase = Phase::Draining(None);
                    lanes.eventful = true;
                    lanes.held.clear();
                });
                events.extend(self.ended(slot, partition));
            }
            Command::CancelHandlers(partition) => {
                let until = self.now + CANCEL_GRACE;
                self.alter_lanes(slot, partition, |lanes| {
                    lanes.phase = Phase::Draining(Some(until));
                    lanes.eventful = true;
                });
            }
            Command::Close(..) if bounds.plant == Some(Plant::LeaseIgnored) => {}
            Command::Close(partition, token) => {
                let until = self.now + CANCEL_GRACE;
                let closing = self.alter_lanes(slot, partition, |lanes| {
                    lanes.phase = Phase::Closing(token, until);
                    lanes.eventful = true;
                    lanes.held.clear();
                });
                match closing {
                    Some(()) => events.extend(self.ended(slot, partition)),
                    // Drained just now.
                    None => events.push_back(Event::Ended { partition, token }),
                }
            }
            Command::Stop(_) => {
                if self.process(slot).is_some_and(|process| !process.lanes.is_empty()) {
                    self.violate(Violation::RunsAfterEnd);
                }
                self.end(slot, true);
            }
            // All messages have one key, and none kills its process.
            Command::Truncate(..)
            | Command::Recorded(..)
            | Command::Absolve(..)
            | Command::Notify(_)
            | Command::Overrun => {}
            request => {
                let Some(ticket) = request.ticket() else {
                    panic!("the model does not know {request:?}");
                };
                let asked = Asked {
                    command: request,
                    flight: Flight::Sent,
                    until: self.now + PATIENCE,
                };
                self.alter(slot, |process| process.asked.insert(ticket, asked));
            }
        }
    }

    pub(crate) fn alter_lanes<T>(
        &mut self,
        slot: usize,
        partition: Partition,
        act: impl FnOnce(&mut Lanes) -> T,
    ) -> Option<T> {
        self.alter(slot, |process| process.lanes.get_mut(&partition).map(act))
            .flatten()
    }

    /// The lanes are closed if they are on the way out and nothing runs in them: what the engine is told of that.
    fn ended(&mut self, slot: usize, partition: Partition) -> Option<Event> {
        let lanes = self.process(slot)?.lanes.get(&partition)?;
        if lanes.running.is_some() {
            return None;
        }
        let event = match lanes.phase {
            Phase::Open => return None,
            Phase::Draining(_) => Event::Drained {
                partition,
                marks: BTreeMap::from([(filter(partition), lanes.marks.clone())]),
            },
            Phase::Closing(token, _) => Event::Ended { partition, token },
        };
        self.alter(slot, |process| process.lanes.remove(&partition));
        Some(event)
    }

    /// A handler ends: its message is finished, or it was cancelled.
    pub(crate) fn handler_ends(&mut self, bounds: &Bounds, slot: usize, partition: Partition, success: bool) {
        let Some(Some(sequence)) = self.alter_lanes(slot, partition, |lanes| lanes.running.take()) else {
            return;
        };
        if success {
            self.stream.finished.insert(sequence);
            self.alter_lanes(slot, partition, |lanes| lanes.finish(sequence));
            self.ack(bounds, slot, partition, sequence);
        }
        // The next one of the key starts before anything else is looked at but the lease.
        self.dispatch(bounds, slot);
        match self.ended(slot, partition) {
            Some(event) => self.step(bounds, slot, event),
            None if success => self.checkpoint(bounds, slot, partition),
            None => {}
        }
    }

    fn ack(&mut self, bounds: &Bounds, slot: usize, partition: Partition, sequence: u64) {
        let Some(process) = self.process(slot).filter(|process| !process.cut) else {
            return;
        };
        let Some(lanes) = process.lanes.get(&partition) else {
            return;
        };
        let name = consumer(partition, lanes.epoch);
        self.acked(bounds.plant, self.life(slot), &name, sequence);
    }

    fn checkpoint(&mut self, bounds: &Bounds, slot: usize, partition: Partition) {
        let found = self.process(slot).and_then(|process| process.lanes.get(&partition));
        let Some(lanes) = found else { return };
        let event = Event::Checkpoint {
            partition,
            marks: BTreeMap::from([(filter(partition), lanes.marks.clone())]),
            changes: lanes.changes,
            urgent: false,
        };
        self.step(bounds, slot, event);
    }

    /// Everything that the consumer has is delivered at once.
    fn pull(&mut self, bounds: &Bounds, slot: usize, partition: Partition) {
        let found = self.process(slot).and_then(|process| process.lanes.get(&partition));
        let Some(epoch) = found.map(|lanes| lanes.epoch) else {
            return;
        };
        let name = consumer(partition, epoch);
        let delivered = self.stream.pull(&wire(bounds.plant, &name));
        for sequence in delivered {
            let known = self.alter_lanes(slot, partition, |lanes| {
                let finished = sequence <= lanes.marks.floor.sequence;
                if !finished && lanes.running != Some(sequence) && !lanes.held.contains(&sequence) {
                    lanes.held.push_back(sequence);
                }
                finished
            });
            if known == Some(true) {
                self.ack(bounds, slot, partition, sequence);
            }
        }
    }

    /// Starts what can be started, as the driver does: after one more look at the lease.
    fn dispatch(&mut self, bounds: &Bounds, slot: usize) {
        let now = time(self.now);
        let Some(process) = self.process(slot) else { return };
        let allowed = process.engine.may_dispatch(now) || bounds.plant == Some(Plant::LeaseIgnored);
        let waits = |lanes: &Lanes| lanes.phase == Phase::Open && lanes.running.is_none() && !lanes.held.is_empty();
        let ready: Vec<Partition> = process
            .lanes
            .iter()
            .filter(|(_, lanes)| allowed && waits(lanes))
            .map(|(partition, _)| *partition)
            .collect();
        if process.late && !ready.is_empty() {
            self.violate(Violation::StartedLate);
        }
        for partition in ready {
            self.alter_lanes(slot, partition, |lanes| {
                lanes.running = lanes.held.pop_front();
                lanes.eventful = true;
            });
        }
    }

    fn check_marks(&mut self, partition: Partition, marks: &Marks) {
        let floor = marks.highest();
        if self.stream.unfinished(partition).any(|sequence| sequence <= floor) {
            self.violate(Violation::AheadOfWork);
        }
    }

    fn check_epoch(&mut self, slot: usize, partition: Partition, epoch: Epoch) {
        let life = self.life(slot);
        if let Some((last, by)) = self.opened.insert(partition, (epoch, life)) {
            if epoch == last {
                self.violate(Violation::EpochReused);
            }
            if epoch < last || epoch.token == last.token && life != by {
                self.violate(Violation::TokenNotAbove);
            }
        }
    }

    /// Tells the engine that the server does not know its consumer.
    pub(crate) fn missing(&mut self, bounds: &Bounds, slot: usize, partition: Partition) {
        let Some((epoch, floor)) = self.alter_lanes(slot, partition, |lanes| {
            lanes.told_missing = true;
            (lanes.epoch, lanes.marks.floor)
        }) else {
            return;
        };
        let event = Event::Reopen {
            partition,
            filter: filter(partition),
            epoch,
            floor,
            reason: ReopenReason::Missing,
        };
        self.step(bounds, slot, event);
    }
}

fn consumer(partition: Partition, epoch: Epoch) -> ConsumerName {
    ConsumerName::new(&GROUP, partition, &filter(partition), epoch)
}
