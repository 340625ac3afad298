//! The group's consumers on the stream: one filter each, never edited, named by their epoch.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, Info, ReplayPolicy};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{ConsumerCreateStrictErrorKind, ConsumerErrorKind};
use futures_util::TryStreamExt;

use crate::config::Acks;
use crate::engine::{ConsumerSpec, CreateFault, Fault, Position, Retention};
use crate::lanes::ConsumerView;
use crate::names::ConsumerName;

use super::bucket::chain;
use super::{Nats, unix_nanos};

/// The server's error codes that mean something to the protocol.
const CONSUMER_NOT_FOUND: u64 = 10014;
const FILTER_NOT_UNIQUE: u64 = 10100;

/// The metadata that names the bucket of the group that a consumer belongs to.
pub(super) const BUCKET: &str = "jetring-bucket";

/// What all consumers of a member have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerSettings {
    pub(crate) retention: Retention,
    pub(crate) ack_wait: Duration,
}

impl Nats {
    /// The names of the group's consumers.
    pub(crate) async fn list_consumers(&self) -> Result<Vec<ConsumerName>, Fault> {
        let names = self.consumer_names().await?;
        let ours = names.iter().filter_map(|name| ConsumerName::parse(name));
        Ok(ours.filter(|name| name.group == self.group).collect())
    }

    /// The names of all consumers of the stream. The cluster's leader knows them all, whereas a listing of what they are waits for every
    /// one, and leaves out those that do not answer.
    pub(super) async fn consumer_names(&self) -> Result<Vec<String>, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let names = stream.consumer_names().try_collect().await;
        names.map_err(|error| Fault(chain(&error)))
    }

    /// How far a consumer is. `None` only on the server's word that it does not exist.
    pub(crate) async fn inspect_consumer(&self, name: &ConsumerName) -> Result<Option<Position>, Fault> {
        let info = self.consumer_info(name).await?;
        Ok(info.map(|info| Position {
            ack_floor: info.ack_floor.stream_sequence,
            // Without acks the server takes for acked what it has delivered.
            acked_at: match info.config.ack_policy {
                AckPolicy::None => 0,
                _ => info.ack_floor.last_active.map_or(0, unix_nanos),
            },
            delivered: info.delivered.stream_sequence,
            start: match info.config.deliver_policy {
                DeliverPolicy::ByStartSequence { start_sequence } => start_sequence,
                _ => 0,
            },
        }))
    }

    /// How far a consumer is, for the watchdog. `None` only on the server's word that it does not exist.
    pub(crate) async fn view_consumer(&self, name: &ConsumerName) -> Result<Option<ConsumerView>, Fault> {
        let info = self.consumer_info(name).await?;
        Ok(info.map(|info| ConsumerView {
            delivered: info.delivered.consumer_sequence,
            pending: info.num_pending,
            ack_pending: u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX),
            ack_floor: info.ack_floor.consumer_sequence,
        }))
    }

    async fn consumer_info(&self, name: &ConsumerName) -> Result<Option<Info>, Fault> {
        self.any_consumer_info(&name.to_string()).await
    }

    /// The same of a consumer that may be somebody else's.
    pub(super) async fn any_consumer_info(&self, name: &str) -> Result<Option<Info>, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        match stream.consumer_info(name).await {
            Ok(info) => Ok(Some(info)),
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => Ok(None),
                ConsumerInfoErrorKind::JetStream(inner) if inner.error_code().0 == CONSUMER_NOT_FOUND => Ok(None),
                _ => Err(Fault(chain(&error))),
            },
        }
    }

    /// Creates a consumer, refusing to change one that exists.
    pub(crate) async fn create_consumer(
        &self,
        spec: &ConsumerSpec,
        settings: ConsumerSettings,
    ) -> Result<(), CreateFault> {
        let stream = self
            .stream_handle()
            .await
            .map_err(|error| CreateFault::Unknown(error.to_string()))?;
        match stream
            .create_consumer_strict(self.consumer_config(spec, settings))
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                ConsumerCreateStrictErrorKind::AlreadyExists => CreateFault::Exists,
                ConsumerCreateStrictErrorKind::JetStream(inner) if inner.error_code().0 == FILTER_NOT_UNIQUE => {
                    CreateFault::Overlap(chain(&error))
                }
                _ => CreateFault::Unknown(chain(&error)),
            }),
        }
    }

    fn consumer_config(&self, spec: &ConsumerSpec, settings: ConsumerSettings) -> Config {
        let name = &spec.name;
        let metadata = [
            ("jetring-group", name.group.to_string()),
            ("jetring-partition", name.partition.to_string()),
            ("jetring-epoch", name.epoch.to_string()),
            (BUCKET, self.bucket.clone()),
        ];
        let acks = self.acks != Acks::None;
        Config {
            durable_name: Some(name.to_string()),
            filter_subject: spec.filter.to_string(),
            deliver_policy: match settings.retention {
                // A work-queue stream takes no other: what is left in it is what is to be done.
                Retention::WorkQueue => DeliverPolicy::All,
                Retention::Limits | Retention::Interest => DeliverPolicy::ByStartSequence {
                    start_sequence: spec.start.max(1),
                },
            },
            ack_policy: if acks { AckPolicy::Explicit } else { AckPolicy::None },
            ack_wait: if acks { settings.ack_wait } else { Duration::ZERO },
            max_deliver: -1,
            max_ack_pending: if acks { self.max_ack_pending } else { 0 },
            replay_policy: ReplayPolicy::Instant,
            // The truth is in the progress record, or still in a work-queue stream; file state would only cost writes. An interest
            // stream forgets its messages with its consumers, so there they must outlive the server.
            memory_storage: settings.retention != Retention::Interest,
            // 0: as the stream, which the server demands of every other retention.
            num_replicas: usize::from(settings.retention == Retention::Limits),
            metadata: HashMap::from(metadata.map(|(key, value)| (key.to_owned(), value))),
            ..Config::default()
        }
    }

    /// Deletes a consumer; one that does not exist is fine.
    pub(crate) async fn delete_consumer(&self, name: &ConsumerName) -> Result<(), Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        match stream.delete_consumer(&name.to_string()).await {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ConsumerErrorKind::JetStream(inner) if inner.error_code().0 == CONSUMER_NOT_FOUND => Ok(()),
                _ => Err(Fault(chain(&error))),
            },
        }
    }
}
