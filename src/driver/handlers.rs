//! Running handlers, and storing what they give up.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::batch::{Batch, BatchHandler};
use crate::dead_letters::Origin;
use crate::handler::{Cancellation, Delivery, Failure, FailureKind, Message};
use crate::lanes::{DeadLetter, Ended, Outcome, Run, RunId};
use crate::nats::unix_nanos;
use crate::time::Time;

use super::{Driver, Input};

/// The end of the lease, for handlers about to start: they run on other threads than the loop, and a process may be frozen
/// between the two.
#[derive(Debug, Default)]
pub(super) struct Lease {
    end: AtomicU64,
}

impl Lease {
    pub(super) fn set(&self, end: Option<Time>) {
        self.end.store(end.map_or(0, Time::as_nanos), Ordering::Release);
    }

    fn is_over(&self, now: Time) -> bool {
        now.as_nanos() >= self.end.load(Ordering::Acquire)
    }
}

impl<H: BatchHandler> Driver<H> {
    /// Starts one handler. However it ends, its outcome comes back as an input.
    pub(super) fn run_handler(&mut self, run: Run<Arc<Message>>) {
        if run.alone
            && let [attempt] = &run.attempts[..]
        {
            tracing::warn!(
                partition = %run.partition,
                key = %attempt.key,
                sequence = attempt.stream_sequence,
                "several processes died while they ran this message: nothing else runs meanwhile"
            );
        }
        let cancel = CancellationToken::new();
        self.runs.0.insert(run.run, cancel.clone());
        let (id, partition, token) = (run.run, run.partition, run.token);
        // A stray message is given up without being run: it ends the batch, and what comes after it is not tried.
        let stray = run.attempts.iter().position(|attempt| attempt.message.stray);
        let attempts = run.attempts.into_iter().take(stray.unwrap_or(usize::MAX));
        let cancellation = Cancellation(cancel.clone());
        let deliveries = attempts.map(|attempt| Delivery {
            message: attempt.message,
            key: attempt.key,
            stream_sequence: attempt.stream_sequence,
            time: attempt.time,
            attempt: attempt.attempt,
            partition,
            token,
            cancellation: cancellation.clone(),
        });
        let deliveries: Vec<_> = deliveries.collect();
        let (handler, sender) = (self.parts.handler.clone(), self.sender.clone());
        let (lease, clock) = (self.lease.clone(), self.clock);
        let limits = Limits {
            time: self.parts.settings.handler_timeout,
            grace: self.parts.settings.cancel_grace(),
        };
        self.handler_tasks.spawn(async move {
            let mut ending = Ending {
                sender,
                run: id,
                ended: None,
            };
            ending.ended = Some(if cancel.is_cancelled() || lease.is_over(clock.now()) {
                Outcome::Cancelled.into()
            } else {
                let ended = if deliveries.is_empty() {
                    Outcome::Success.into()
                } else {
                    let batch = Batch::new(deliveries, partition, token, cancellation);
                    handle(&*handler, batch, &cancel, limits).await
                };
                match stray {
                    Some(stray) => up_to_stray(stray, ended),
                    None => ended,
                }
            });
            // The future is gone by now: whoever is told this may rely on it.
        });
    }
}

/// Tells the loop that a handler has ended, also when its task was torn down by a panic of a value that its future held.
struct Ending {
    sender: mpsc::UnboundedSender<Input>,
    run: RunId,
    ended: Option<Ended>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let panicked = || Outcome::Retry {
            after: None,
            error: "the handler panicked when it was dropped".to_owned(),
        };
        let ended = self.ended.take().unwrap_or_else(|| panicked().into());
        self.sender.send(Input::Ended(self.run, ended)).ok();
    }
}

/// The handlers that run. When the loop ends, however it does, those that still run are told to end: nobody would watch over their
/// lease any more.
#[derive(Debug, Default)]
pub(super) struct Runs(pub(super) HashMap<RunId, CancellationToken>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.values().for_each(CancellationToken::cancel);
    }
}

/// What has become of a run whose message at this place is a stray one, from how its handler ended, which had those before it.
fn up_to_stray(stray: usize, ended: Ended) -> Ended {
    match ended.then {
        Outcome::Success => Ended {
            finished: stray,
            then: Outcome::Reject {
                error: Message::STRAY.to_owned(),
            },
        },
        then => Ended {
            // An index that the handler's batch does not have counts as none.
            finished: if ended.finished < stray { ended.finished } else { 0 },
            then,
        },
    }
}

