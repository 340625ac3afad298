//! A member in a process of its own: it joins the group, handles messages, and writes down what it does.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::stream::RetentionPolicy;
use jetring::config::RetryPolicy;
use jetring::{Delivery, Error, Failure, Group, Member, Partitions, SubjectPattern, Transformed};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::support::Fault;
use crate::support::journal::{Journal, MemberChange};
use crate::support::random::mix;

/// The name of the group.
pub(crate) const GROUP: &str = "chaos";

/// The first token of the subjects.
pub(crate) const TOPIC: &str = "chaos_topic";

/// How long most handlers take, in microseconds.
const WORK_MICROS: [u64; 2] = [1_000, 8_000];

/// One handler in this many takes long, so that faults hit some of them in the middle.
const LONG_ONE_IN: u64 = 40;
const LONG_MICROS: [u64; 2] = [200_000, 900_000];

/// One in this many takes longer than a session timeout of 2 s: it is still running when a member is cut off or frozen past its lease,
/// and its key has messages waiting behind it.
const LONGER_ONE_IN: u64 = 60;
const LONGER_MICROS: [u64; 2] = [2_500_000, 4_500_000];

/// Where something is wrong on purpose it takes long enough to show.
const PLANTED_MICROS: [u64; 2] = [4_000_000, 5_000_000];

/// One attempt in this many fails.
const FAILS_ONE_IN: u64 = 40;

/// How long a member waits before it asks again to enter the group.
const JOIN_AGAIN: Duration = Duration::from_millis(100);

/// What the stream keeps: the two kinds that are most used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Retention {
    /// Everything.
    Limits,
    /// What is not acked.
    WorkQueue,
}

impl From<Retention> for RetentionPolicy {
    fn from(retention: Retention) -> Self {
        match retention {
            Retention::Limits => Self::Limits,
            Retention::WorkQueue => Self::WorkQueue,
        }
    }
}

/// What a member does wrong on purpose, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Plant {
    /// Nothing.
    Nothing,
    /// It says that a message is finished before its work has been done.
    Early,
    /// Its work goes on when it is cancelled, because it was spawned.
    Deaf,
}

/// The group, for whoever looks at it and for the members.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupSpec {
    pub(crate) stream: String,
    pub(crate) bucket: String,
    pub(crate) partitions: u16,
    pub(crate) replicas: usize,
    pub(crate) session_timeout: Duration,
}

impl GroupSpec {
    /// The group that this describes.
    pub(crate) fn group(&self) -> Result<Group, Error> {
        let pattern = SubjectPattern::parse(&format!("{TOPIC}.*"))?;
        let partitions = Partitions::new(self.partitions.into())?;
        Group::new(GROUP, &self.stream, Transformed::new(pattern, partitions))?.with_settings(jetring::Settings {
            session_timeout: self.session_timeout,
            bucket: self.bucket.clone(),
            bucket_replicas: self.replicas,
            // What mends itself after a while does so within the run.
            reconcile_interval: Duration::from_secs(5),
            ack_wait: Duration::from_secs(6),
            request_timeout: Duration::from_secs(1),
            checkpoint_interval: Duration::from_millis(300),
            // Keys that wait get past what is kept in memory.
            lane_depth: NonZeroUsize::MIN,
            retry: RetryPolicy {
                initial: Duration::from_millis(20),
                max: Duration::from_millis(500),
                max_attempts: None,
            },
            // A process that is killed from outside makes whatever it runs look guilty.
            max_kills: NonZeroU32::MIN.saturating_add(15),
            ..jetring::Settings::default()
        })
    }
}

/// What a member process is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemberSpec {
    /// Its id.
    pub(crate) id: String,
    /// The addresses of the servers, as this member knows them.
    pub(crate) urls: Vec<String>,
    /// The group it joins.
    pub(crate) group: GroupSpec,
    /// The file of its records.
    pub(crate) journal: PathBuf,
    /// What its handlers do comes from it.
    pub(crate) seed: u64,
    /// What it does wrong.
    pub(crate) plant: Plant,
}

/// Takes part until SIGTERM.
pub(crate) async fn run(spec: &str) -> Result<(), Fault> {
    let spec: MemberSpec = serde_json::from_str(spec)?;
    // From now on SIGTERM is kept for later, so that one that comes early is not missed.
    let mut terminate = signal(SignalKind::terminate())?;
    let journal = Arc::new(Journal::open(&spec.journal)?);
    let member = tokio::select! {
        member = join(&spec, &journal) => member?,
        _ = terminate.recv() => return Ok(()),
    };
    let terminated = async {
        terminate.recv().await;
    };
    member.run_until(terminated).await?;
    journal.member(MemberChange::Left)?;
    Ok(())
}

/// Enters the group, however long that takes: its connections may be cut.
async fn join(spec: &MemberSpec, journal: &Arc<Journal>) -> Result<Member, Fault> {
    let changes = journal.clone();
    let group = spec.group.group()?.on_change(move |change| {
        if let Some(change) = MemberChange::of(change)
            && let Err(error) = changes.member(change)
        {
            eprintln!("a record could not be written: {error}");
        }
    });
    // It knows the servers by its own proxies only.
    let options = ConnectOptions::new().name(&spec.id).ignore_discovered_servers();
    let client = options.retry_on_initial_connect().connect(&spec.urls[..]).await?;
    journal.member(MemberChange::Joining)?;
    loop {
        let worker = Worker {
            journal: journal.clone(),
            seed: spec.seed,
            plant: spec.plant,
        };
        let handler = move |delivery: Delivery| {
            let worker = worker.clone();
            async move { worker.handle(delivery).await }
        };
        match group.join(&client, &spec.id, handler).await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "joining is tried again");
                tokio::time::sleep(JOIN_AGAIN).await;
            }
            joined => return Ok(joined?),
        }
    }
}

/// What handlers share.
#[derive(Debug, Clone)]
struct Worker {
    journal: Arc<Journal>,
    seed: u64,
    plant: Plant,
}

impl Worker {
    async fn handle(&self, delivery: Delivery) -> Result<(), Failure> {
        let worker = self.clone();
        match self.plant {
            Plant::Nothing => self.work(&delivery).await,
            Plant::Early => {
                tokio::spawn(async move { worker.work(&delivery).await });
                Ok(())
            }
            Plant::Deaf => tokio::spawn(async move { worker.work(&delivery).await }).await?,
        }
    }

    /// The work is to take some time. Some of it fails; some of it listens to its cancellation, and some does not.
    async fn work(&self, delivery: &Delivery) -> Result<(), Failure> {
        let sequence = delivery.stream_sequence();
        let running = self.journal.start(delivery, sequence)?;
        let dice = mix(self.seed ^ mix(sequence) ^ u64::from(delivery.attempt()));
        let [least, most] = match (dice % LONG_ONE_IN, mix(dice ^ 2) % LONGER_ONE_IN) {
            (0, _) if self.plant != Plant::Nothing => PLANTED_MICROS,
            (_, 0) => LONGER_MICROS,
            (0, _) => LONG_MICROS,
            _ => WORK_MICROS,
        };
        let work = tokio::time::sleep(Duration::from_micros(least + mix(dice) % (most - least)));
        let listens = self.plant != Plant::Deaf && sequence.is_multiple_of(2);
        tokio::select! {
            biased;
            () = delivery.cancellation().cancelled(), if listens => return Err(Failure::retry("cancelled")),
            () = work => {}
        }
        if mix(dice ^ 1).is_multiple_of(FAILS_ONE_IN) {
            return Err(Failure::retry("as the dice will have it"));
        }
        Ok(running.finish()?)
    }
}
