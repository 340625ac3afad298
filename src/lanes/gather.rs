//! What a run is made of: one message, or a batch of a key or of a partition.
//!
//! A lane whose first message may run waits for company, until there is a batch full of messages, until the first message has
//! waited for `max_wait`, or until no more can come because the room is taken. Then the lane stands in line. For batches of a
//! partition one lane in line is enough: all lanes that may run give what they have, in stream order, also those that still wait.
//! Handlers of one message are batches of one, which never wait.
//!
//! A message that must run alone, see `care`, has no company: a batch ends before it, and it is a run of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lane::{Lane, LaneId};
use super::partition::{Body, Phase, Tenure};
use super::settings::BatchScope;
use super::timers::Timer;
use super::{Lanes, Tried};
use crate::ids::Partition;

impl<M: Clone> Lanes<M> {
    /// Takes what the next run of a partition is made of, which has left the member's line.
    pub(super) fn gather(&mut self, partition: Partition) -> Vec<Tried> {
        let leftover = self.has_leftover(partition);
        if let Some(tenure) = self.tenures.get_mut(&partition) {
            tenure.lined_up = false;
        }
        if leftover || self.phase(partition) != Some(Phase::Serving) {
            return Vec::new();
        }
        let most = self.settings.batch.max_messages.get();
        match self.settings.batch.scope {
            BatchScope::Key => match self.next_lane(partition) {
                Some(lane) => self.front(lane, most),
                None => Vec::new(),
            },
            BatchScope::Partition => {
                let messages = self.merge(partition, most);
                self.step_out(partition, &messages);
                messages
            }
        }
    }

    /// The first messages of a lane: those in memory that may run together, as far as there is none missing between them.
    pub(super) fn front(&self, id: LaneId, most: usize) -> Vec<Tried> {
        let mut messages = Vec::new();
        let Some(lane) = self.lanes.get(id) else {
            return messages;
        };
        for sequence in lane.front(most) {
            if !self.is_held(lane, sequence) || !self.join(&mut messages, tried(id, lane, sequence)) {
                break;
            }
        }
        messages
    }

    /// Adds the next message to a batch, unless it or the one before must run alone. Whether it is added.
    fn join(&self, messages: &mut Vec<Tried>, next: Tried) -> bool {
        let alone = |tried: &Tried| self.must_run_alone(tried.filter, tried.sequence);
        let joins = messages.last().is_none_or(|last| !alone(last) && !alone(&next));
        if joins {
            messages.push(next);
        }
        joins
    }

    fn is_held(&self, lane: &Lane, sequence: u64) -> bool {
        let entry = self
            .filters
            .get(lane.filter)
            .and_then(|filter| filter.entries.get(&sequence));
        entry.is_some_and(|entry| matches!(entry.body, Body::Held(_)))
    }

    /// The next messages of all lanes that may run, merged into stream order.
    fn merge(&self, partition: Partition, most: usize) -> Vec<Tried> {
        let Some(tenure) = self.tenures.get(&partition) else {
            return Vec::new();
        };
        let lanes: Vec<(LaneId, &Lane)> = candidates(tenure)
            .filter_map(|id| Some((id, self.lanes.get(id).filter(|lane| lane.is_ready())?)))
            .collect();
        let mut fronts: Vec<_> = lanes.iter().map(|(_, lane)| lane.front(most)).collect();
        let mut heads: BinaryHeap<_> = (0..)
            .zip(&mut fronts)
            .filter_map(|(index, front)| Some(Reverse((front.next()?, index))))
            .collect();
        let mut messages = Vec::new();
        while messages.len() < most
            && let Some(Reverse((sequence, index))) = heads.pop()
        {
            let (id, lane) = lanes[index];
            // What comes after one that is not in memory waits for it.
            if !self.is_held(lane, sequence) {
                continue;
            }
            if !self.join(&mut messages, tried(id, lane, sequence)) {
                break;
            }
            heads.extend(fronts[index].next().map(|next| Reverse((next, index))));
        }
        messages
    }

