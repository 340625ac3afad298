//! What runs next: partitions take turns, and within a partition the lanes do. What a run is made of is in `gather`.

use super::action::{Attempt, Run, RunId};
use super::lane::{LaneId, State};
use super::partition::{Body, Phase};
use super::settings::BatchScope;
use super::timers::Timer;
use super::{Lanes, Running, Tried};
use crate::ids::{FencingToken, Partition};

impl<M: Clone> Lanes<M> {
    /// Starts handlers up to the free concurrency: [`Action::Run`](super::Action::Run). Nothing else does, so that the lease can be
    /// checked right before. Messages that may end their process only take their places at first, see `care`.
    pub fn dispatch(&mut self) {
        self.gather_no_longer_in_vain();
        self.dispatch_careful();
        loop {
            while !self.care.is_alone()
                && self.runs.len() < self.settings.concurrency.get()
                && let Some(partition) = self.line.pop_front()
            {
                let messages = self.gather(partition);
                match messages.first().map(|tried| tried.lane) {
                    Some(lane) if self.is_suspect(lane) => self.wait_to_be_alone(lane),
                    Some(_) => {
                        self.run(partition, messages, false);
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
    pub(super) fn next_lane(&mut self, partition: Partition) -> Option<LaneId> {
        let tenure = self.tenures.get_mut(&partition)?;
        while let Some(id) = tenure.line.pop_front() {
            let Some(lane) = self.lanes.get_mut(id) else {
                continue;
            };
            lane.lined_up = false;
            if lane.is_ready() {
                return Some(id);
            }
        }
        None
    }

    /// Starts one handler for messages that are in memory and whose lanes are ready; none for none. Of delicate messages this only
    /// takes their places, see `care`.
    pub(super) fn run(&mut self, partition: Partition, messages: Vec<Tried>, alone: bool) -> Option<RunId> {
        let run = RunId(self.next_id());
        let tenure = self.tenures.get_mut(&partition)?;
        let mut attempts = Vec::with_capacity(messages.len());
        for tried in &messages {
            let lane = self.lanes.get_mut(tried.lane)?;
            let filter = self.filters.get_mut(tried.filter)?;
            let entry = filter.entries.get(&tried.sequence)?;
            let Body::Held(message) = &entry.body else {
                return None;
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
            filter.alone = alone;
        }
        if attempts.is_empty() {
            return None;
        }
        tenure.running += 1;
        tenure.changes += 1;
        let token = tenure.token;
        let running = Running {
            partition,
            token,
            messages,
            cancelled: false,
        };
        self.runs.insert(run, running);
        self.start(Run {
            run,
            partition,
            token,
            alone,
            attempts,
        });
        Some(run)
    }

    /// Lines a lane up if it may run, reads what it needs, or drops it if it is of no more use.
    pub(super) fn settle(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id) else {
            return;
        };
        let Some(filter) = self.filters.get_mut(lane.filter) else {
            return;
        };
        let partition = filter.partition;
        if lane.is_idle() {
            filter.keys.remove(&lane.key);
            self.drop_lane(id);
            return;
        }
        self.read_ahead(id);
        if !self.may_run(id) || self.phase(partition) != Some(Phase::Serving) {
            return;
        }
        if self.condemn(id) {
            self.gathers_no_longer(partition, id);
        } else if !self.waits_for_company(partition, id) {
            self.line_up(partition, id);
        }
    }

    /// Whether a lane is ready, has its first message in memory, and does not stand in line yet.
    pub(super) fn may_run(&self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(id).filter(|lane| lane.is_ready() && !lane.lined_up) else {
            return false;
        };
        let entry = lane
            .first()
            .and_then(|first| self.filters.get(lane.filter)?.entries.get(&first));
        entry.is_some_and(|entry| matches!(entry.body, Body::Held(_)))
    }

    pub(super) fn line_up(&mut self, partition: Partition, id: LaneId) {
        if let (Some(lane), Some(tenure)) = (self.lanes.get_mut(id), self.tenures.get_mut(&partition)) {
            lane.lined_up = true;
            tenure.line.push_back(id);
            self.line_up_partition(partition);
        }
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
        let Some(lane) = self.lanes.remove(id) else {
            return;
        };
        if let Some(due) = lane.due() {
            self.timers.remove(&(due, Timer::Lane(id)));
        }
        if lane.gathers_until.is_some()
            && let Some(filter) = self.filters.get(lane.filter)
            && let Some(tenure) = self.tenures.get_mut(&filter.partition)
        {
            tenure.gathering.remove(&id);
        }
        if let State::Burying(burial) | State::Parked { burial, .. } = lane.state {
            self.burials.remove(&burial.run);
        }
    }
}
