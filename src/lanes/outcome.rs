//! How runs end: success, retry, dead letter.

use std::sync::Arc;
use std::time::Duration;

use super::action::{Action, DeadLetter, Ended, Outcome, RunId};
use super::lane::{Burial, LaneId, State};
use super::partition::{Body, FilterId};
use super::retry::backoff;
use super::timers::Timer;
use super::{Lanes, Running, Tried};
use crate::time::Time;

impl<M: Clone> Lanes<M> {
    /// A handler has really ended. After [`close`](Self::close) its outcome no longer counts.
    ///
    /// What was not tried goes back to its lanes: it is first in them still, and no attempt is counted.
    pub fn ended(&mut self, now: Time, run: RunId, ended: impl Into<Ended>) {
        let Some(running) = self.runs.remove(&run) else {
            return;
        };
        let tenure = self
            .tenures
            .get_mut(&running.partition)
            .filter(|tenure| tenure.token == running.token);
        let Some(tenure) = tenure else {
            self.ended_alone(run, &running);
            return self.leftover_ended(running.partition, running.token);
        };
        tenure.running -= 1;
        tenure.changes += 1;
        self.ended_alone(run, &running);
        self.hand_back(&running);
        self.conclude(now, run, &running.messages, ended.into());
        self.settle_all(&running);
        self.drained(running.partition);
    }

    /// The messages of a run are its no longer.
    pub(super) fn hand_back(&mut self, running: &Running) {
        for tried in &running.messages {
            self.set_state(tried.lane, State::Ready);
            if let Some(filter) = self.filters.get_mut(tried.filter).filter(|_| !tried.replaced) {
                filter.started.remove(&tried.sequence);
            }
        }
    }

    /// The lanes of a run go on.
    pub(super) fn settle_all(&mut self, running: &Running) {
        for tried in &running.messages {
            self.settle(tried.lane);
        }
        self.line_up_partition(running.partition);
    }

    fn conclude(&mut self, now: Time, run: RunId, messages: &[Tried], ended: Ended) {
        let finished = match ended.then {
            Outcome::Success => messages.len(),
            _ if ended.finished < messages.len() => ended.finished,
            _ => 0,
        };
        let (done, rest) = messages.split_at(finished);
        for tried in done.iter().filter(|tried| !tried.replaced) {
            if let Some(reply) = self.finish(tried.filter, tried.sequence) {
                self.actions.push_back(Action::Ack { reply });
            }
        }
        let Some(tried) = rest.first().filter(|tried| !tried.replaced) else {
            return;
        };
        match ended.then {
            Outcome::Retry { after, error } => self.failed(now, run, tried, after, error),
            Outcome::Reject { error } => {
                self.count_failure(tried);
                self.bury_new(run, tried, error);
            }
            Outcome::Success | Outcome::Cancelled => {}
        }
    }

    /// One more attempt failed; how many that makes.
    fn count_failure(&mut self, tried: &Tried) -> u32 {
        let Some(filter) = self.filters.get_mut(tried.filter) else {
            return 0;
        };
        let attempts = filter.attempts.entry(tried.sequence).or_default();
        *attempts = attempts.saturating_add(1);
        *attempts
    }

    fn failed(&mut self, now: Time, run: RunId, tried: &Tried, after: Option<Duration>, error: String) {
        let failed = self.count_failure(tried);
        if self.settings.retry.max_attempts.is_some_and(|max| failed >= max.get()) {
            return self.bury_new(run, tried, error);
        }
        let delay = after.unwrap_or_else(|| self.backoff(tried.sequence, failed));
        self.set_waiting(tried.lane, now + delay);
    }

    fn backoff(&self, sequence: u64, failed: u32) -> Duration {
        backoff(&self.settings.retry, self.seed, sequence, failed)
    }

    fn set_waiting(&mut self, id: LaneId, until: Time) {
        self.timers.insert((until, Timer::Lane(id)));
        self.set_state(id, State::Waiting { until });
    }