    /// Lanes that are to run leave the line, and those that are of no use there.
    fn step_out(&mut self, partition: Partition, messages: &[Tried]) {
        for tried in messages {
            self.gathers_no_longer(partition, tried.lane);
            if let Some(lane) = self.lanes.get_mut(tried.lane) {
                lane.lined_up = false;
            }
        }
        let lanes = &mut self.lanes;
        if let Some(tenure) = self.tenures.get_mut(&partition) {
            tenure.line.retain(|id| match lanes.get_mut(*id) {
                Some(lane) => {
                    lane.lined_up &= lane.is_ready();
                    lane.lined_up
                }
                None => false,
            });
        }
    }

    /// Whether a lane that may run is to wait for company first.
    pub(super) fn waits_for_company(&mut self, partition: Partition, id: LaneId) -> bool {
        let batch = self.settings.batch;
        if batch.max_messages.get() == 1 {
            return false;
        }
        if batch.max_wait.is_zero() || self.is_suspect(id) || self.is_full(partition, id) {
            self.gathers_no_longer(partition, id);
            return false;
        }
        let (Some(lane), Some(tenure)) = (self.lanes.get_mut(id), self.tenures.get_mut(&partition)) else {
            return true;
        };
        let first = lane
            .first()
            .and_then(|first| self.filters.get(lane.filter)?.entries.get(&first));
        if let (None, Some(first)) = (lane.gathers_until, first) {
            // It may lie in the past, behind a long run: then it is due at once.
            let until = first.since + batch.max_wait;
            lane.gathers_until = Some(until);
            tenure.gathering.insert(id);
            self.timers.insert((until, Timer::Lane(id)));
        }
        true
    }

    /// Whether there are messages for a whole batch with this lane in it.
    fn is_full(&self, partition: Partition, id: LaneId) -> bool {
        let most = self.settings.batch.max_messages.get();
        let (Some(lane), Some(tenure)) = (self.lanes.get(id), self.tenures.get(&partition)) else {
            return false;
        };
        if tenure.load.held.messages < most {
            return false;
        }
        match self.settings.batch.scope {
            BatchScope::Key => {
                lane.load.messages >= most && lane.front(most).all(|sequence| self.is_held(lane, sequence))
            }
            BatchScope::Partition => {
                let others = candidates(tenure).filter(|&other| other != id);
                let lanes = others.filter_map(|other| self.lanes.get(other)).chain([lane]);
                let mut left = most;
                // Seldom more lanes than fit into a batch are looked at: each has a message.
                lanes.filter(|lane| lane.is_ready()).any(|lane| {
                    left = left.saturating_sub(lane.load.messages);
                    left == 0
                })
            }
        }
    }

    pub(super) fn gathers_no_longer(&mut self, partition: Partition, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(id)
            && let Some(until) = lane.gathers_until.take()
        {
            self.timers.remove(&(until, Timer::Lane(id)));
            if let Some(tenure) = self.tenures.get_mut(&partition) {
                tenure.gathering.remove(&id);
            }
        }
    }

    /// A lane has waited for company for long enough. If its first message is not in memory, its turn comes when it is.
    pub(super) fn gathered(&mut self, id: LaneId) {
        let filter = self.lanes.get(id).and_then(|lane| self.filters.get(lane.filter));
        let Some(partition) = filter.map(|filter| filter.partition) else {
            return;
        };
        self.gathers_no_longer(partition, id);
        if self.may_run(id) {
            self.line_up(partition, id);
        }
    }

    /// Where nothing is asked for, because there is no room for it, no company can come.
    pub(super) fn gather_no_longer_in_vain(&mut self) {
        if self.settings.batch.max_messages.get() == 1 {
            return;
        }
        // Asks wherever there is room.
        self.pull();
        let in_vain = |tenure: &&Tenure| tenure.load.outstanding.messages == 0 && tenure.phase == Phase::Serving;
        let lanes: Vec<LaneId> = self
            .tenures
            .values()
            .filter(in_vain)
            .flat_map(|tenure| tenure.gathering.iter().copied())
            .collect();
        for lane in lanes {
            self.gathered(lane);
        }
    }
}

/// The lanes that a batch of a partition can be made of.
fn candidates(tenure: &Tenure) -> impl Iterator<Item = LaneId> + '_ {
    tenure.line.iter().chain(&tenure.gathering).copied()
}

fn tried(lane: LaneId, of: &Lane, sequence: u64) -> Tried {
    Tried {
        filter: of.filter,
        lane,
        sequence,
        replaced: false,
    }
}
