//! Running handlers and answering the server for them.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dead_letters::Origin;
use crate::handler::{Cancellation, Delivery, Failure, FailureKind, Handler, Message};
use crate::lanes::{DeadLetter, Outcome, Run, RunId};
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

/// What the server is told about a delivery. All of these are plain: an ack that is lost is mended by the next delivery.
#[derive(Debug)]
pub(super) enum Answer {
    Ack(Arc<str>),
    Terminate(Arc<str>),
    InProgress(Arc<str>),
}

/// Sends answers until there are no more. Waiting for a full connection here keeps nobody else waiting; their number is
/// bounded by the messages held.
pub(super) async fn send_answers(client: async_nats::Client, mut answers: mpsc::UnboundedReceiver<Answer>) {
    while let Some(answer) = answers.recv().await {
        let (reply, payload) = match answer {
            Answer::Ack(reply) => (reply, Bytes::from_static(b"+ACK")),
            Answer::Terminate(reply) => (reply, Bytes::from_static(b"+TERM")),
            Answer::InProgress(reply) => (reply, Bytes::from_static(b"+WPI")),
        };
        if let Err(error) = client.publish(reply.to_string(), payload).await {
            tracing::debug!(%error, %reply, "an ack could not be sent");
        }
    }
}

impl<H: Handler> Driver<H> {
    /// Starts one handler. However it ends, its outcome comes back as an input.
    pub(super) fn run_handler(&mut self, run: Run<Arc<Message>>) {
        if run.alone {
            tracing::warn!(
                partition = %run.partition,
                key = %run.key,
                sequence = run.stream_sequence,
                "several processes died while they ran this message: nothing else runs meanwhile"
            );
        }
        let cancel = CancellationToken::new();
        self.runs.0.insert(run.run, cancel.clone());
        let id = run.run;
        let delivery = Delivery {
            message: run.message,
            key: run.key,
            stream_sequence: run.stream_sequence,
            time: run.time,
            attempt: run.attempt,
            partition: run.partition,
            token: run.token,
            cancellation: Cancellation(cancel.clone()),
        };
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
                outcome: None,
            };
            ending.outcome = Some(if cancel.is_cancelled() || lease.is_over(clock.now()) {
                Outcome::Cancelled
            } else if delivery.message.stray {
                Outcome::Reject {
                    error: Message::STRAY.to_owned(),
                }
            } else {
                handle(&*handler, delivery, &cancel, limits).await
            });
            // The future is gone by now: whoever is told this may rely on it.
        });
    }
}

/// Tells the loop that a handler has ended, also when its task was torn down by a panic of a value that its future held.
struct Ending {
    sender: mpsc::UnboundedSender<Input>,
    run: RunId,
    outcome: Option<Outcome>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Outcome::Retry {
            after: None,
            error: "the handler panicked when it was dropped".to_owned(),
        });
        self.sender.send(Input::Ended(self.run, outcome)).ok();
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

impl<H: Handler> Driver<H> {
    /// Stores a dead letter with a confirmed publish. The lanes end the original only when that is answered.
    pub(super) fn store_dead_letter(&mut self, letter: DeadLetter<Arc<Message>>) {
        let run = letter.run;
        let Some(settings) = self.parts.settings.dead_letters.clone() else {
            let now = self.clock.now();
            let answer = Err("the group's settings name no stream for dead letters".to_owned());
            return self.parts.lanes.dead_lettered(now, run, answer);
        };
        let origin = Origin {
            subject: letter.message.subject.to_string(),
            stream: self.parts.nats.stream.to_string(),
            sequence: letter.stream_sequence,
            key: letter.key.to_string(),
            group: self.parts.nats.group.to_string(),
            member: self.parts.engine.member().to_string(),
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
async fn handle<H: Handler>(handler: &H, delivery: Delivery, cancel: &CancellationToken, limits: Limits) -> Outcome {
    let timed_out = AtomicBool::new(false);
    let handled = AssertUnwindSafe(async { handler.handle(delivery).await }).catch_unwind();
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
    let outcome = tokio::select! {
        biased;
        result = handled => match result {
            Ok(Ok(())) => Outcome::Success,
            // One that was told to end and says so did not fail.
            Ok(Err(_)) if cancel.is_cancelled() => Outcome::Cancelled,
            Ok(Err(failure)) => failed(failure),
            Err(panic) => Outcome::Retry { after: None, error: panic_text(&*panic) },
        },
        () = cut_off => Outcome::Cancelled,
    };
    match (outcome, limits.time) {
        (Outcome::Cancelled, Some(time)) if timed_out.load(Ordering::Relaxed) => Outcome::Retry {
            after: None,
            error: format!("the handler did not end within {time:?}"),
        },
        (outcome, _) => outcome,
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
