//! A stream and a group, with what is published into it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::RetentionPolicy;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use jetring::testing::{NatsServer, NatsServerBuilder};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::check::{Published, Verdict, check};
use super::journal::{Journal, Life, What};
use super::members::{Members, Work, succeed};
use super::setup::Setup;
use super::{Kind, eventually};

/// The server of all tests that leave it running. Its watchdog ends it with this process.
static SHARED: OnceCell<NatsServer> = OnceCell::const_new();

/// A group on its stream, its members, and everything that happened to it.
pub(crate) struct World {
    pub(crate) setup: Setup,
    /// `None`: the shared one.
    pub(crate) own_server: Option<NatsServer>,
    pub(crate) url: String,
    pub(crate) client: async_nats::Client,
    pub(crate) jetstream: Context,
    pub(crate) journal: Arc<Journal>,
    pub(crate) members: Members,
    /// What members that join from now on do with a message.
    pub(crate) work: Work,
    pub(crate) folder: tempfile::TempDir,
    published: Arc<Mutex<Vec<Published>>>,
    lives: AtomicU32,
}

impl World {
    /// The most common one: transformed partitioning on a limits stream.
    pub(crate) async fn new() -> Self {
        Self::start(Setup::new(Kind::Transformed, RetentionPolicy::Limits)).await
    }

    /// On the shared server.
    pub(crate) async fn start(setup: Setup) -> Self {
        let server = SHARED.get_or_init(async || NatsServer::start().await.unwrap()).await;
        Self::build(server.url().to_owned(), None, setup).await
    }

    /// On a server of its own, which can be stopped.
    pub(crate) async fn start_on_own_server(setup: Setup) -> Self {
        Self::start_on(NatsServer::builder().own(), setup).await
    }

    /// On a server of its own with choices of the test's.
    pub(crate) async fn start_on(server: NatsServerBuilder, setup: Setup) -> Self {
        let server = server.start().await.unwrap();
        Self::build(server.url().to_owned(), Some(server), setup).await
    }

    async fn build(url: String, own_server: Option<NatsServer>, setup: Setup) -> Self {
        tracing_subscriber::fmt()
            // Nothing unless RUST_LOG asks for it: clients that cannot reach a server are what some tests are about.
            .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off")))
            .with_writer(std::io::stderr)
            .try_init()
            .ok();
        let folder = tempfile::tempdir().unwrap();
        let client = async_nats::connect(&url).await.unwrap();
        let template = setup.stream_template();
        setup.group().provision(&client, template).await.unwrap();
        Self {
            url,
            own_server,
            jetstream: jetstream::new(client.clone()),
            client,
            journal: Arc::new(Journal::open(&folder.path().join("journal"))),
            members: Members::default(),
            work: succeed(),
            folder,
            published: Arc::default(),
            lives: AtomicU32::new(0),
            setup,
        }
    }

    /// The server, where the world has its own.
    pub(crate) fn server(&mut self) -> &mut NatsServer {
        self.own_server.as_mut().expect("the world has a server of its own")
    }

