//! The only place that talks to NATS.
//!
//! Nothing in here decides: every function carries out one step and reports what came of it, in the engine's terms. Every
//! call has a deadline, and what is read is read from the leader.
//!
//! | file | about |
//! |---|---|
//! | `answers` | telling the server what became of its deliveries |
//! | `bucket` | the KV bucket: read, list, compare-and-set, watch |
//! | `records` | the typed records on top of it |
//! | `consumers` | creating, inspecting, listing and deleting consumers |
//! | `dead_letters` | storing, reading and replaying dead letters |
//! | `discovery` | which filters have messages |
//! | `history` | whether the stream still holds what is finished |
//! | `neighbours` | whether the group's consumers find a place beside others |
//! | `streams` | whether a stream fits, and provisioning it |
//! | `prepare` | what is checked and made before a member may enter |
//! | `pull` | one pull loop per consumer |

pub(crate) mod answers;
pub(crate) mod bucket;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod discovery;
pub(crate) mod history;
mod neighbours;
pub(crate) mod prepare;
pub(crate) mod pull;
pub(crate) mod records;
pub(crate) mod streams;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;

use crate::config::{Acks, Settings};
use crate::error::Error;
use crate::ids::GroupName;
use crate::partitioning::Strategy;

/// The server's error code for a sequence that is not there, or not any more.
const NO_MESSAGE: u64 = 10037;

/// What every step needs: the connection, the stream and the group. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    pub(crate) context: Context,
    pub(crate) group: GroupName,
    pub(crate) stream: Arc<str>,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) request_timeout: Duration,
    pub(crate) bucket: String,
    pub(crate) acks: Acks,
    pub(crate) max_ack_pending: i64,
}

impl Nats {
    pub(crate) fn new(
        client: async_nats::Client,
        group: GroupName,
        stream: Arc<str>,
        strategy: Arc<dyn Strategy>,
        settings: &Settings,
    ) -> Self {
        let builder = ContextBuilder::new();
        let context = match &settings.domain {
            Some(domain) => builder.domain(domain).timeout(settings.request_timeout).build(client),
            None => builder.timeout(settings.request_timeout).build(client),
        };
        Self {
            context,
            group,
            stream,
            strategy,
            request_timeout: settings.request_timeout,
            bucket: settings.bucket.clone(),
            acks: settings.acks,
            max_ack_pending: settings.max_ack_pending(),
        }
    }

    /// The stream, without asking for it.
    pub(crate) async fn stream_handle(&self) -> Result<async_nats::jetstream::stream::Stream<()>, Error> {
        let found = self.context.get_stream_no_info(&*self.stream).await;
        found.map_err(|error| no_answer(format!("opening the stream {}", self.stream), error))
    }

    /// Bounds a step that may make several requests, so that none can hang.
    pub(crate) async fn bounded<T>(
        &self,
        what: impl FnOnce() -> String,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        // The client bounds every request by itself; this also bounds waiting for its queue while it is disconnected.
        let limit = self.request_timeout * 4;
        match tokio::time::timeout(limit, step).await {
            Ok(result) => result,
            Err(_) => Err(no_answer(what(), format!("nothing came within {limit:?}"))),
        }
    }
}

/// An error for a step that was not answered.
pub(crate) fn no_answer(what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
    let mut reason = reason.to_string();
    if reason.contains("timed out") {
        // What a user may not publish the server drops; only its log and the client's events say so.
        reason.push_str("; is the server reachable, and may this user publish to $JS.API.> and $KV.>?");
    } else if reason.contains("requested JetStream resource does not exist") {
        // That is how the library says that nobody listens to the request.
        reason.push_str("; is JetStream enabled on the server, for this account and in this domain?");
    }
    Error::NoAnswer {
        what: what.into(),
        reason,
    }
}

/// An error for a step that the server refused.
pub(crate) fn refused(what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
    Error::Refused {
        what: what.into(),
        reason: reason.to_string(),
    }
}

/// Nanoseconds since the Unix epoch. The library's own time type depends on its features; this works with each of them.
pub(crate) fn unix_nanos(time: impl Into<SystemTime>) -> u64 {
    let since = time.into().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
