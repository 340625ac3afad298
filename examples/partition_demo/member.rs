//! One member: a process that joins the group, handles messages and writes down what it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use jetring::partitioning::Strategy;
use jetring::{Delivery, Error, Failure, Group, Member, Partitions, Settings, SubjectPattern, Token, Transformed};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::Fault;
use crate::journal::{Journal, MemberChange};
use crate::random::mix;

/// How long a member tries to join.
const JOIN_DEADLINE: Duration = Duration::from_secs(10);

/// The least and the most time that a handler takes, in microseconds.
const WORK_MICROS: std::ops::Range<u64> = 1_000..3_000;

/// The strategies of the crate that the demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Partitioning {
    /// One consumer per key; the stream is plain.
    Token,
    /// One consumer per partition; the stream stores the partition in the subject.
    Transformed,
}

/// What can be chosen of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupChoice {
    /// The first token of the subjects.
    pub(crate) topic: String,
    /// The strategy.
    pub(crate) partitioning: Partitioning,
    /// How many partitions there are.
    pub(crate) partitions: u16,
    /// The group's setting of this name.
    pub(crate) session_timeout: Duration,
}

/// What a group is, for whoever starts the members and for the members themselves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupSpec {
    /// The address of the server.
    pub(crate) url: String,
    /// The stream.
    pub(crate) stream: String,
    /// The bucket of the group's records.
    pub(crate) bucket: String,
    /// What was chosen.
    pub(crate) choice: GroupChoice,
}

impl GroupSpec {
    /// The name of the group.
    pub(crate) const NAME: &str = "demo";

    /// The group that this describes.
    pub(crate) fn group(&self) -> Result<Group, Error> {
        let pattern = SubjectPattern::parse(&format!("{}.*", self.choice.topic))?;
        let partitions = Partitions::new(self.choice.partitions.into())?;
        match self.choice.partitioning {
            Partitioning::Token => self.with_strategy(Token::new(pattern, partitions)),
            Partitioning::Transformed => self.with_strategy(Transformed::new(pattern, partitions)),
        }
    }

    fn with_strategy(&self, strategy: impl Strategy + 'static) -> Result<Group, Error> {
        Group::new(Self::NAME, &self.stream, strategy)?.with_settings(Settings {
            session_timeout: self.choice.session_timeout,
            bucket: self.bucket.clone(),
            ..Settings::default()
        })
    }
}

/// What a member process is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemberSpec {
    /// Its id.
    pub(crate) id: String,
    /// The group it joins.
    pub(crate) group: GroupSpec,
    /// The file of its records.
    pub(crate) journal: PathBuf,
    /// What the time of each handler comes from.
    pub(crate) seed: u64,
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
    member
        .run_until(async move {
            terminate.recv().await;
        })
        .await?;
    journal.member(MemberChange::Left)?;
    Ok(())
}

async fn join(spec: &MemberSpec, journal: &Arc<Journal>) -> Result<Member, Fault> {
    let changes = journal.clone();
    let group = spec.group.group()?.on_change(move |change| {
        if let Some(change) = MemberChange::of(change)
            && let Err(error) = changes.member(change)
        {
            eprintln!("a record could not be written: {error}");
        }
    });
    let client = async_nats::ConnectOptions::new()
        .name(&spec.id)
        .connect(&spec.group.url)
        .await?;
    let deadline = Instant::now() + JOIN_DEADLINE;
    journal.member(MemberChange::Joining)?;
    loop {
        let (journal, seed) = (journal.clone(), spec.seed);
        let handler = move |delivery: Delivery| {
            let journal = journal.clone();
            async move { handle(&journal, seed, &delivery).await }
        };
        match group.join(&client, &spec.id, handler).await {
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            joined => return Ok(joined?),
        }
    }
}

/// The handler. Its work is to take some time; it gives up when the message is not this member's any more.
async fn handle(journal: &Journal, seed: u64, delivery: &Delivery) -> Result<(), Failure> {
    let number = std::str::from_utf8(delivery.payload())?.parse()?;
    let running = journal.start(delivery, number)?;
    let work = WORK_MICROS.start + mix(seed ^ delivery.stream_sequence()) % (WORK_MICROS.end - WORK_MICROS.start);
    tokio::select! {
        biased;
        () = delivery.cancellation().cancelled() => Err(Failure::retry("cancelled")),
        () = tokio::time::sleep(Duration::from_micros(work)) => Ok(running.finish()?),
    }
}
