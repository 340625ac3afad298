//! Running handlers and answering the server for them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::handler::{Cancellation, Delivery, Failure, FailureKind, Handler, Message};
use crate::lanes::{Outcome, Run};
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
        let cancel = CancellationToken::new();
        self.runs.insert(run.run, cancel.clone());
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
        let (lease, clock, grace) = (self.lease.clone(), self.clock, self.parts.settings.cancel_grace());
        self.handler_tasks.spawn(async move {
            let outcome = if cancel.is_cancelled() || lease.is_over(clock.now()) {
                Outcome::Cancelled
            } else {
                handle(&*handler, delivery, &cancel, grace).await
            };
            // The future is gone by now: whoever is told this may rely on it.
            sender.send(Input::Ended(id, outcome)).ok();
        });
    }
}

/// Runs the handler to its end, or until its time to end after a cancellation is over.
async fn handle<H: Handler>(
    handler: &H,
    delivery: Delivery,
    cancel: &CancellationToken,
    grace: std::time::Duration,
) -> Outcome {
    let handled = AssertUnwindSafe(async { handler.handle(delivery).await }).catch_unwind();
    let cut_off = async {
        cancel.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        biased;
        result = handled => match result {
            Ok(Ok(())) => Outcome::Success,
            // One that was told to end and says so did not fail.
            Ok(Err(_)) if cancel.is_cancelled() => Outcome::Cancelled,
            Ok(Err(failure)) => failed(failure),
            Err(panic) => Outcome::Retry { after: None, error: panic_text(&*panic) },
        },
        () = cut_off => Outcome::Cancelled,
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
