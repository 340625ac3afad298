//! What is due: retries, dead letters to try again, in-progress acks. One queue in order of time, never a scan.

use super::Lanes;
use super::action::Action;
use super::lane::{LaneId, State};
use super::partition::{FilterId, Phase};
use crate::time::Time;

/// Something to be done at a time. Each is taken out when it no longer matters, so that the queue is no longer than what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lane has waited long enough: for its next attempt, its dead letter, or company in a batch.
    Lane(LaneId),
    /// A held message needs an in-progress ack.
    Keep(FilterId, u64),
    /// The watchdog looks at all filters.
    Look,
}

impl<M: Clone> Lanes<M> {
    /// When [`wake`](Self::wake) has something to do. `None`: nothing is due, ever.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Time has come to `now`: does all that is due.
    pub fn wake(&mut self, now: Time) {
        self.now = now;
        while let Some(&(at, timer)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Lane(lane) => self.waited(lane),
                Timer::Keep(filter, sequence) => self.keep(now, filter, sequence),
                Timer::Look => self.look_around(now),
            }
        }
    }

    /// When a message delivered or kept now is to be kept again.
    fn keep_after(&self, now: Time) -> Option<Time> {
        // Later than now, or `wake` would never come to an end.
        let half = (self.settings.ack_wait? / 2).max(std::time::Duration::from_nanos(1));
        Some(now + half)
    }

    /// From `now` on the server waits for the ack of a message: when it is to be kept again.
    pub(super) fn keep_from(&mut self, now: Time, id: FilterId, sequence: u64) -> Option<Time> {
        let keep_at = self.keep_after(now)?;
        self.timers.insert((keep_at, Timer::Keep(id, sequence)));
        Some(keep_at)
    }

    /// A message is not to be kept at this time any more.
    pub(super) fn keep_no_longer(&mut self, keep_at: Option<Time>, id: FilterId, sequence: u64) {
        if let Some(keep_at) = keep_at {
            self.timers.remove(&(keep_at, Timer::Keep(id, sequence)));
        }
    }

    fn keep(&mut self, now: Time, id: FilterId, sequence: u64) {
        let keep_at = self.keep_after(now);
        let entry = self
            .filters
            .get_mut(id)
            .and_then(|filter| filter.entries.get_mut(&sequence));
        if let Some(entry) = entry {
            entry.keep_at = keep_at;
            let reply = entry.reply.clone();
            self.actions.push_back(Action::InProgress { reply });
            self.keep_from(now, id, sequence);
        }
    }

    fn waited(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(id) else {
            return;
        };
        let partition = self.filters.get(lane.filter).map(|filter| filter.partition);
        // A draining partition starts nothing, dead letters neither: a taker does.
        if partition.and_then(|partition| self.phase(partition)) != Some(Phase::Serving) {
            return;
        }
        match &lane.state {
            State::Waiting { .. } => {
                self.set_state(id, State::Ready);
                self.settle(id);
            }
            State::Parked { burial, .. } => {
                let burial = burial.clone();
                self.bury(id, burial);
            }
            State::Ready => self.gathered(id),
            State::Running { .. } | State::Burying(_) => {}
        }
    }
}