impl<H: BatchHandler> Driver<H> {
    /// Stores a dead letter with a confirmed publish. The lanes end the original only when that is answered.
    pub(super) fn store_dead_letter(&mut self, letter: DeadLetter<Arc<Message>>) {
        let run = letter.run;
        let Some(settings) = self.parts.settings.dead_letters.clone() else {
            let now = self.clock.now();
            let answer = Err("the group's settings name no stream for dead letters".to_owned());
            return self.parts.junction.dead_lettered(now, run, answer);
        };
        let origin = Origin {
            subject: letter.message.subject.to_string(),
            stream: self.parts.nats.stream.to_string(),
            sequence: letter.stream_sequence,
            key: letter.key.to_string(),
            group: self.parts.nats.group.to_string(),
            member: self.parts.junction.engine().member().to_string(),
            partition: letter.partition.0.into(),
            token: letter.token.0,
            attempts: letter.attempts.into(),
            published: letter.time,
            failed: unix_nanos(SystemTime::now()),
            error: letter.error,
        };
        let (nats, sender) = (self.parts.nats.clone(), self.sender.clone());
        self.background.spawn(async move {
            let what = || "storing a dead letter".to_owned();
            let store = nats.store_dead_letter(&settings.prefix, &settings.stream, &origin, &letter.message);
            let stored = nats.bounded(what, store).await;
            let answer = stored.map_err(|error| error.to_string());
            sender.send(Input::DeadLettered(run, answer)).ok();
        });
    }
}

/// How long a handler may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// One attempt.
    time: Option<Duration>,
    /// Ending by itself after a cancellation.
    grace: Duration,
}

/// Runs the handler to its end, or until its time to end after a cancellation is over.
async fn handle<H: BatchHandler>(handler: &H, batch: Batch, cancel: &CancellationToken, limits: Limits) -> Ended {
    let timed_out = AtomicBool::new(false);
    let handled = AssertUnwindSafe(async { handler.handle(batch).await }).catch_unwind();
    let cut_off = async {
        let time_is_up = async {
            match limits.time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = time_is_up => {
                timed_out.store(true, Ordering::Relaxed);
                cancel.cancel();
            }
        }
        tokio::time::sleep(limits.grace).await;
    };
    let ended = tokio::select! {
        biased;
        result = handled => match result {
            Ok(Ok(())) => Outcome::Success.into(),
            Ok(Err(failure)) => Ended {
                finished: failure.index,
                // One that was told to end and says so did not fail.
                then: if cancel.is_cancelled() { Outcome::Cancelled } else { failed(failure.failure) },
            },
            Err(panic) => Outcome::Retry { after: None, error: panic_text(&*panic) }.into(),
        },
        () = cut_off => Outcome::Cancelled.into(),
    };
    match (ended, limits.time) {
        (
            Ended {
                finished,
                then: Outcome::Cancelled,
            },
            Some(time),
        ) if timed_out.load(Ordering::Relaxed) => Ended {
            finished,
            then: Outcome::Retry {
                after: None,
                error: format!("the handler did not end within {time:?}"),
            },
        },
        (ended, _) => ended,
    }
}

fn failed(failure: Failure) -> Outcome {
    let error = failure.reason;
    match failure.kind {
        FailureKind::Retry(after) => Outcome::Retry { after, error },
        FailureKind::Reject => Outcome::Reject { error },
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_message_ends_a_batch_and_is_rejected_when_those_before_it_are_finished() {
        let rejected = |finished| Ended {
            finished,
            then: Outcome::Reject {
                error: Message::STRAY.to_owned(),
            },
        };
        assert_eq!(up_to_stray(0, Outcome::Success.into()), rejected(0));
        assert_eq!(up_to_stray(2, Outcome::Success.into()), rejected(2));
        let cancelled = |finished| Ended {
            finished,
            then: Outcome::Cancelled,
        };
        assert_eq!(up_to_stray(2, cancelled(1)), cancelled(1));
        assert_eq!(up_to_stray(2, cancelled(2)), cancelled(0), "no such message");
    }
}
