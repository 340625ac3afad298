//! What no delivery shows: the last one was swallowed, a consumer has stopped, acks were lost.
//!
//! Every `inspect_interval` the server is asked about the consumers from which something is awaited and nothing has come since the
//! last look, and about every consumer once per `ack_check_interval`. What one answer shows may be under way, so two are compared:
//!
//! - it has delivered more than has arrived, the same both times, and nothing came between: the last delivery was **swallowed**;
//! - it has messages and has delivered nothing, while it was asked for some all the time: it is **stuck**. If its successor is too,
//!   that one gets twice the time, so that a server which is only slow comes to deliver;
//! - nobody answered for it both times, although the stream's leader did, and nothing came between: it is **leaderless**. The server
//!   that has it is away, perhaps for long;
//! - its ack floor is below what was finished at the time of the first answer, or nothing happened between and it awaits more acks than
//!   there are unfinished messages: **acks were lost**. They would count against the consumer's `max_ack_pending`, and keep messages in
//!   a stream that forgets by acks.
//!
//! In each case the filter is re-opened: what is finished is known, and is acked when it is delivered again.

use super::Lanes;
use super::action::{Action, ConsumerView, Reopening};
use super::filter::Filter;
use super::partition::{FilterId, FilterState, Phase};
use super::timers::Timer;
use crate::ids::{Epoch, Partition};
use crate::time::Time;

/// The most that the patience with a stuck consumer grows to.
const MOST_PATIENCE: u32 = 64;

/// What the watchdog knows of one filter.
#[derive(Debug)]
pub(super) struct Watched {
    /// How many deliveries had been accepted at the last look.
    seen: u64,
    /// When its acks are to be looked at.
    acks_at: Time,
    /// The last answer.
    last: Option<Answer>,
    /// Whether nothing was asked for at some time since then, for lack of room.
    pub(super) starved: bool,
    /// For how many answers in a row the consumer has looked stuck.
    stuck: u32,
    /// So many are needed. Doubles with every consumer that was stuck or leaderless, until one delivers.
    patience: u32,
    /// For how many looks in a row nobody has answered, and how many deliveries had been accepted then.
    unanswered: (u32, u64),
}

/// What was known here when the server answered, and what it said.
#[derive(Debug, Clone, Copy)]
struct Answer {
    at: Time,
    seen: u64,
    /// All deliveries up to this one are finished here.
    finished: u64,
    /// How many of its deliveries are unfinished.
    unfinished: u64,
    asking: bool,
    view: ConsumerView,
}

impl Watched {
    pub(super) fn new() -> Self {
        Self {
            seen: 0,
            acks_at: Time::ZERO,
            last: None,
            starved: false,
            stuck: 0,
            patience: 1,
            unanswered: (0, 0),
        }
    }

    /// Another consumer takes over.
    pub(super) fn reopen(&mut self) {
        let patience = self.patience;
        *self = Self {
            acks_at: self.acks_at,
            patience,
            ..Self::new()
        };
    }

    /// A delivery was accepted.
    pub(super) fn delivered(&mut self) {
        self.patience = 1;
    }

    /// Nobody has answered: whether that is enough to give the consumer up.
    fn is_leaderless(&mut self, seen: u64) -> bool {
        let (count, before) = self.unanswered;
        let count = if before == seen { count + 1 } else { 1 };
        self.unanswered = (count, seen);
        let given_up = count > self.patience;
        if given_up {
            self.be_more_patient();
        }
        given_up
    }

    /// A server that is only slow has to come to deliver.
    fn be_more_patient(&mut self) {
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
    }

    /// What an answer shows, together with the one before it.
    fn judge(&mut self, answer: Answer) -> Option<Reopening> {
        self.unanswered = (0, 0);
        let starved = std::mem::take(&mut self.starved);
        let before = self.last.replace(answer)?;
        let view = answer.view;
        let idle = before.seen == answer.seen && before.view.delivered == view.delivered;
        if idle && view.delivered > answer.seen {
            return Some(Reopening::Swallowed {
                seen: answer.seen,
                delivered: view.delivered,
            });
        }
        let waits = |answer: &Answer| answer.asking && answer.view.pending > 0;
        if idle && !starved && waits(&before) && waits(&answer) {
            self.stuck += 1;
            if self.stuck >= self.patience {
                self.be_more_patient();
                return Some(Reopening::Stuck { pending: view.pending });
            }
        } else {
            self.stuck = 0;
        }
        let awaits_too_many = |answer: &Answer| answer.view.ack_pending > answer.unfinished;
        let at_rest = idle && before.unfinished == answer.unfinished;
        let lost_acks = (view.ack_pending > 0 && view.ack_floor < before.finished)
            || (at_rest && awaits_too_many(&before) && awaits_too_many(&answer));
        lost_acks.then_some(Reopening::LostAcks {
            pending: view.ack_pending,
        })
    }
}

