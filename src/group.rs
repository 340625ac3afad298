//! A group as the embedding service describes it.

use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::stream::Config as StreamConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::batch::{BatchHandler, Single};
use crate::config::{Acks, FORBIDDEN_IN_STREAM_NAMES, Settings};
use crate::dead_letters::DeadLetters;
use crate::driver::{Driver, Listener, Parts, Status};
use crate::engine::{Change, Engine, EngineSettings, MemberPhase, Stop};
use crate::error::Error;
use crate::handler::Handler;
use crate::ids::{GroupName, Incarnation, MemberId, Partition};
use crate::junction::Junction;
use crate::lanes::{self, BatchSettings, Lanes};
use crate::member::Member;
use crate::nats::consumers::ConsumerSettings;
use crate::nats::prepare::Ready;
use crate::nats::records::Records;
use crate::nats::{Nats, no_answer};
use crate::partitioning::Strategy;
use crate::records::Keys;

/// A group: a named set of members that share the work of one stream. Describing it touches no server.
///
/// ```no_run
/// use jetring::{Delivery, Group, Transformed};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = async_nats::connect("localhost:4222").await?;
/// let group = Group::new("billing", "ORDERS", Transformed::of("orders.*", 32)?)?;
/// let member = group
///     .join(&client, "pod-7", |delivery: Delivery| async move {
///         println!("{}: {} bytes", delivery.key(), delivery.payload().len());
///         Ok(())
///     })
///     .await?;
/// tokio::signal::ctrl_c().await?;
/// member.leave().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Group {
    name: GroupName,
    stream: Arc<str>,
    strategy: Arc<dyn Strategy>,
    settings: Settings,
    listener: Option<Listener>,
}

impl Group {
    /// Describes a group that works on the stream `stream`, partitioned by `strategy`, with default [`Settings`].
    ///
    /// # Errors
    /// [`Error::Name`] or [`Error::StreamName`] if a name cannot be used.
    pub fn new(
        name: impl Into<String>,
        stream: impl Into<String>,
        strategy: impl Strategy + 'static,
    ) -> Result<Self, Error> {
        let stream = stream.into();
        if stream.is_empty() || stream.contains(FORBIDDEN_IN_STREAM_NAMES) {
            return Err(Error::StreamName { stream });
        }
        Ok(Self {
            name: GroupName::new(name)?,
            stream: stream.into(),
            strategy: Arc::new(strategy),
            settings: Settings::default(),
            listener: None,
        })
    }

    /// Replaces the settings.
    ///
    /// # Errors
    /// [`Error::Settings`] for the first setting that cannot work.
    pub fn with_settings(mut self, settings: Settings) -> Result<Self, Error> {
        settings.validate()?;
        self.settings = settings;
        Ok(self)
    }

    /// Has `listener` called for every [`Change`] of the members that join through this value, in order. It runs inside the
    /// member's loop: it must be quick and must not block. A panic in it is logged.
    pub fn on_change(mut self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.listener = Some(Listener::new(listener));
        self
    }

    /// The name.
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The partition of a key.
    pub fn partition_of(&self, key: &str) -> Partition {
        self.strategy.partition_of(key)
    }

    /// Creates the group's stream, with the subjects and the subject transform that its partitioning needs, if there is no
    /// stream of that name. One that exists is only checked, never changed. `template` says everything else about it: storage,
    /// retention, replicas, limits.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join) about the stream, and [`Error::Refused`] with what the server said.
    pub async fn provision(&self, client: &Client, template: StreamConfig) -> Result<(), Error> {
        let nats = self.nats(client);
        let what = || format!("provisioning the stream {}", self.stream);
        nats.bounded(what, async {
            nats.provision_stream(template, self.settings.start).await?;
            nats.check_stream(self.settings.start).await.map(drop)
        })
        .await
    }

