//! One pull loop per consumer: it sends pull requests and passes on what comes.
//!
//! All requests of a loop share one inbox, so that deliveries keep the order in which the server sent them. How much to ask
//! for is the lanes' decision. A request ends after a few seconds: the waiting request of a frozen process must not take
//! messages for long.

use std::time::Duration;

use async_nats::StatusCode;
use async_nats::client::Request;
use async_nats::jetstream::Message as JetStreamMessage;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::lanes::{Filter, PullEnd};
use crate::names::ConsumerName;

use super::{Nats, unix_nanos};

/// How long a pull request waits for messages.
const EXPIRES: Duration = Duration::from_secs(5);

/// How much longer than its time a request may go unanswered before it counts as lost.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait before a loop that could not subscribe tries again.
const RETRY: Duration = Duration::from_millis(250);

/// What a pull loop tells.
#[derive(Debug)]
pub(crate) enum Pulled {
    /// A message.
    Message(Box<PulledMessage>),
    /// A request ended with so much left of it.
    Over(PullEnd),
    /// Whatever was asked for will not come.
    Lost,
    /// The server says that the consumer does not exist.
    Missing,
}

/// A delivery, taken apart.
#[derive(Debug)]
pub(crate) struct PulledMessage {
    pub(crate) stream_sequence: u64,
    pub(crate) consumer_sequence: u64,
    pub(crate) time: u64,
    pub(crate) subject: String,
    pub(crate) reply: String,
    pub(crate) payload: Bytes,
    pub(crate) headers: async_nats::HeaderMap,
    pub(crate) bytes: usize,
}

/// How much to ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) messages: usize,
    /// At most so many bytes.
    pub(crate) bytes: Option<usize>,
}

#[derive(Serialize)]
struct PullRequest {
    batch: usize,
    expires: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<usize>,
}

impl Nats {
    /// Pulls for as long as `requests` is open. What is received from it is asked for.
    pub(crate) async fn pull(
        &self,
        consumer: &ConsumerName,
        filter: &Filter,
        mut requests: mpsc::UnboundedReceiver<Ask>,
        on_pulled: impl Fn(Pulled),
    ) {
        let client = self.context.client();
        let subject = format!("CONSUMER.MSG.NEXT.{}.{consumer}", self.stream);
        loop {
            let inbox = client.new_inbox();
            let Ok(mut deliveries) = client.subscribe(inbox.clone()).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let mut answer_by = None;
            loop {
                let silence = async {
                    match answer_by {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    message = deliveries.next() => match message {
                        Some(message) => {
                            if let Some(pulled) = self.read(message, filter) {
                                on_pulled(pulled);
                            }
                        }
                        None => break,
                    },
                    request = requests.recv() => match request {
                        Some(ask) => {
                            self.request(&subject, &inbox, ask).await;
                            answer_by = Some(tokio::time::Instant::now() + EXPIRES + GRACE);
                        }
                        None => return,
                    },
                    () = silence => {
                        // The server has answered the last request by now, or never will.
                        answer_by = None;
                        tracing::warn!(
                            %consumer,
                            "a pull request got no answer; if that repeats itself on a good connection, look whether this user may \
                             publish to $JS.API.CONSUMER.MSG.NEXT.>"
                        );
                        on_pulled(Pulled::Lost);
                    }
                }
            }
            on_pulled(Pulled::Lost);
        }
    }

    async fn request(&self, subject: &str, inbox: &str, ask: Ask) {
        let expires = u64::try_from(EXPIRES.as_nanos()).unwrap_or(u64::MAX);
        let payload = PullRequest {
            batch: ask.messages,
            expires,
            max_bytes: ask.bytes,
        };
        let payload = serde_json::to_vec(&payload).unwrap_or_default();
        let request = Request::new().payload(payload.into()).inbox(inbox.to_owned());
        if let Err(error) = self.context.send_request(subject.to_owned(), request).await {
            // Noticed by the silence that follows.
            tracing::debug!(%error, subject, "a pull request could not be sent");
        }
    }

    /// What an incoming message means. `None`: nothing.
    fn read(&self, message: async_nats::Message, filter: &Filter) -> Option<Pulled> {
        match message.status {
            None | Some(StatusCode::OK) => self.delivery(message, filter),
            Some(StatusCode::NO_RESPONDERS) => Some(Pulled::Missing),
            Some(StatusCode::IDLE_HEARTBEAT) => None,
            Some(status) => {
                let description = message.description.as_deref().unwrap_or_default();
                if description.eq_ignore_ascii_case("Consumer Deleted") {
                    return Some(Pulled::Missing);
                }
                tracing::trace!(%status, description, "a pull request ended");
                let left = |name: &str| {
                    let value = message.headers.as_ref()?.get(name)?;
                    value.as_str().parse().ok()
                };
                // Without a count, as after a change of leader, none of the requests is alive.
                Some(left("Nats-Pending-Messages").map_or(Pulled::Lost, |messages| {
                    Pulled::Over(PullEnd {
                        messages,
                        bytes: left("Nats-Pending-Bytes").unwrap_or_default(),
                        too_large: description.eq_ignore_ascii_case("Message Size Exceeds MaxBytes"),
                    })
                }))
            }
        }
    }

    fn delivery(&self, message: async_nats::Message, filter: &Filter) -> Option<Pulled> {
        let bytes = message.length;
        let message = JetStreamMessage {
            message,
            context: self.context.clone(),
        };
        let (stream_sequence, consumer_sequence, time) = match message.info() {
            Ok(info) => (info.stream_sequence, info.consumer_sequence, unix_nanos(info.published)),
            Err(error) => {
                tracing::warn!(%error, %filter, "a message without JetStream's reply subject is ignored");
                return None;
            }
        };
        let message = message.message;
        Some(Pulled::Message(Box::new(PulledMessage {
            stream_sequence,
            consumer_sequence,
            time,
            subject: message.subject.to_string(),
            reply: message.reply.map(|reply| reply.to_string()).unwrap_or_default(),
            payload: message.payload,
            headers: message.headers.unwrap_or_default(),
            bytes,
        })))
    }
}