    pub(crate) fn new_life(&self, id: &str) -> Life {
        Life {
            id: id.to_owned(),
            number: self.lives.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Publishes one message of a key; its sequence.
    pub(crate) async fn publish(&self, key: &str) -> u64 {
        self.publish_round(&[key], 1).await;
        self.published.lock().unwrap().last().unwrap().sequence
    }

    /// Publishes `rounds` messages of every key, in turn.
    pub(crate) async fn publish_round(&self, keys: &[&str], rounds: usize) {
        let mut acks = Vec::new();
        for _ in 0..rounds {
            for key in keys {
                let body = nuid::next().to_string();
                let subject = self.setup.subject(key);
                let ack = self.jetstream.publish(subject, body.clone().into()).await.unwrap();
                acks.push(((*key).to_owned(), body, ack));
            }
        }
        for (key, body, ack) in acks {
            let sequence = ack.await.unwrap().sequence;
            self.note(Published { sequence, key, body });
        }
    }

    /// Publishes one message with this body; its sequence. It is not among those that have to be handled.
    pub(crate) async fn publish_body(&self, key: &str, body: &'static str) -> u64 {
        let published = self.jetstream.publish(self.setup.subject(key), body.into()).await;
        published.unwrap().await.unwrap().sequence
    }

    /// Takes note of a message that the test has published by itself.
    pub(crate) fn note(&self, message: Published) {
        self.published.lock().unwrap().push(message);
    }

    /// What was published and confirmed so far.
    pub(crate) fn published(&self) -> Vec<Published> {
        self.published.lock().unwrap().clone()
    }

    /// Publishes in the background, also while the server is away for some time.
    pub(crate) fn keep_publishing(&self, keys: &[&str]) -> Publisher {
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        let (jetstream, published) = (self.jetstream.clone(), self.published.clone());
        let (setup, stop) = (self.setup.clone(), CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            for key in keys.iter().cycle() {
                if stopped.is_cancelled() {
                    break;
                }
                let body = nuid::next().to_string();
                let sequence = publish_surely(&jetstream, setup.subject(key), &body).await;
                let key = key.clone();
                published.lock().unwrap().push(Published { sequence, key, body });
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        Publisher { stop, task }
    }

    /// Waits until a handler has succeeded for everything that is published.
    pub(crate) async fn await_handled(&self) {
        eventually("everything is handled", async || {
            let missing = self.journal.missing(&self.published());
            match missing.first() {
                None => Ok(()),
                Some(first) => Err((missing.len(), first.clone(), self.last_lines())),
            }
        })
        .await;
    }

    /// Waits until a handler has succeeded for one message.
    pub(crate) async fn await_done(&self, sequence: u64) {
        eventually(&format!("message {sequence} is handled"), async || {
            self.journal
                .is_done(sequence)
                .then_some(())
                .ok_or_else(|| self.last_lines())
        })
        .await;
    }

    /// Waits until a handler of `id` has begun with the message.
    pub(crate) async fn await_started(&self, id: &str, sequence: u64) {
        eventually(&format!("{id} begins with message {sequence}"), async || {
            let starts = self.journal.starts();
            let begun = starts
                .iter()
                .any(|(life, start)| life.id == id && start.sequence == sequence);
            begun.then_some(()).ok_or_else(|| self.last_lines())
        })
        .await;
    }

    /// Waits until `id` tells a change whose text begins with `change`, after the first `after` of them; how many there are then.
    pub(crate) async fn await_change(&self, id: &str, change: &str, after: usize) -> usize {
        eventually(&format!("{id} tells {change}"), async || {
            let told = self.journal.changes(id);
            let found = told.iter().skip(after).position(|text| text.starts_with(change));
            found.map(|at| after + at + 1).ok_or(told)
        })
        .await
    }

    /// Whether `id` has told a change whose text begins with `change`.
    pub(crate) fn has_told(&self, id: &str, change: &str) -> bool {
        self.journal.changes(id).iter().any(|text| text.starts_with(change))
    }

    fn last_lines(&self) -> Vec<String> {
        let lines = self.journal.lines();
        let last = lines.iter().skip(lines.len().saturating_sub(40));
        last.map(|line| format!("{line:?}")).collect()
    }

    /// Judges everything so far.
    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.published(), &self.journal.lines())
    }

    /// The same without messages that were given up on purpose.
    pub(crate) fn verdict_without(&self, given_up: &BTreeSet<u64>) -> Verdict {
        let mut published = self.published();
        published.retain(|message| !given_up.contains(&message.sequence));
        let mut lines = self.journal.lines();
        lines.retain(|line| !matches!(&line.what, What::Started(start) if given_up.contains(&start.sequence)));
        check(&published, &lines)
    }

    /// Waits until the stream has forgotten everything, because everything is acked.
    pub(crate) async fn all_acked(&self) {
        eventually("every message is acked", async || {
            let mut stream = self.jetstream.get_stream(&self.setup.name).await.unwrap();
            let left = stream.info().await.unwrap().state.messages;
            if left == 0 { Ok(()) } else { Err(left) }
        })
        .await;
    }

    /// How many handlers have begun, by member.
    pub(crate) fn starts_by_member(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (life, _) in self.journal.starts() {
            *counts.entry(life.id).or_default() += 1;
        }
        counts
    }
}

/// Publishes under a message id until it is confirmed, so that it is stored once whatever happens to confirmations.
async fn publish_surely(jetstream: &Context, subject: String, body: &str) -> u64 {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", body);
    loop {
        let payload = Bytes::from(body.to_owned());
        let published = jetstream.publish_with_headers(subject.clone(), headers.clone(), payload);
        let confirmed = async { published.await.ok()?.await.ok() };
        if let Ok(Some(ack)) = tokio::time::timeout(Duration::from_secs(1), confirmed).await {
            return ack.sequence;
        }
    }
}

/// Publishing in the background.
#[derive(Debug)]
pub(crate) struct Publisher {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Ends it when its last message is confirmed.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}
