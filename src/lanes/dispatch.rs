//! What runs next: partitions take turns, and within a partition the lanes do. What a run is made of is in `gather`.

use super::action::{Action, Attempt, Run, RunId};
use super::filter::Filter;
use super::lane::{LaneId, State};
use super::partition::{Body, Phase};
use super::settings::BatchScope;
use super::timers::Timer;
use super::{Lanes, Running, Tried};
use crate::ids::{FencingToken, Partition};

impl<M: Clone> Lanes<M> {
    /// Starts handlers up to the free concurrency: [`Action::Run`]. Nothing else does, so that the lease can be checked right before.
    pub fn dispatch(&mut self) {
        self.gather_no_longer_in_vain();
        while self.runs.len() < self.settings.concurrency.get() {
            let Some(partition) = self.line.pop_front() else {
                return;
            };
            let messages = self.gather(partition);
            self.run(partition, messages);
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
        let messages = self.front(id, 1);
        self.run(partition, messages);
        !self.runs.is_empty()
    }

    /// The lane whose turn it is in a partition that has left the member's line.
    pub(super) fn next_lane(&mut self, partition: Partition) -> Option<LaneId> {
        let tenure = self.tenures.get_mut(&partition)?;
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

    /// Starts one handler for messages that are in memory and whose lanes are ready; none for none.
    fn run(&mut self, partition: Partition, messages: Vec<Tried>) {
        let run = RunId(self.next_id());
        let Some(tenure) = self.tenures.get_mut(&partition) else {
            return;
        };
        let mut attempts = Vec::with_capacity(messages.len());
        for tried in &messages {
            let (Some(lane), Some(filter)) = (self.lanes.get_mut(&tried.lane), self.filters.get_mut(&tried.filter))
            else {
                return;
            };
            let Some(entry) = filter.entries.get(&tried.sequence) else {
                return;
            };
            let Body::Held(message) = &entry.body else {
                return;
            };
            let failed = filter.attempts.get(&tried.sequence).copied().unwrap_or(0);
            attempts.push(Attempt {
                filter: filter.name.clone(),
                key: lane.key.clone(),
                attempt: failed.saturating_add(1),
                stream_sequence: tried.sequence,
                time: entry.time,
                message: message.clone(),
            });
            lane.state = State::Running { run };
            filter.started.insert(tried.sequence);
        }
        if attempts.is_empty() {
            return;
        }
        tenure.running += 1;
        tenure.changes += 1;
        let token = tenure.token;
        self.actions.push_back(Action::Run(Run {
            run,
            partition,
            token,
            attempts,
        }));
        let running = Running {
            partition,
            token,
            messages,
            cancelled: false,
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
            self.drop_lane(id);
            return;
        }
        self.read_ahead(id);
        if self.may_run(id) && self.phase(partition) == Some(Phase::Serving) && !self.waits_for_company(partition, id) {
            self.line_up(partition, id);
        }
    }

    /// Whether a lane is ready, has its first message in memory, and does not stand in line yet.
    pub(super) fn may_run(&self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(&id).filter(|lane| lane.is_ready() && !lane.lined_up) else {
            return false;
        };
        let entry = lane
            .first()
            .and_then(|first| self.filters.get(&lane.filter)?.entries.get(&first));
        entry.is_some_and(|entry| matches!(entry.body, Body::Held(_)))
    }

    pub(super) fn line_up(&mut self, partition: Partition, id: LaneId) {
        let (Some(lane), Some(tenure)) = (self.lanes.get_mut(&id), self.tenures.get_mut(&partition)) else {
            return;
        };
        lane.lined_up = true;
        tenure.line.push_back(id);
        self.line_up_partition(partition);
    }

    /// Lines a partition up if it has lanes that may run. One whose older tenure still runs comes back when that has ended, and one
    /// that may have a single batch at a time when its batch has.
    pub(super) fn line_up_partition(&mut self, partition: Partition) {
        if self.has_leftover(partition) {
            return;
        }
        let alone = self.settings.batch.scope == BatchScope::Partition;
        if let Some(tenure) = self.tenures.get_mut(&partition)
            && !(alone && tenure.running > 0)
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
        if lane.gathers_until.is_some()
            && let Some(filter) = self.filters.get(&lane.filter)
            && let Some(tenure) = self.tenures.get_mut(&filter.partition)
        {
            tenure.gathering.remove(&id);
        }
        if let State::Burying(burial) | State::Parked { burial, .. } = lane.state {
            self.burials.remove(&burial.run);
        }
    }
}
