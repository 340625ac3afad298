//! What a delivery is, and what becomes of it.

use std::sync::Arc;

use super::Lanes;
use super::action::{Action, Delivered, Gap, Reopening, RunId};
use super::filter::Filter;
use super::floor::Seen;
use super::lane::{Lane, LaneId, State};
use super::partition::{Body, Entry, FilterId, Phase};
use super::room::Amount;
use super::timers::Timer;
use crate::ids::{Epoch, Partition};
use crate::time::Time;

impl<M: Clone> Lanes<M> {
    /// A consumer delivered a message. What comes from another epoch than the current one is ignored.
    ///
    /// A new message joins the lane of its key; one that is held or running is only known by its new reply subject from now on; one
    /// that is finished is acked. A consumer sequence that is not the next one ends the epoch: [`Action::Reopen`].
    pub fn deliver(&mut self, now: Time, partition: Partition, filter: &Filter, epoch: Epoch, delivered: Delivered<M>) {
        let Some(id) = self.current(partition, filter, epoch) else {
            return;
        };
        self.arrived(id, delivered.bytes);
        if self.phase(partition) != Some(Phase::Serving) {
            self.answer_known(id, delivered);
        } else if self.is_next(id, delivered.consumer_sequence) {
            self.accept(now, id, delivered);
        }
    }

    /// Checks the consumer sequence; a gap ends the epoch.
    fn is_next(&mut self, id: FilterId, found: u64) -> bool {
        let Some(filter) = self.filters.get_mut(id).filter(|filter| !filter.lost) else {
            return false;
        };
        let expected = filter.expected;
        if found == expected {
            filter.expected += 1;
            filter.watched.delivered();
            return true;
        }
        self.break_off(id, Reopening::Gap(Gap { expected, found }));
        false
    }

    fn accept(&mut self, now: Time, id: FilterId, delivered: Delivered<M>) {
        self.forget_replaced(id, delivered.stream_sequence, delivered.time);
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        let partition = filter.partition;
        let (before, frontier) = (filter.floor.mark(), filter.floor.frontier());
        let seen = filter.floor.deliver(delivered.stream_sequence, delivered.time);
        if seen == Seen::Younger {
            filter.forget_from(delivered.stream_sequence);
        }
        let moved = filter.floor.mark() != before;
        if moved {
            filter.forget_passed();
        }
        if filter.forget_undelivered(frontier, delivered.stream_sequence) || moved {
            self.changed(partition);
        }
        match seen {
            Seen::Finished => self.actions.push_back(Action::Ack { reply: delivered.reply }),
            Seen::Unfinished => self.refresh(now, id, delivered),
            Seen::New | Seen::Younger => self.hold(now, id, delivered),
        }
    }

    /// While a partition drains, nothing new is taken, and the floor passes nothing; but what runs is acked to its latest delivery.
    fn answer_known(&mut self, id: FilterId, delivered: Delivered<M>) {
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        let Delivered {
            stream_sequence: sequence,
            time,
            reply,
            ..
        } = delivered;
        match filter.entries.get_mut(&sequence) {
            Some(entry) if entry.time == time => entry.reply = reply,
            Some(_) => {}
            None if filter.floor.is_finished(sequence, time) => self.actions.push_back(Action::Ack { reply }),
            None => {}
        }
    }

    /// Delivered again: the ack goes to this reply subject, and `ack_wait` starts anew. If it was being read, it need not be.
    fn refresh(&mut self, now: Time, id: FilterId, delivered: Delivered<M>) {
        let sequence = delivered.stream_sequence;
        let keep_at = self.keep_from(now, id);
        let Some(entry) = self
            .filters
            .get_mut(id)
            .and_then(|filter| filter.entries.get_mut(&sequence))
        else {
            return;
        };
        entry.keep_at = keep_at;
        entry.reply = delivered.reply;
        entry.read_sequence = delivered.read_sequence;
        if entry.consumer_sequence == 0 {
            // The server counts a message by its first delivery.
            entry.consumer_sequence = delivered.consumer_sequence;
        }
        if let Body::Reading(read) = entry.body {
            entry.body = Body::Held(delivered.message);
            let lane = entry.lane;
            self.reads.remove(&read);
            self.settle(lane);
        }
    }

    /// A new message joins the lane of its key.
    fn hold(&mut self, now: Time, id: FilterId, delivered: Delivered<M>) {
        let (sequence, bytes) = (delivered.stream_sequence, delivered.bytes);
        let Some(lane) = self.lane_of(id, &delivered.key) else {
            return;
        };
        let keep_at = self.keep_from(now, id);
        let stays = self.join_lane(id, lane, sequence, bytes);
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        let entry = Entry {
            lane,
            time: delivered.time,
            read_sequence: delivered.read_sequence,
            consumer_sequence: delivered.consumer_sequence,
            reply: delivered.reply,
            bytes,
            since: now,
            body: if stays {
                Body::Held(delivered.message)
            } else {
                Body::Spilled
            },
            keep_at,
        };
        filter.entries.insert(sequence, entry);
        self.relieve(id);
        self.settle(lane);
    }