impl<M> FilterState<M> {
    /// Up to which of the current consumer's deliveries everything is finished, and how many are not.
    fn deliveries(&self) -> (u64, u64) {
        let all = self.entries.values().map(|entry| entry.consumer_sequence);
        let unfinished = all.filter(|&sequence| sequence > 0);
        let (first, count) = unfinished.fold((self.expected, 0), |(first, count), sequence| {
            (first.min(sequence), count + 1)
        });
        (first - 1, count)
    }
}

impl<M: Clone> Lanes<M> {
    /// Has the watchdog look in time, from now on for as long as anything is open.
    pub(super) fn start_watching(&mut self) {
        if let Some(interval) = self.settings.inspect_interval
            && self.next_look.is_none()
        {
            let at = self.now + interval;
            self.next_look = Some(at);
            self.timers.insert((at, Timer::Look));
        }
    }

    /// Asks about every filter that is due.
    pub(super) fn look_around(&mut self, now: Time) {
        self.next_look = None;
        if self.tenures.is_empty() {
            return;
        }
        self.start_watching();
        let acks_after = now + self.settings.ack_check_interval;
        let tenures = &self.tenures;
        let serving = |filter: &FilterState<M>| {
            let tenure = tenures.get(&filter.partition);
            !filter.lost && tenure.is_some_and(|tenure| tenure.phase == Phase::Serving)
        };
        for filter in self.filters.values_mut().filter(|filter| serving(filter)) {
            let seen = filter.expected - 1;
            let silent = filter.load.outstanding.messages > 0 && filter.watched.seen == seen;
            filter.watched.seen = seen;
            let acks = now >= filter.watched.acks_at;
            if acks {
                filter.watched.acks_at = acks_after;
            }
            if silent || acks {
                self.actions.push_back(Action::Inspect {
                    partition: filter.partition,
                    filter: filter.name.clone(),
                    epoch: filter.epoch,
                });
            }
        }
    }

    /// The answer to [`Action::Inspect`]. Without any answer from the server nothing is called.
    pub fn inspected(&mut self, now: Time, partition: Partition, filter: &Filter, epoch: Epoch, view: ConsumerView) {
        let Some(id) = self.current(partition, filter, epoch) else {
            return;
        };
        let least = self.settings.inspect_interval.unwrap_or_default() / 2;
        let serving = self.phase(partition) == Some(Phase::Serving);
        let Some(filter) = self.filters.get_mut(id).filter(|filter| serving && !filter.lost) else {
            return;
        };
        if filter.watched.last.is_some_and(|last| now.since(last.at) < least) {
            // Two answers that came together, one of them late, are no two looks.
            return;
        }
        let (finished, unfinished) = filter.deliveries();
        let answer = Answer {
            at: now,
            seen: filter.expected - 1,
            finished,
            unfinished,
            asking: filter.load.outstanding.messages > 0,
            view,
        };
        if let Some(reason) = filter.watched.judge(answer) {
            self.break_off(id, reason);
        }
    }

    /// The other answer to [`Action::Inspect`]: nobody answers for the consumer, although the stream's leader does.
    pub fn leaderless(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        let Some(id) = self.current(partition, filter, epoch) else {
            return;
        };
        let serving = self.phase(partition) == Some(Phase::Serving);
        let Some(filter) = self.filters.get_mut(id).filter(|filter| serving && !filter.lost) else {
            return;
        };
        let seen = filter.expected - 1;
        if filter.watched.is_leaderless(seen) {
            self.break_off(id, Reopening::Leaderless);
        }
    }

    /// Ends the epoch of a filter: nothing more is accepted from its consumer.
    pub(super) fn break_off(&mut self, id: FilterId, reason: Reopening) {
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        filter.lost = true;
        self.actions.push_back(Action::Reopen {
            partition: filter.partition,
            filter: filter.name.clone(),
            epoch: filter.epoch,
            reason,
        });
        self.give_back_all(id);
    }
}
