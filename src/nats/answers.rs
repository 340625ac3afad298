//! Telling the server what became of its deliveries.
//!
//! An answer that is lost is mended in any case: what is not acked is delivered again, by `ack_wait` or by the consumer that the
//! watchdog opens, and what is finished is acked then and not run. Confirmation only makes that rare.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::client::{Request, RequestErrorKind};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How many answers may wait for their confirmation at a time.
const CONFIRMING: usize = 256;

/// How often an answer is sent until it is confirmed.
const ATTEMPTS: u32 = 5;

/// What the server is told about a delivery.
#[derive(Debug)]
pub(crate) enum Answer {
    Ack(Arc<str>),
    Terminate(Arc<str>),
    InProgress(Arc<str>),
}

/// How answers are confirmed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Confirm {
    /// How long one confirmation is waited for.
    pub(crate) limit: Duration,
    /// How long to wait before an answer is sent again.
    pub(crate) pause: Duration,
}

/// Sends answers until there are no more. Waiting for a full connection here keeps nobody else waiting; their number is bounded
/// by what the consumers deliver without acks.
pub(crate) async fn send_answers(
    client: Client,
    mut answers: mpsc::UnboundedReceiver<Answer>,
    confirm: Option<Confirm>,
) {
    let mut waiting = VecDeque::new();
    let mut confirming = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = confirming.join_next() => {}
            answer = answers.recv() => match (answer, confirm) {
                (Some(Answer::Ack(reply)), None) => send(&client, &reply, "+ACK").await,
                (Some(Answer::Terminate(reply)), None) => send(&client, &reply, "+TERM").await,
                // Whoever waits for the end of a handler must not wait behind acks, and the next one is due soon anyway.
                (Some(Answer::InProgress(reply)), _) => send(&client, &reply, "+WPI").await,
                (Some(Answer::Ack(reply)), Some(confirm)) => waiting.push_back((reply, "+ACK", confirm)),
                (Some(Answer::Terminate(reply)), Some(confirm)) => waiting.push_back((reply, "+TERM", confirm)),
                (None, _) => break,
            }
        }
        while confirming.len() < CONFIRMING
            && let Some((reply, what, confirm)) = waiting.pop_front()
        {
            confirming.spawn(send_surely(client.clone(), reply, what, confirm));
        }
    }
    for (reply, what, confirm) in waiting {
        confirming.spawn(send_surely(client.clone(), reply, what, confirm));
    }
    while confirming.join_next().await.is_some() {}
}

async fn send(client: &Client, reply: &str, what: &'static str) {
    if let Err(error) = client
        .publish(reply.to_owned(), Bytes::from_static(what.as_bytes()))
        .await
    {
        tracing::debug!(%error, reply, "an ack could not be sent");
    }
}

/// Sends an answer until something confirms it. That is no fence: any reply counts. It is not tried again when nobody listens, for
/// then the consumer is gone, and with it all that it awaited.
async fn send_surely(client: Client, reply: Arc<str>, what: &'static str, confirm: Confirm) {
    for _ in 0..ATTEMPTS {
        let request = Request::new()
            .payload(Bytes::from_static(what.as_bytes()))
            .timeout(Some(confirm.limit));
        match client.send_request(reply.to_string(), request).await {
            Ok(_) => return,
            Err(error) if error.kind() == RequestErrorKind::NoResponders => return,
            Err(error) => tracing::debug!(%error, %reply, "an ack is not confirmed"),
        }
        tokio::time::sleep(confirm.pause).await;
    }
    tracing::warn!(%reply, "an ack was not confirmed: its message will be delivered again, and acked then");
}