    /// Counts a new message with its lane; whether it stays in memory.
    fn join_lane(&mut self, id: FilterId, lane_id: LaneId, sequence: u64, bytes: usize) -> bool {
        let (Some(lane), Some(filter)) = (self.lanes.get_mut(lane_id), self.filters.get_mut(id)) else {
            return false;
        };
        let stays = lane.insert(sequence, bytes, self.settings.lane_depth.get());
        if !stays {
            filter.spilled += 1;
            if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
                tenure.spilled += 1;
            }
            return false;
        }
        if lane.is_waiting() {
            filter.waiting = filter.waiting.plus(Amount::one(bytes));
            filter.spillable.insert((lane.waits_since, lane_id));
        }
        self.take_room(id, bytes);
        true
    }

    /// The lane of a key; made if it has none.
    fn lane_of(&mut self, id: FilterId, key: &Arc<str>) -> Option<LaneId> {
        let filter = self.filters.get_mut(id)?;
        if let Some(lane) = filter.keys.get(key) {
            return Some(*lane);
        }
        let lane = self.lanes.insert(Lane::new(id, key.clone()));
        filter.keys.insert(key.clone(), lane);
        Some(lane)
    }

    /// Another message under the sequence of one that is held shows that the stream is younger: the one held is no longer stored
    /// anywhere, and an ack for it would end the other.
    fn forget_replaced(&mut self, id: FilterId, sequence: u64, time: u64) {
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        let Some(entry) = filter.entries.remove(&sequence) else {
            return;
        };
        if entry.time == time {
            filter.entries.insert(sequence, entry);
            return;
        }
        filter.floor.forget(sequence);
        filter.floor.truncate(sequence.saturating_sub(1));
        filter.forget_from(sequence);
        filter.started.remove(&sequence);
        let partition = filter.partition;
        self.changed(partition);
        self.let_go(id, sequence, &entry);
        self.detach(partition, entry.lane, sequence);
        self.settle(entry.lane);
    }

    /// Parts a lane from a message that it no longer has, whatever it was doing about it.
    fn detach(&mut self, partition: Partition, id: LaneId, sequence: u64) {
        let Some(lane) = self.lanes.get_mut(id) else {
            return;
        };
        match &lane.state {
            State::Running { run } => {
                let running = self.runs.get_mut(run).into_iter().flat_map(|run| &mut run.messages);
                for tried in running.filter(|tried| tried.lane == id && tried.sequence == sequence) {
                    tried.replaced = true;
                }
            }
            State::Burying(burial) if burial.sequence == sequence => {
                let run = burial.run;
                self.buried(partition, run);
                self.set_state(id, State::Ready);
            }
            State::Parked { until, burial } if burial.sequence == sequence => {
                if let Some(until) = *until {
                    self.timers.remove(&(until, Timer::Lane(id)));
                }
                self.burials.remove(&burial.run);
                self.set_state(id, State::Ready);
            }
            // What has failed is the first.
            State::Waiting { until } if lane.first().is_none_or(|first| first > sequence) => {
                self.timers.remove(&(*until, Timer::Lane(id)));
                self.set_state(id, State::Ready);
            }
            _ => {}
        }
    }

    /// A dead letter is no longer on its way.
    pub(super) fn buried(&mut self, partition: Partition, run: RunId) {
        self.burials.remove(&run);
        if let Some(tenure) = self.tenures.get_mut(&partition) {
            tenure.burying -= 1;
        }
    }

    /// Takes a message that is no longer unfinished out of its lane and out of the counts.
    pub(super) fn let_go(&mut self, id: FilterId, sequence: u64, entry: &Entry<M>) {
        let (Some(lane), Some(filter)) = (self.lanes.get_mut(entry.lane), self.filters.get_mut(id)) else {
            return;
        };
        lane.remove(sequence, entry.bytes);
        self.wanting.insert(id);
        if filter.entries.is_empty()
            && let Some(at) = filter.keep_timer.take()
        {
            self.timers.remove(&(at, Timer::Keep(id)));
        }
        if let Body::Spilled = entry.body {
            filter.spilled -= 1;
            if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
                tenure.spilled -= 1;
            }
            return;
        }
        if let Body::Reading(read) = entry.body {
            self.reads.remove(&read);
        }
        if lane.is_waiting() {
            filter.waiting = filter.waiting.minus(Amount::one(entry.bytes));
        }
        self.free_room(id, entry.bytes);
    }
}
