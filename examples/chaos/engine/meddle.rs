//! What somebody with a NATS client can do to a group behind its back, and what the servers say about it all in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Subject};
use futures_util::TryStreamExt;
use jetring::Group;
use jetring::ids::{MemberId, Partition};
use jetring::names::ConsumerName;
use jetring::records::Keys;

use crate::support::Fault;
use crate::support::publisher::Publisher;

use super::member::GroupSpec;
use super::schedule::{Action, Leader};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(3);

/// How long a purge is tried: it must be known whether it was done.
const PURGE_DEADLINE: Duration = Duration::from_secs(120);

/// How many messages one look at the stream asks for.
const AUDIT_BATCH: usize = 500;

/// How often reading the stream is tried, and the pause before it is again.
const AUDIT_TRIES: usize = 10;
const AUDIT_PAUSE: Duration = Duration::from_secs(1);

/// Somebody with a NATS client.
#[derive(Debug, Clone)]
pub(crate) struct Meddler {
    client: Client,
    context: Context,
    spec: GroupSpec,
    keys: Keys,
}

/// What the consumers of the group have before them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// How many consumers there are.
    pub(crate) consumers: usize,
    /// Messages that were not delivered yet.
    pub(crate) pending: u64,
    /// Messages that are delivered and not acked.
    pub(crate) unacked: u64,
}

impl Meddler {
    /// With a connection to the servers themselves.
    pub(crate) fn new(client: &Client, spec: &GroupSpec, group: &Group) -> Self {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        Self {
            client: client.clone(),
            context,
            spec: spec.clone(),
            keys: Keys::new(group.name()),
        }
    }

    /// Does one thing, once. The answer says what came of it; while servers are away that may be nothing.
    pub(crate) async fn meddle(&self, action: Action) -> Result<String, Fault> {
        match action {
            Action::StepDown(leader) => self.step_down(leader).await,
            Action::DeleteConsumer { pick } => {
                let name = self.consumer(pick).await?;
                let stream = self.context.get_stream_no_info(&self.spec.stream).await?;
                stream.delete_consumer(&name).await?;
                Ok(name)
            }
            Action::DeleteClaim { partition } => self.delete(self.keys.claim(Partition(partition))).await,
            Action::DeleteMember { slot } => {
                let id = MemberId::new(format!("member-{slot}"))?;
                self.delete(self.keys.member(&id)).await
            }
            other => Err(format!("{other} is not for a client").into()),
        }
    }

    async fn step_down(&self, leader: Leader) -> Result<String, Fault> {
        let (stream, bucket) = (&self.spec.stream, &self.spec.bucket);
        let subject = match leader {
            Leader::Stream => format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}"),
            Leader::Bucket => format!("$JS.API.STREAM.LEADER.STEPDOWN.KV_{bucket}"),
            Leader::Consumer { pick } => {
                let consumer = self.consumer(pick).await?;
                format!("$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}")
            }
        };
        let answer = self.client.request(Subject::from(subject), "".into()).await?;
        Ok(String::from_utf8_lossy(&answer.payload).into_owned())
    }

    async fn consumer(&self, pick: u64) -> Result<String, Fault> {
        let stream = self.context.get_stream_no_info(&self.spec.stream).await?;
        let mut names: Vec<String> = stream.consumer_names().try_collect().await?;
        names.retain(|name| ConsumerName::parse(name).is_some());
        match names.len() {
            0 => Err("there is no consumer".into()),
            // The remainder is below the length of a vector.
            count => Ok(names.swap_remove((pick % count as u64) as usize)),
        }
    }

    /// The group's consumers: name, messages not delivered, messages not acked.
    async fn consumers(&self) -> Result<Vec<(String, u64, u64)>, Fault> {
        let stream = self.context.get_stream_no_info(&self.spec.stream).await?;
        let all: Vec<jetstream::consumer::Info> = stream.consumers().try_collect().await?;
        let of_group = all.into_iter().filter(|info| ConsumerName::parse(&info.name).is_some());
        let lag = |info: jetstream::consumer::Info| (info.name, info.num_pending, info.num_ack_pending as u64);
        let mut found: Vec<_> = of_group.map(lag).collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn delete(&self, key: String) -> Result<String, Fault> {
        let bucket = self.context.get_key_value(&self.spec.bucket).await?;
        bucket.purge(&key).await?;
        Ok(key)
    }

    /// Purges everything up to the oldest messages that are not `done`, and so many of these. Nothing is published meanwhile, so
    /// what is gone is known exactly: everything below the sequence that this returns.
    pub(crate) async fn purge(
        &self,
        publisher: &Publisher,
        done: &BTreeSet<u64>,
        unhandled: usize,
    ) -> Result<u64, Fault> {
        let _nothing_is_published = publisher.pause().await;
        let sent = publisher.sent().await;
        let sequences: BTreeSet<u64> = sent.values().flatten().map(|sent| sent.sequence).collect();
        let mut waiting = sequences.difference(done);
        let Some(&first) = waiting.nth(unhandled).or(sequences.last()) else {
            return Ok(0);
        };
        let purged = async {
            loop {
                let stream = self.context.get_stream_no_info(&self.spec.stream).await;
                let stream = stream.map_err(Fault::from)?;
                // A purge that was not answered may have been done. Done once more it takes nothing else.
                match stream.purge().sequence(first).await {
                    Ok(_) => return Ok(first),
                    Err(error) => tracing::warn!(%error, "the purge was not answered and is tried again"),
                }
            }
        };
        let done = tokio::time::timeout(PURGE_DEADLINE, purged).await;
        done.map_err(|_| format!("the purge was not answered within {PURGE_DEADLINE:?}"))?
    }

    /// What the consumers of the group have before them.
    pub(crate) async fn lag(&self) -> Result<Lag, Fault> {
        let mut lag = Lag::default();
        for (_, pending, unacked) in self.consumers().await? {
            lag.consumers += 1;
            lag.pending += pending;
            lag.unacked += unacked;
        }
        Ok(lag)
    }

    /// How many messages the stream has.
    pub(crate) async fn messages(&self) -> Result<u64, Fault> {
        let mut stream = self.context.get_stream(&self.spec.stream).await?;
        Ok(stream.info().await?.state.messages)
    }

    /// What the stream has: the key of every sequence.
    pub(crate) async fn stored(&self) -> Result<BTreeMap<u64, String>, Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.read_all(&format!("audit-{tries}")).await {
                // A consumer that was just made may have no leader yet.
                Err(error) if tries < AUDIT_TRIES => {
                    tracing::warn!(%error, "the stream is read once more");
                    tokio::time::sleep(AUDIT_PAUSE).await;
                }
                read => return read,
            }
        }
    }

    async fn read_all(&self, name: &str) -> Result<BTreeMap<u64, String>, Fault> {
        let stream = self.context.get_stream_no_info(&self.spec.stream).await?;
        let config = pull::Config {
            name: Some(name.to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::None,
            headers_only: true,
            memory_storage: true,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer_strict(config).await?;
        let mut left = consumer.cached_info().num_pending;
        let mut stored = BTreeMap::new();
        while left > 0 {
            let mut batch = consumer
                .fetch()
                .max_messages(AUDIT_BATCH)
                .expires(ANSWER)
                .messages()
                .await?;
            while let Some(message) = batch.try_next().await? {
                let info = message.info().map_err(|error| error.to_string())?;
                let key = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
                left = info.pending;
                stored.insert(info.stream_sequence, key);
            }
        }
        stream.delete_consumer(name).await?;
        Ok(stored)
    }
}
