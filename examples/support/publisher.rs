//! The traffic: keyed, numbered, confirmed.
//!
//! Each key counts its messages from 1. The next one of a key is published when the last one is confirmed, so the stream has
//! every key in order of its numbers; different keys are published at the same time. The messages go round the partitions one
//! by one, so that every partition gets one at equal times and a partition that stands still shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use jetring::Group;
use tokio::sync::{Mutex, RwLock, RwLockWriteGuard, Semaphore};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::clock;
use super::random;

/// How many publishes may wait for their confirmation.
const WINDOW: usize = 256;

/// How long one confirmation is waited for.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// How far the publisher may fall behind its rate and still catch up. What is more is left out: after a pause of the server
/// the run should not measure how a flood is handled.
const CATCH_UP: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Key {
    name: String,
    subject: String,
    /// Its confirmed messages, in order of their numbers. The lock also keeps them apart.
    sent: Mutex<Vec<Sent>>,
}

/// A message whose publish was confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// When it was sent for the first time.
    pub(crate) at: u64,
    /// Its sequence in the stream.
    pub(crate) sequence: u64,
}

/// What is published.
#[derive(Debug, Clone)]
pub(crate) struct Traffic {
    /// The stream.
    pub(crate) stream: String,
    /// The first token of the subjects.
    pub(crate) topic: String,
    /// The keys.
    pub(crate) keys: Vec<String>,
    /// What the order of the keys comes from.
    pub(crate) seed: u64,
    /// How long one publish is tried before the message counts as not published.
    pub(crate) patience: Duration,
}

impl Traffic {
    /// As long as the server does not usually stay away for.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
}

/// Publishes the traffic.
#[derive(Debug)]
pub(crate) struct Publisher {
    context: Context,
    stream: String,
    patience: Duration,
    /// The keys of each partition that has any.
    partitions: Vec<Vec<Arc<Key>>>,
    confirmed: AtomicU64,
    /// Every publish holds it until it is confirmed or given up.
    open: RwLock<()>,
}

impl Publisher {
    /// Connects to `url`, or to one of several with commas between, and chooses the order of the keys.
    pub(crate) async fn new(group: &Group, url: &str, traffic: Traffic) -> Result<Self, Fault> {
        let addresses: Vec<&str> = url.split(',').collect();
        let options = async_nats::ConnectOptions::new().name("publisher");
        let mut context = jetstream::new(options.connect(&addresses[..]).await?);
        context.set_timeout(ACK_TIMEOUT);
        let (topic, seed) = (traffic.topic, traffic.seed);
        let mut by_partition: BTreeMap<u16, Vec<Arc<Key>>> = BTreeMap::new();
        for name in traffic.keys {
            let partition = group.partition_of(&name);
            let key = Key {
                subject: format!("{topic}.{name}"),
                name,
                sent: Mutex::new(Vec::new()),
            };
            by_partition.entry(partition.0).or_default().push(Arc::new(key));
        }
        let mut partitions: Vec<Vec<Arc<Key>>> = by_partition.into_values().collect();
        random::shuffle(&mut partitions, seed);
        for (keys, partition) in partitions.iter_mut().zip(1..) {
            random::shuffle(keys, seed ^ partition);
        }
        Ok(Self {
            context,
            stream: traffic.stream,
            patience: traffic.patience,
            partitions,
            confirmed: AtomicU64::new(0),
            open: RwLock::new(()),
        })
    }

    /// How many messages are confirmed.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// The confirmed messages of each key, in order of their numbers from 1.
    pub(crate) async fn sent(&self) -> BTreeMap<String, Vec<Sent>> {
        let mut sent = BTreeMap::new();
        for key in self.partitions.iter().flatten() {
            sent.insert(key.name.clone(), key.sent.lock().await.clone());
        }
        sent
    }

    /// For each key when its confirmed messages were sent, in order of their numbers from 1.
    pub(crate) async fn times(&self) -> BTreeMap<String, Vec<u64>> {
        let times = |sent: Vec<Sent>| sent.iter().map(|sent| sent.at).collect();
        let sent = self.sent().await.into_iter();
        sent.map(|(key, sent)| (key, times(sent))).collect()
    }

    /// For each key the number of its last confirmed message.
    pub(crate) async fn last_numbers(&self) -> BTreeMap<String, u64> {
        let sent = self.sent().await;
        sent.into_iter().map(|(key, sent)| (key, sent.len() as u64)).collect()
    }

    /// Waits until nothing is on its way, and has nothing published for as long as what it returns is kept: what is confirmed then is
    /// all that there is.
    pub(crate) async fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.open.write().await
    }

    /// Publishes `rate` messages per second until it is stopped, and waits until everything is confirmed or given up.
    pub(crate) async fn run(self: Arc<Self>, rate: u32, stop: CancellationToken) {
        let window = Arc::new(Semaphore::new(WINDOW));
        let publishes = TaskTracker::new();
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let rate = f64::from(rate);
        let (mut began, mut since_began, mut sent) = (Instant::now(), 0_f64, 0_usize);
        while !stop.is_cancelled() {
            ticks.tick().await;
            let debt = began.elapsed().as_secs_f64() - since_began / rate;
            if debt > CATCH_UP.as_secs_f64() {
                (began, since_began) = (Instant::now(), 0.0);
            }
            while since_began < began.elapsed().as_secs_f64() * rate && !stop.is_cancelled() {
                // The semaphore is never closed.
                let Ok(permit) = window.clone().acquire_owned().await else {
                    break;
                };
                let (publisher, key) = (self.clone(), self.key(sent));
                publishes.spawn(async move {
                    publisher.publish(&key).await;
                    drop(permit);
                });
                (since_began, sent) = (since_began + 1.0, sent + 1);
            }
        }
        publishes.close();
        publishes.wait().await;
    }

    /// The key of the message that is the `sent`-th.
    fn key(&self, sent: usize) -> Arc<Key> {
        let keys = &self.partitions[sent % self.partitions.len()];
        keys[sent / self.partitions.len() % keys.len()].clone()
    }

    /// Publishes the next message of a key. If no try is confirmed in time the key's next message has the same number, and
    /// the same id, by which the server keeps only one of the two.
    async fn publish(&self, key: &Key) {
        let _open = self.open.read().await;
        let mut sent = key.sent.lock().await;
        let (number, at) = (sent.len() as u64 + 1, clock::now());
        let deadline = Instant::now() + self.patience;
        loop {
            match self.attempt(key, number).await {
                Ok(sequence) => {
                    sent.push(Sent { at, sequence });
                    self.confirmed.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(error) if Instant::now() < deadline => {
                    tracing::warn!(key = key.name, number, %error, "a publish was not confirmed and is tried again");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => {
                    tracing::error!(key = key.name, number, %error, "a publish was not confirmed");
                    return;
                }
            }
        }
    }

    async fn attempt(&self, key: &Key, number: u64) -> Result<u64, jetstream::context::PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{}.{number}", key.name));
        headers.insert("Nats-Expected-Stream", self.stream.as_str());
        let payload = number.to_string().into();
        let published = self.context.publish_with_headers(key.subject.clone(), headers, payload);
        published.await?.await.map(|ack| ack.sequence)
    }
}