    fn bury_new(&mut self, run: RunId, tried: &Tried, error: String) {
        let burial = Burial {
            run,
            sequence: tried.sequence,
            error,
            failures: 0,
            store_error: None,
        };
        self.bury(tried.lane, burial);
    }

    /// Asks for a dead letter to be stored; the lane waits for the answer.
    pub(super) fn bury(&mut self, id: LaneId, burial: Burial) {
        let Some(lane) = self.lanes.get(id) else {
            return;
        };
        let Some(filter) = self.filters.get(lane.filter) else {
            return;
        };
        let (Some(entry), Some(tenure)) = (
            filter.entries.get(&burial.sequence),
            self.tenures.get_mut(&filter.partition),
        ) else {
            return;
        };
        let Body::Held(message) = &entry.body else {
            // Only if something was put before it. It is run again when its turn comes.
            self.set_state(id, State::Ready);
            return self.settle(id);
        };
        tenure.burying += 1;
        self.burials.insert(burial.run, id);
        self.actions.push_back(Action::DeadLetter(DeadLetter {
            run: burial.run,
            partition: filter.partition,
            filter: filter.name.clone(),
            token: tenure.token,
            key: lane.key.clone(),
            attempts: filter.attempts.get(&burial.sequence).copied().unwrap_or(0),
            stream_sequence: burial.sequence,
            time: entry.time,
            error: burial.error.clone(),
            message: message.clone(),
        }));
        self.set_state(id, State::Burying(burial));
    }

    /// A dead letter is stored, or could not be. `run` is the one that the dead letter bears.
    ///
    /// Stored: the message is finished. Not stored: its key is parked and it is tried again after a delay.
    pub fn dead_lettered(&mut self, now: Time, run: RunId, stored: Result<(), String>) {
        let Some(&id) = self.burials.get(&run) else {
            return;
        };
        let Some(lane) = self.lanes.get(id) else {
            return;
        };
        let filter = lane.filter;
        let Some(partition) = self.filters.get(filter).map(|filter| filter.partition) else {
            return;
        };
        // An answer that comes twice finds the lane doing something else.
        let State::Burying(burial) = &lane.state else {
            return;
        };
        let burial = burial.clone();
        self.buried(partition, run);
        self.set_state(id, State::Ready);
        match stored {
            Ok(()) => {
                if let Some(reply) = self.finish(filter, burial.sequence) {
                    self.actions.push_back(Action::Terminate { reply });
                }
            }
            Err(store_error) => self.park(now, id, burial, store_error),
        }
        self.settle(id);
        self.drained(partition);
    }

    /// A dead letter could not be stored: its key is parked until it is tried again.
    fn park(&mut self, now: Time, id: LaneId, burial: Burial, store_error: String) {
        let burial = Burial {
            failures: burial.failures.saturating_add(1),
            store_error: Some(store_error),
            ..burial
        };
        let until = now + self.backoff(burial.sequence, burial.failures);
        let first = burial.failures == 1;
        self.timers.insert((until, Timer::Lane(id)));
        self.burials.insert(burial.run, id);
        let until = Some(until);
        self.set_state(id, State::Parked { until, burial });
        if first {
            self.say_parked(id);
        }
    }

    pub(super) fn say_parked(&mut self, id: LaneId) {
        if let Some(parked) = self.lanes.get(id).and_then(|lane| self.parked(lane)) {
            self.actions.push_back(Action::Parked(parked));
        }
    }

    /// An unfinished message is finished: marks and lane move on. Gives the reply subject of its latest delivery.
    pub(super) fn finish(&mut self, id: FilterId, sequence: u64) -> Option<Arc<str>> {
        let filter = self.filters.get_mut(id)?;
        let entry = filter.entries.remove(&sequence)?;
        let partition = filter.partition;
        filter.floor.finish(sequence, entry.time);
        filter.attempts.remove(&sequence);
        filter.deaths.remove(&sequence);
        filter.forget_passed();
        self.changed(partition);
        self.let_go(id, sequence, &entry);
        Some(entry.reply)
    }
}
