//! The server and the wire of the small world.

use std::collections::{BTreeMap, VecDeque};

use super::super::check::{Event, Place};
use super::{World, places};
use crate::ids::{Epoch, Partition};
use crate::lanes::{ConsumerView, Delivered, Filter, PullEnd};

/// A consumer on the server, and the wire to its owner.
pub(super) struct Consumer {
    pub(super) epoch: Epoch,
    pub(super) position: u64,
    delivered: u64,
    /// What is delivered and not acked, with the count of its first delivery.
    pub(super) unacked: BTreeMap<u64, u64>,
    again: VecDeque<u64>,
    pub(super) asked: usize,
    /// Of all pull requests together; `None` for no bound.
    pub(super) bytes: Option<usize>,
    pub(super) wire: VecDeque<Delivered<u64>>,
    /// The owner said that it is to be replaced.
    pub(super) over: bool,
    /// It delivers nothing any more.
    pub(super) stuck: bool,
}

impl World {
    pub(super) fn serve(&mut self, place: &Place, messages: u8) {
        for _ in 0..messages {
            let Some(consumer) = self.consumers.get_mut(place) else {
                return;
            };
            if consumer.asked == 0 || consumer.stuck {
                return;
            }
            let next = || {
                self.stream
                    .range(consumer.position + 1..)
                    .find(|(_, stored)| stored.place == *place)
            };
            let sequence = match consumer.again.pop_front() {
                Some(sequence) if consumer.unacked.contains_key(&sequence) => sequence,
                Some(_) => continue,
                None => match next() {
                    Some((&sequence, _)) => {
                        consumer.position = sequence;
                        sequence
                    }
                    None => return,
                },
            };
            let stored = &self.stream[&sequence];
            if consumer.bytes.is_some_and(|bytes| stored.bytes > bytes) {
                self.too_large(place, sequence);
                return;
            }
            if let Some(bytes) = &mut consumer.bytes {
                *bytes -= stored.bytes;
            }
            consumer.asked -= 1;
            if consumer.asked == 0 {
                consumer.bytes = None;
            }
            consumer.delivered += 1;
            consumer.unacked.entry(sequence).or_insert(consumer.delivered);
            let (filter, epoch, count) = (&place.1, consumer.epoch, consumer.delivered);
            consumer.wire.push_back(Delivered {
                stream_sequence: sequence,
                read_sequence: sequence,
                consumer_sequence: count,
                time: stored.time,
                key: format!("{}", stored.key).into(),
                reply: format!("{} {filter} {epoch} {count} {sequence}", place.0).into(),
                bytes: stored.bytes,
                message: sequence,
            });
        }
    }

    pub(super) fn arrive(&mut self, place: &Place, messages: u8) {
        for _ in 0..messages {
            let Some(consumer) = self.consumers.get_mut(place) else {
                return;
            };
            let Some(delivered) = consumer.wire.pop_front() else {
                return;
            };
            let epoch = consumer.epoch;
            if let Some(&owner) = self.owners.get(&place.0) {
                self.members[owner]
                    .lanes
                    .deliver(self.now, place.0, &place.1, epoch, delivered);
            }
            self.carry_out();
        }
    }

    pub(super) fn redeliver(&mut self, place: &Place, which: u8) {
        if let Some(consumer) = self.consumers.get_mut(place) {
            let count = consumer.unacked.len().max(1);
            if let Some(&sequence) = consumer.unacked.keys().nth(usize::from(which) % count) {
                consumer.again.push_back(sequence);
            }
        }
    }

    pub(super) fn pull_expires(&mut self, place: &Place) {
        let (Some(consumer), Some(&owner)) = (self.consumers.get_mut(place), self.owners.get(&place.0)) else {
            return;
        };
        let end = PullEnd {
            messages: std::mem::take(&mut consumer.asked),
            bytes: consumer.bytes.take().unwrap_or(0),
            too_large: false,
        };
        let lanes = &mut self.members[owner].lanes;
        lanes.pull_ended(place.0, &place.1, consumer.epoch, end);
    }

    /// The next message is larger than what the pull requests have left: they end, and the message stays.
    fn too_large(&mut self, place: &Place, sequence: u64) {
        let (Some(consumer), Some(&owner)) = (self.consumers.get_mut(place), self.owners.get(&place.0)) else {
            return;
        };
        if consumer.unacked.contains_key(&sequence) {
            consumer.again.push_front(sequence);
        } else {
            consumer.position = sequence - 1;
        }
        let end = PullEnd {
            messages: std::mem::take(&mut consumer.asked),
            bytes: consumer.bytes.take().unwrap_or(0),
            too_large: true,
        };
        let lanes = &mut self.members[owner].lanes;
        lanes.pull_ended(place.0, &place.1, consumer.epoch, end);
    }

