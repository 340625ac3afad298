//! Spilling: a key that waits keeps few of its messages in memory, so that it neither stops others nor grows without bound.
//!
//! In every lane the first messages are in memory and the rest is spilled: kept as sequence, time and reply subject, kept alive by
//! in-progress acks like all that is held, and read again from the stream when their turn comes. A lane spills
//! - what lies past `lane_depth`, while it waits for a retry or a dead letter;
//! - all but its first message, longest waiting first, when the waiting lanes of a filter have more than half of its share of the
//!   room. The shares together are no more than the partition's room and the member's, so half of those stays free as well;
//! - what arrives behind a spilled message, waiting or not.

use super::Lanes;
use super::action::{Action, Found, ReadId};
use super::lane::{LaneId, State};
use super::partition::{Body, FilterId, Phase};
use super::room::Amount;

impl<M: Clone> Lanes<M> {
    /// Changes what a lane is doing, and counts it as waiting or no longer.
    pub(super) fn set_state(&mut self, id: LaneId, state: State) {
        let Some(lane) = self.lanes.get_mut(id) else {
            return;
        };
        let waited = lane.is_waiting();
        lane.state = state;
        match (waited, lane.is_waiting()) {
            (false, true) => self.starts_waiting(id),
            (true, false) => self.stops_waiting(id),
            _ => {}
        }
    }

    fn starts_waiting(&mut self, id: LaneId) {
        let since = self.next_id();
        let Some(lane) = self.lanes.get_mut(id) else {
            return;
        };
        lane.waits_since = since;
        let (filter, load) = (lane.filter, lane.load);
        if let Some(filter) = self.filters.get_mut(filter) {
            filter.waiting = filter.waiting.plus(load);
            filter.spillable.insert((since, id));
        }
        self.spill_down(id, self.settings.lane_depth.get());
        self.relieve(filter);
    }

    fn stops_waiting(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(id) else {
            return;
        };
        if let Some(filter) = self.filters.get_mut(lane.filter) {
            filter.waiting = filter.waiting.minus(lane.load);
            filter.spillable.remove(&(lane.waits_since, id));
        }
    }

    /// Spills the waiting lanes of a filter, longest waiting first, until they have no more than half of its share.
    pub(super) fn relieve(&mut self, id: FilterId) {
        while let Some(filter) = self.filters.get(id)
            && !self.share(filter).half().covers(filter.waiting)
            && let Some(&(since, lane)) = filter.spillable.first()
        {
            self.spill_down(lane, 1);
            if let Some(filter) = self.filters.get_mut(id) {
                filter.spillable.remove(&(since, lane));
            }
        }
    }

    /// Leaves so many messages of a waiting lane in memory. They must be at least one, for its first is tried again.
    fn spill_down(&mut self, id: LaneId, depth: usize) {
        while let Some(lane) = self.lanes.get_mut(id)
            && lane.load.messages > depth
            && let Some(sequence) = lane.last_in_memory()
            && let Some(filter) = self.filters.get_mut(lane.filter)
            && let Some(entry) = filter.entries.get_mut(&sequence)
        {
            let spilled = Amount::one(entry.bytes);
            if let Body::Reading(read) = std::mem::replace(&mut entry.body, Body::Spilled) {
                self.reads.remove(&read);
            }
            lane.load = lane.load.minus(spilled);
            filter.waiting = filter.waiting.minus(spilled);
            filter.spilled += 1;
            if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
                tenure.spilled += 1;
            }
            let id = lane.filter;
            self.free_room(id, spilled.bytes);
        }
    }

    /// Reads spilled messages of a lane whose turn has come: the first in any case, for the one before it has made room; some more
    /// while there is room, so that a lane that catches up does not wait for each.
    pub(super) fn read_ahead(&mut self, id: LaneId) {
        let ahead = (self.settings.lane_depth.get() / 2).max(1);
        while let Some(lane) = self.lanes.get(id)
            && !lane.is_waiting()
            && let Some(sequence) = lane.first_spilled()
            && (lane.load.messages == 0 || (lane.load.messages < ahead && self.has_room(lane.filter)))
        {
            if !self.start_read(id, sequence) {
                return;
            }
        }
    }

    fn has_room(&self, id: FilterId) -> bool {
        let tenure = self
            .filters
            .get(id)
            .and_then(|filter| self.tenures.get(&filter.partition));
        let one = Amount::one(1);
        tenure.is_some_and(|tenure| self.bound_of_partition().minus(tenure.load.total()).covers(one))
            && self.bound_of_member().minus(self.load.total()).covers(one)
    }

    fn start_read(&mut self, id: LaneId, sequence: u64) -> bool {
        let read = ReadId(self.next_id());
        let Some(lane) = self.lanes.get_mut(id) else {
            return false;
        };
        let Some(filter) = self.filters.get_mut(lane.filter) else {
            return false;
        };
        let (Some(entry), Some(tenure)) = (
            filter.entries.get_mut(&sequence),
            self.tenures
                .get_mut(&filter.partition)
                .filter(|tenure| tenure.phase == Phase::Serving),
        ) else {
            return false;
        };
        entry.body = Body::Reading(read);
        self.reads.insert(read, (lane.filter, sequence));
        lane.load = lane.load.plus(Amount::one(entry.bytes));
        filter.spilled -= 1;
        tenure.spilled -= 1;
        self.actions.push_back(Action::Read {
            read,
            partition: filter.partition,
            filter: filter.name.clone(),
            sequence: entry.read_sequence,
        });
        let (filter, bytes) = (lane.filter, entry.bytes);
        self.wanting.insert(filter);
        self.take_room(filter, bytes);
        true
    }

    /// The answer to [`Action::Read`]. A message that is gone counts as finished and is reported by [`Action::Gone`].
    ///
    /// A failure to read is none: the driver tries again until it knows.
    pub fn read(&mut self, read: ReadId, found: Found<M>) {
        let Some((id, sequence)) = self.reads.remove(&read) else {
            return;
        };
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        let Some(entry) = filter.entries.get_mut(&sequence) else {
            return;
        };
        let lane = entry.lane;
        match found {
            Found::Message { time, message } if time == entry.time => entry.body = Body::Held(message),
            // Another message is stored there: its ack is not ours to give.
            Found::Message { .. } => self.gone(id, lane, sequence, false),
            Found::Gone => self.gone(id, lane, sequence, true),
        }
        self.settle(lane);
    }

    fn gone(&mut self, id: FilterId, lane: LaneId, sequence: u64, ack: bool) {
        if let (Some(filter), Some(lane)) = (self.filters.get(id), self.lanes.get(lane)) {
            self.actions.push_back(Action::Gone {
                partition: filter.partition,
                filter: filter.name.clone(),
                key: lane.key.clone(),
                stream_sequence: sequence,
            });
        }
        if let Some(reply) = self.finish(id, sequence).filter(|_| ack) {
            self.actions.push_back(Action::Ack { reply });
        }
    }
}
