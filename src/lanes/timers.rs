//! What is due: retries, dead letters to try again, in-progress acks. One queue in order of time.

use std::time::Duration;

use super::Lanes;
use super::action::Action;
use super::lane::{LaneId, State};
use super::partition::{FilterId, Phase};
use crate::time::Time;

/// Something to be done at a time. There are no more of them than lanes and filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lane has waited long enough: for its next attempt, its dead letter, or company in a batch.
    Lane(LaneId),
    /// Held messages of a filter need in-progress acks.
    Keep(FilterId),
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
                Timer::Keep(filter) => self.keep(now, filter),
                Timer::Look => self.look_around(now),
            }
        }
    }

    /// Half of `ack_wait`. `None`: no acks are awaited.
    fn half_ack_wait(&self) -> Option<Duration> {
        // Later than now, or `wake` would never come to an end.
        Some((self.settings.ack_wait? / 2).max(Duration::from_nanos(1)))
    }

    /// When a message of the filter that is delivered now is to be kept by an in-progress ack. A filter has one timer for all its
    /// messages: a timer for each would cost more than all else that is done with a message, and hardly one ever falls due.
    pub(super) fn keep_from(&mut self, now: Time, id: FilterId) -> Option<Time> {
        let keep_at = now + self.half_ack_wait()?;
        let filter = self.filters.get_mut(id)?;
        if filter.keep_timer.is_none() {
            filter.keep_timer = Some(keep_at);
            self.timers.insert((keep_at, Timer::Keep(id)));
        }
        Some(keep_at)
    }

    /// Keeps what is due, and what will be before the next look: often enough that nothing waits for longer than half of `ack_wait`,
    /// and no oftener.
    fn keep(&mut self, now: Time, id: FilterId) {
        let (Some(half), Some(filter)) = (self.half_ack_wait(), self.filters.get_mut(id)) else {
            return;
        };
        let next_look = now + half / 4;
        let mut next = None;
        for entry in filter.entries.values_mut() {
            if entry.keep_at.is_some_and(|at| at <= next_look) {
                entry.keep_at = Some(now + half);
                let reply = entry.reply.clone();
                self.actions.push_back(Action::InProgress { reply });
            }
            next = next.into_iter().chain(entry.keep_at).min();
        }
        filter.keep_timer = next;
        if let Some(next) = next {
            self.timers.insert((next, Timer::Keep(id)));
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