    /// A message is deleted from the stream.
    pub(super) fn purge(&mut self, which: u8) {
        // One of the younger ones: those may still be unfinished.
        let count = self.stream.len().clamp(1, 20);
        let Some(&sequence) = self.stream.keys().rev().nth(usize::from(which) % count) else {
            return;
        };
        self.check.event(Event::Purged { sequence });
        if let Some(stored) = self.stream.remove(&sequence)
            && let Some(consumer) = self.consumers.get_mut(&stored.place)
        {
            consumer.unacked.remove(&sequence);
        }
    }

    pub(super) fn reconnect(&mut self, member: usize) {
        for place in places() {
            if self.owners.get(&place.0) != Some(&member) {
                continue;
            }
            if let Some(consumer) = self.consumers.get_mut(&place) {
                consumer.asked = 0;
                consumer.bytes = None;
                consumer.wire.clear();
                let epoch = consumer.epoch;
                self.members[member].lanes.pulls_lost(place.0, &place.1, epoch);
            }
        }
    }

    pub(super) fn reopen_if_over(&mut self, place: &Place) {
        if self.consumers.get(place).is_some_and(|consumer| consumer.over) {
            self.reopen(place);
        }
    }

    /// Answers what was asked about a consumer first, as it is now.
    pub(super) fn inspect(&mut self, member: usize) {
        let Some((place, epoch)) = self.members[member].inspections.pop_front() else {
            return;
        };
        let Some(consumer) = self.consumers.get(&place).filter(|consumer| consumer.epoch == epoch) else {
            return;
        };
        let rest = self.stream.range(consumer.position + 1..);
        let pending = rest.filter(|(_, stored)| stored.place == place).count();
        let first = consumer.unacked.values().min();
        let view = ConsumerView {
            delivered: consumer.delivered,
            pending: u64::try_from(pending).unwrap(),
            ack_pending: u64::try_from(consumer.unacked.len()).unwrap(),
            ack_floor: first.map_or(consumer.delivered, |first| first - 1),
        };
        self.members[member]
            .lanes
            .inspected(self.now, place.0, &place.1, epoch, view);
    }

    /// The owner opens the filter's next consumer, at its floor; on a work queue at the beginning.
    pub(super) fn reopen(&mut self, place: &Place) {
        let Some(&owner) = self.owners.get(&place.0) else {
            return;
        };
        if self.stopping.contains(&place.0) {
            return;
        }
        let lanes = &mut self.members[owner].lanes;
        let floor = lanes.progress(place.0)[&place.1].floor.sequence;
        let Some(consumer) = self.consumers.get(place) else {
            return;
        };
        let epoch = Epoch {
            reopen: consumer.epoch.reopen + 1,
            ..consumer.epoch
        };
        lanes.reopen(place.0, &place.1, epoch);
        self.create(place, epoch, floor);
        self.carry_out();
    }

    pub(super) fn create(&mut self, place: &Place, epoch: Epoch, floor: u64) {
        let consumer = Consumer {
            epoch,
            position: if self.work_queue { 0 } else { floor },
            delivered: 0,
            unacked: BTreeMap::new(),
            again: VecDeque::new(),
            asked: 0,
            bytes: None,
            wire: VecDeque::new(),
            over: false,
            stuck: false,
        };
        self.consumers.insert(place.clone(), consumer);
    }

    /// An ack reaches the server; it counts only if its consumer still exists.
    pub(super) fn acked(&mut self, reply: &str) {
        let parts: Vec<_> = reply.split(' ').collect();
        let sequence: u64 = parts[4].parse().unwrap();
        self.check.event(Event::Acked { sequence });
        let place = (Partition(parts[0].parse().unwrap()), Filter::from(parts[1]));
        if self.acks_are_lost {
            return;
        }
        let Some(consumer) = self.consumers.get_mut(&place) else {
            return;
        };
        if consumer.epoch.to_string() == parts[2] {
            consumer.unacked.remove(&sequence);
            if self.work_queue {
                self.stream.remove(&sequence);
            }
        }
    }
}
