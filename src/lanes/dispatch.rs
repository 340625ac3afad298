//! Which message runs next: partitions take turns, and within a partition the lanes do.

use super::action::{Action, Run, RunId};
use super::filter::Filter;
use super::lane::{LaneId, State};
use super::partition::{Body, Phase};
use super::timers::Timer;
use super::{Lanes, Running};
use crate::ids::{FencingToken, Partition};

impl<M: Clone> Lanes<M> {
    /// Starts handlers up to the free concurrency: [`Action::Run`]. Nothing else does, so that the lease can be checked right before.
    pub fn dispatch(&mut self) {
        while self.runs.len() < self.settings.concurrency.get() {
            let Some(partition) = self.line.pop_front() else {
                return;
            };
            if let Some(lane) = self.next_lane(partition) {
                self.run(partition, lane);
            }
            self.line_up_partition(partition);
        }
    }

    /// Starts one handler, for that filter, and only if this member runs none: for a filter whose messages are suspected of killing
    /// their process, so that no other is blamed. Whether it did.
    pub fn dispatch_alone(&mut self, partition: Partition, filter: &Filter) -> bool {
        if !self.runs.is_empty() {
            return false;
        }
        let Some(tenure) = self.tenures.get_mut(&partition) else {
            return false;
        };
        let Some(&filter) = tenure.filters.get(filter) else {
            return false;
        };
        let ready = |id: &LaneId| {
            self.lanes
                .get(id)
                .is_some_and(|lane| lane.filter == filter && lane.is_ready())
        };
        let Some(place) = tenure.line.iter().position(ready) else {
            return false;
        };
        let Some(id) = tenure.line.remove(place) else {
            return false;
        };
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.lined_up = false;
        }
        self.run(partition, id);
        !self.runs.is_empty()
    }

    /// The lane whose turn it is in a partition that has left the member's line.
    fn next_lane(&mut self, partition: Partition) -> Option<LaneId> {
        let leftover = self.has_leftover(partition);
        let tenure = self.tenures.get_mut(&partition)?;
        tenure.lined_up = false;
        if leftover {
            return None;
        }
        while let Some(id) = tenure.line.pop_front() {
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.lined_up = false;
            if lane.is_ready() {
                return Some(id);
            }
        }
        None
    }

    fn run(&mut self, partition: Partition, id: LaneId) {
        let run = RunId(self.next_id());
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (Some(filter), Some(tenure)) = (self.filters.get_mut(&lane.filter), self.tenures.get_mut(&partition))
        else {
            return;
        };
        let Some((sequence, entry)) = lane
            .first()
            .and_then(|first| Some((first, filter.entries.get(&first)?)))
        else {
            return;
        };
        // A lane in line has its first message in memory.
        let Body::Held(message) = &entry.body else {
            return;
        };
        lane.state = State::Running { run, sequence };
        filter.started.insert(sequence);
        tenure.running += 1;
        tenure.changes += 1;
        self.actions.push_back(Action::Run(Run {
            run,
            partition,
            filter: filter.name.clone(),
            token: tenure.token,
            key: lane.key.clone(),
            attempt: filter
                .attempts
                .get(&sequence)
                .map_or(1, |failed| failed.saturating_add(1)),
            stream_sequence: sequence,
            time: entry.time,
            message: message.clone(),
        }));
        let running = Running {
            partition,
            token: tenure.token,
            filter: lane.filter,
            lane: id,
            sequence,
            cancelled: false,
            replaced: false,
        };
        self.runs.insert(run, running);
    }

    /// Lines a lane up if it may run, reads what it needs, or drops it if it is of no more use.
    pub(super) fn settle(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(filter) = self.filters.get_mut(&lane.filter) else {
            return;
        };
        let partition = filter.partition;
        if lane.is_idle() {
            filter.keys.remove(&lane.key);
            self.lanes.remove(&id);
            return;
        }
        self.read_ahead(id);
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.is_ready() && !lane.lined_up) else {
            return;
        };
        let first = lane
            .first()
            .and_then(|first| self.filters.get(&lane.filter)?.entries.get(&first));
        if !first.is_some_and(|entry| matches!(entry.body, Body::Held(_))) {
            return;
        }
        let Some(tenure) = self
            .tenures
            .get_mut(&partition)
            .filter(|tenure| tenure.phase == Phase::Serving)
        else {
            return;
        };
        lane.lined_up = true;
        tenure.line.push_back(id);
        self.line_up_partition(partition);
    }

    /// Lines a partition up if it has lanes that may run. One whose older tenure still runs comes back when that has ended.
    pub(super) fn line_up_partition(&mut self, partition: Partition) {
        if self.has_leftover(partition) {
            return;
        }
        if let Some(tenure) = self.tenures.get_mut(&partition)
            && !tenure.lined_up
            && !tenure.line.is_empty()
        {
            tenure.lined_up = true;
            self.line.push_back(partition);
        }
    }

    /// Whether handlers of an older tenure still run.
    pub(super) fn has_leftover(&self, partition: Partition) -> bool {
        let mut from = self.leftover.range((partition, FencingToken(0))..);
        from.next().is_some_and(|(&(other, _), _)| other == partition)
    }

    /// Forgets a lane and whatever it waits for.
    pub(super) fn drop_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.remove(&id) else {
            return;
        };
        if let Some(due) = lane.due() {
            self.timers.remove(&(due, Timer::Lane(id)));
        }
        if let State::Burying(burial) | State::Parked { burial, .. } = lane.state {
            self.burials.remove(&burial.run);
        }
    }
}