    /// The group's dead letters; `None` if its settings name no place for them.
    pub fn dead_letters(&self, client: &Client) -> Option<DeadLetters> {
        let letters = self.settings.dead_letters.as_ref()?;
        let (stream, prefix) = (letters.stream.clone(), letters.prefix.clone());
        Some(DeadLetters::new(self.nats(client), stream, prefix))
    }

    fn nats(&self, client: &Client) -> Nats {
        let (group, stream, strategy) = (self.name.clone(), self.stream.clone(), self.strategy.clone());
        Nats::new(client.clone(), group, stream, strategy, &self.settings)
    }

    /// Enters the group. From then on `handler` gets the messages of the partitions that are assigned to this member, until
    /// [`Member::leave`].
    ///
    /// Everything runs on the tokio runtime that this is called on. Handlers that block their thread need a multi-threaded one:
    /// heartbeats must go on beside them.
    ///
    /// It returns when the member has entered; its partitions are served a little later. Who must know waits with
    /// [`Member::wait_until`] for [`Status::is_settled`]: on a stream with interest retention, what is published before the first
    /// members of a new group serve is dropped by the server.
    ///
    /// A live predecessor of the same `id` that does not show up again is waited for, for one `session_timeout`.
    ///
    /// # Errors
    /// Whatever does not fit, before anything is created: names, settings, the stream, the group's settings, another live member
    /// of the same id. [`Error::NoAnswer`] if the server does not answer; then `join` can be tried again.
    pub async fn join<H: Handler>(&self, client: &Client, id: impl Into<String>, handler: H) -> Result<Member, Error> {
        let single = BatchSettings::SINGLE;
        self.join_batched(client, id, single, Single(handler)).await
    }

