//! Which message runs next: partitions take turns, and within a partition the lanes do.

use super::action::{Run, RunId};
use super::lane::{LaneId, State};
use super::partition::{Body, Phase};
use super::timers::Timer;
use super::{Lanes, Running};
use crate::ids::{FencingToken, Partition};

impl<M: Clone> Lanes<M> {
    /// Starts handlers up to the free concurrency: [`Action::Run`](super::Action::Run). Nothing else does, so that the lease can be
    /// checked right before. A message that may end its process only takes its place at first, see `care`.
    pub fn dispatch(&mut self) {
        self.dispatch_careful();
        loop {
            while !self.care.is_alone()
                && self.runs.len() < self.settings.concurrency.get()
                && let Some(partition) = self.line.pop_front()
            {
                match self.next_lane(partition) {
                    Some(lane) if self.is_suspect(lane) => self.wait_to_be_alone(lane),
                    Some(lane) => {
                        self.run(partition, lane, false);
                    }
                    None => {}
                }
                self.line_up_partition(partition);
            }
            if !self.gives_way() {
                break;
            }
        }
        self.ask_for_records();
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

    /// Starts a handler for the first message of a lane. Of a delicate message this only takes its place, see `care`.
    pub(super) fn run(&mut self, partition: Partition, id: LaneId, alone: bool) -> Option<RunId> {
        let run = RunId(self.next_id());
        let lane = self.lanes.get_mut(&id)?;
        let filter = self.filters.get_mut(&lane.filter)?;
        let tenure = self.tenures.get_mut(&partition)?;
        let sequence = lane.first()?;
        let entry = filter.entries.get(&sequence)?;
        // A lane in line has its first message in memory.
        let Body::Held(message) = &entry.body else {
            return None;
        };
        lane.state = State::Running { run, sequence };
        filter.started.insert(sequence);
        filter.alone = alone;
        tenure.running += 1;
        tenure.changes += 1;
        let start = Run {
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
            alone,
            message: message.clone(),
        };
        let running = Running {
            partition,
            token: tenure.token,
            filter: lane.filter,
            lane: id,
            sequence,
            cancelled: false,
            replaced: false,
        };
        let filter = running.filter;
        self.runs.insert(run, running);
        self.start(start, filter);
        Some(run)
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
        if self.phase(partition) != Some(Phase::Serving) || self.condemn(id) {
            return;
        }
        if let (Some(lane), Some(tenure)) = (self.lanes.get_mut(&id), self.tenures.get_mut(&partition)) {
            lane.lined_up = true;
            tenure.line.push_back(id);
            self.line_up_partition(partition);
        }
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
