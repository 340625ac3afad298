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
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Fault;
use crate::clock;
use crate::random;

/// How many publishes may wait for their confirmation.
const WINDOW: usize = 256;

/// How long one publish is tried before the message counts as not published.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(10);

/// How long one confirmation is waited for.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// How far the publisher may fall behind its rate and still catch up. What is more is left out: after a pause of the server
/// the run should not measure how a flood is handled.
const CATCH_UP: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Key {
    name: String,
    subject: String,
    /// When each of its confirmed messages was sent for the first time, in order of their numbers. The lock also keeps its
    /// messages apart.
    sent: Mutex<Vec<u64>>,
}

/// Publishes the traffic.
#[derive(Debug)]
pub(crate) struct Publisher {
    context: Context,
    stream: String,
    /// The keys of each partition that has any.
    partitions: Vec<Vec<Arc<Key>>>,
    confirmed: AtomicU64,
}

impl Publisher {
    /// Connects, and chooses the keys.
    pub(crate) async fn new(
        group: &Group,
        url: &str,
        stream: &str,
        topic: &str,
        keys: impl IntoIterator<Item = String>,
        seed: u64,
    ) -> Result<Self, Fault> {
        let client = async_nats::ConnectOptions::new().name("publisher").connect(url).await?;
        let mut context = jetstream::new(client);
        context.set_timeout(ACK_TIMEOUT);
        let mut by_partition: BTreeMap<u16, Vec<Arc<Key>>> = BTreeMap::new();
        for name in keys {
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
            stream: stream.to_owned(),
            partitions,
            confirmed: AtomicU64::new(0),
        })
    }

    /// How many messages are confirmed.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// For each key when its confirmed messages were sent, in order of their numbers from 1.
    pub(crate) async fn sent(&self) -> BTreeMap<String, Vec<u64>> {
        let mut sent = BTreeMap::new();
        for key in self.partitions.iter().flatten() {
            sent.insert(key.name.clone(), key.sent.lock().await.clone());
        }
        sent
    }

    /// For each key the number of its last confirmed message.
    pub(crate) async fn last_numbers(&self) -> BTreeMap<String, u64> {
        let sent = self.sent().await;
        sent.into_iter().map(|(key, sent)| (key, sent.len() as u64)).collect()
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
        let mut sent = key.sent.lock().await;
        let (number, at) = (sent.len() as u64 + 1, clock::now());
        let deadline = Instant::now() + PUBLISH_DEADLINE;
        loop {
            match self.attempt(key, number).await {
                Ok(()) => {
                    sent.push(at);
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

    async fn attempt(&self, key: &Key, number: u64) -> Result<(), jetstream::context::PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{}.{number}", key.name));
        headers.insert("Nats-Expected-Stream", self.stream.as_str());
        let payload = number.to_string().into();
        let published = self.context.publish_with_headers(key.subject.clone(), headers, payload);
        published.await?.await.map(drop)
    }
}