    /// The same with a handler of several messages at once.
    ///
    /// ```no_run
    /// use std::{num::NonZeroUsize, time::Duration};
    /// use jetring::{Batch, BatchScope, BatchSettings, Group, Transformed};
    ///
    /// # async fn write(rows: &[jetring::Delivery]) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = async_nats::connect("localhost:4222").await?;
    /// let group = Group::new("archive", "ORDERS", Transformed::of("orders.*", 32)?)?;
    /// let batches = BatchSettings {
    ///     scope: BatchScope::Partition,
    ///     max_messages: NonZeroUsize::new(100).unwrap(),
    ///     max_wait: Duration::from_millis(50),
    /// };
    /// let member = group
    ///     .join_batched(&client, "pod-7", batches, |batch: Batch| async move {
    ///         write(batch.deliveries()).await?; // all or nothing; BatchFailure::at(index, ..) says how far it came
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`join`](Self::join), and [`Error::Settings`] if a batch could never be full.
    pub async fn join_batched<H: BatchHandler>(
        &self,
        client: &Client,
        id: impl Into<String>,
        batches: BatchSettings,
        handler: H,
    ) -> Result<Member, Error> {
        let id = MemberId::new(id)?;
        self.settings.validate()?;
        batches.validate(&self.settings)?;
        let nats = self.nats(client);
        let ready = nats.prepare(&self.settings, None).await?;
        let records = Records::new(ready.bucket.clone(), Keys::new(&self.name));
        let what = || format!("reading the records of the group {}", self.name);
        nats.bounded(what, records.check()).await?;
        let seed = nuid::next().to_string();
        let engine = Engine::new(self.engine_settings(&id, &ready), seed.clone());
        let lanes = Lanes::new(self.lane_settings(batches), xxhash_rust::xxh3::xxh3_64(seed.as_bytes()));
        let (status, watched) = watch::channel(Status::new(&id, lanes.status()));
        let leave = CancellationToken::new();
        let driver = Driver::new(Parts {
            junction: Junction::new(engine, lanes),
            nats,
            settings: self.settings.clone(),
            consumers: self.consumer_settings(&ready),
            start_sequence: ready.prepared.start_sequence,
            handler: Arc::new(handler),
            listener: self.listener.clone(),
            status,
            leave: leave.clone(),
        });
        let member = Member::new(id, leave, watched, tokio::spawn(driver.run()));
        self.entered(member).await
    }

    /// Waits until the member has entered, or has ended. One that does neither in time, because the server does not answer any more,
    /// is dropped and so leaves.
    async fn entered(&self, mut member: Member) -> Result<Member, Error> {
        let past_joining = |status: &Status| status.phase != MemberPhase::Joining;
        // A predecessor is observed for one session timeout.
        let limit = self.settings.session_timeout * 2 + self.settings.request_timeout * 4;
        let Ok(found) = tokio::time::timeout(limit, member.wait_until(past_joining)).await else {
            let what = format!("entering the group {} as {}", self.name, member.id());
            return Err(no_answer(what, format!("nothing came within {limit:?}")));
        };
        match found.map(|status| status.phase) {
            Ok(MemberPhase::Ended) | Err(_) => Err(member.ended().await),
            Ok(_) => Ok(member),
        }
    }

    fn engine_settings(&self, id: &MemberId, ready: &Ready) -> EngineSettings {
        let settings = &self.settings;
        EngineSettings {
            group: self.name.clone(),
            member: id.clone(),
            weight: settings.weight,
            address: settings.address.clone(),
            partitions: self.strategy.partitions(),
            retention: ready.retention,
            ring_seed: settings.ring_seed,
            virtual_nodes: settings.virtual_nodes,
            session_timeout: settings.session_timeout,
            heartbeat_interval: settings.heartbeat_interval(),
            lease_margin: settings.lease_margin(),
            rebalance_delay: settings.rebalance_delay,
            drain_timeout: settings.drain_timeout,
            retry_interval: settings.retry_interval(),
            reconcile_interval: settings.reconcile_interval,
        }
    }

    fn lane_settings(&self, batch: BatchSettings) -> lanes::Settings {
        let settings = &self.settings;
        lanes::Settings {
            concurrency: settings.concurrency,
            max_held: settings.max_held_per_partition,
            max_held_total: settings.max_held,
            max_bytes: settings.max_bytes_per_partition,
            max_bytes_total: settings.max_bytes,
            lane_depth: settings.lane_depth(),
            max_parked: settings.max_parked,
            max_ranges: settings.max_ranges,
            idle_pull: IDLE_PULL,
            several_filters: self.strategy.needs_discovery(),
            ack_wait: (settings.acks != Acks::None).then_some(settings.ack_wait),
            inspect_interval: Some(settings.inspect_interval()),
            ack_check_interval: settings.reconcile_interval,
            retry: lanes::Retry {
                initial: settings.retry.initial,
                max: settings.retry.max,
                max_attempts: settings.retry.max_attempts,
            },
            max_kills: settings.max_kills,
            dead_letter_killers: settings.dead_letter_killers,
            batch,
        }
    }

    fn consumer_settings(&self, ready: &Ready) -> ConsumerSettings {
        ConsumerSettings {
            retention: ready.retention,
            ack_wait: self.settings.ack_wait,
        }
    }
}

/// How many messages a filter asks for while none comes.
const IDLE_PULL: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(7);

/// The error that tells why a member ended.
pub(crate) fn stop_error(member: &MemberId, stop: Stop) -> Error {
    match stop {
        Stop::Duplicate { incarnation } => Error::DuplicateMember {
            member: member.clone(),
            incarnation,
        },
        Stop::Refused(reason) => Error::Ended { reason },
        Stop::Left => Error::Ended {
            reason: "it has left".to_owned(),
        },
    }
}

impl Status {
    fn new(member: &MemberId, lanes: lanes::Status) -> Self {
        Self {
            member: member.clone(),
            incarnation: Incarnation(String::new()),
            phase: MemberPhase::Joining,
            generation: None,
            owners: std::collections::BTreeMap::new(),
            partitions: std::collections::BTreeMap::new(),
            lanes,
        }
    }
}
