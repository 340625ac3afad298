//! How fast one member delivers: lanes against one message in flight per partition, and what a poison key costs the others.
//!
//! `cargo bench --bench delivery` measures both on a real server of its own. The figures to read are the ratios: everything is
//! measured in turn on the same server in the same run, several times, and the medians are compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer::pull, stream};
use futures_util::StreamExt;
use jetring::testing::NatsServer;
use jetring::{Acks, Delivery, Failure, Group, RetryPolicy, Settings, Transformed};
use tokio::sync::Notify;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PARTITIONS: u64 = 16;
const KEYS: u64 = 1000;
const WORK: Duration = Duration::from_millis(1);
const CONCURRENCY: usize = 256;
/// How many messages one measurement of the lanes takes: a few seconds' worth.
const MESSAGES: u64 = 40_000;
/// How long one in flight per partition is measured.
const ONE_IN_FLIGHT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("delivery: not measured; cargo bench --bench delivery");
        return Ok(());
    }
    let server = NatsServer::builder().own().start().await?;
    let client = server.connect().await?;
    let bench = Bench::new(client).await?;
    println!(
        "{PARTITIONS} partitions, {KEYS} keys, handlers of {WORK:?}, one member with concurrency {CONCURRENCY}, \
         nats-server {}, medians of {ROUNDS} rounds",
        server.version()
    );
    let (mut single, mut bare, mut lanes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut poisoned, mut unacked) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        single.push(bench.one_in_flight(round).await?);
        bare.push(bench.bare(round).await?);
        lanes.push(bench.lanes(round, "clean", None, Acks::Plain).await?);
        poisoned.push(bench.lanes(round, "poisoned", Some("k7"), Acks::Plain).await?);
        unacked.push(bench.lanes(round, "unacked", None, Acks::None).await?);
    }
    let (single, bare, lanes) = (median(single), median(bare), median(lanes));
    let (poisoned, unacked) = (median(poisoned), median(unacked));
    println!("one in flight per partition   {single:>9.0} messages/s");
    println!("without handlers or order     {bare:>9.0} messages/s   what the client and the server can do here");
    let handler = Duration::from_nanos(bench.handler_nanos.load(Ordering::Relaxed));
    let most = CONCURRENCY as f64 / handler.as_secs_f64();
    println!(
        "{CONCURRENCY} handlers without a pause  {most:>9.0} messages/s   {:.1} times as many: each really takes {:.2} ms",
        most / single,
        handler.as_secs_f64() * 1e3
    );
    println!(
        "lanes                         {lanes:>9.0} messages/s   {:.1} times as many (at least 20 wanted)",
        lanes / single
    );
    println!(
        "lanes, Acks::None             {unacked:>9.0} messages/s   {:.1} times as many",
        unacked / single
    );
    println!(
        "lanes, the rest beside poison {poisoned:>9.0} messages/s   {:+.1} % (within 5 % wanted)",
        (poisoned / lanes - 1.0) * 100.0
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A stream with a backlog, read over and over by new groups.
struct Bench {
    client: async_nats::Client,
    /// How long a handler really took, on average, in the last measurement of lanes: timers are coarse.
    handler_nanos: AtomicU64,
}

impl Bench {
    async fn new(client: async_nats::Client) -> Result<Self> {
        let bench = Self {
            client,
            handler_nanos: AtomicU64::new(0),
        };
        bench
            .group("setup", "none", Acks::Plain)?
            .provision(&bench.client, stream::Config::default())
            .await?;
        let jetstream = jetstream::new(bench.client.clone());
        let mut stored = Vec::new();
        for number in 0..MESSAGES {
            stored.push(
                jetstream
                    .publish(format!("bench.k{}", number % KEYS), vec![b'x'; 128].into())
                    .await?,
            );
            if stored.len() == 500 {
                for stored in stored.drain(..) {
                    stored.await?;
                }
            }
        }
        for stored in stored {
            stored.await?;
        }
        Ok(bench)
    }

    fn group(&self, name: &str, bucket: &str, acks: Acks) -> Result<Group> {
        let settings = Settings {
            acks,
            concurrency: CONCURRENCY.try_into()?,
            retry: RetryPolicy {
                initial: Duration::from_millis(50),
                max: Duration::from_secs(1),
                max_attempts: None,
            },
            bucket: bucket.to_owned(),
            ..Settings::default()
        };
        Ok(Group::new(name, "BENCH", Transformed::of("bench.*", PARTITIONS)?)?.with_settings(settings)?)
    }

    /// Messages per second with a plain consumer per partition that has one message in flight: the usual way to keep order.
    async fn one_in_flight(&self, round: usize) -> Result<f64> {
        let jetstream = jetstream::new(self.client.clone());
        let stream = jetstream.get_stream("BENCH").await?;
        let done = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for partition in 0..PARTITIONS {
            let config = pull::Config {
                durable_name: Some(format!("single-{round}-{partition}")),
                filter_subject: format!("bench.{partition}.>"),
                max_ack_pending: 1,
                memory_storage: true,
                ..pull::Config::default()
            };
            let consumer = stream.create_consumer_strict(config).await?;
            let mut messages = consumer.messages().await?;
            let done = done.clone();
            tasks.push(tokio::spawn(async move {
                while let Some(Ok(message)) = messages.next().await {
                    tokio::time::sleep(WORK).await;
                    if message.ack().await.is_err() {
                        break;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let began = Instant::now();
        let before = done.load(Ordering::Relaxed);
        tokio::time::sleep(ONE_IN_FLIGHT).await;
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for partition in 0..PARTITIONS {
            stream.delete_consumer(&format!("single-{round}-{partition}")).await?;
        }
        Ok(rate)
    }

    /// Messages per second when they are only pulled and acked: no handler, no order, nothing kept. No way of consuming with acks is
    /// faster on this machine.
    async fn bare(&self, round: usize) -> Result<f64> {
        let jetstream = jetstream::new(self.client.clone());
        let stream = jetstream.get_stream("BENCH").await?;
        let mut tasks = tokio::task::JoinSet::new();
        let mut consumers = Vec::new();
        for partition in 0..PARTITIONS {
            let config = pull::Config {
                durable_name: Some(format!("bare-{round}-{partition}")),
                filter_subject: format!("bench.{partition}.>"),
                memory_storage: true,
                ..pull::Config::default()
            };
            consumers.push(stream.create_consumer_strict(config).await?);
        }
        let began = Instant::now();
        for consumer in consumers {
            tasks.spawn(async move {
                let mut messages = consumer.messages().await?;
                let mut left = consumer.cached_info().num_pending;
                while left > 0
                    && let Some(message) = messages.next().await
                {
                    message?.ack().await?;
                    left -= 1;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            });
        }
        while let Some(ended) = tokio::time::timeout(DEADLINE, tasks.join_next()).await? {
            ended??;
        }
        let rate = MESSAGES as f64 / began.elapsed().as_secs_f64();
        for partition in 0..PARTITIONS {
            stream.delete_consumer(&format!("bare-{round}-{partition}")).await?;
        }
        Ok(rate)
    }

    /// Messages per second of a jetring member, from the first to the last; without those of `poison`, which never succeed.
    async fn lanes(&self, round: usize, name: &str, poison: Option<&'static str>, acks: Acks) -> Result<f64> {
        let name = format!("{name}-{round}");
        let group = self.group(&name, &name, acks)?;
        let wanted = MESSAGES - poison.map_or(0, |_| MESSAGES / KEYS);
        let progress = Arc::new(Progress::default());
        let own = progress.clone();
        let handler = move |delivery: Delivery| {
            let progress = own.clone();
            async move {
                progress.begin();
                if poison == Some(delivery.key()) {
                    return Err(Failure::retry("it never succeeds"));
                }
                let began = Instant::now();
                tokio::time::sleep(WORK).await;
                progress.handled(wanted, began.elapsed());
                Ok(())
            }
        };
        let member = group.join(&self.client, "bench", handler).await?;
        tokio::time::timeout(DEADLINE, progress.all.notified()).await?;
        let rate = progress.rate(wanted);
        self.handler_nanos
            .store(progress.nanos.load(Ordering::Relaxed) / wanted, Ordering::Relaxed);
        member.leave().await?;
        jetstream::new(self.client.clone()).delete_key_value(&name).await?;
        Ok(rate)
    }
}

/// Counts handled messages and the time they take, each and all together.
#[derive(Default)]
struct Progress {
    count: AtomicU64,
    nanos: AtomicU64,
    began: std::sync::OnceLock<Instant>,
    ended: std::sync::OnceLock<Instant>,
    all: Notify,
}

impl Progress {
    fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    fn handled(&self, wanted: u64, took: Duration) {
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == wanted {
            self.ended.get_or_init(Instant::now);
            self.all.notify_one();
        }
    }

    fn rate(&self, wanted: u64) -> f64 {
        let (began, ended) = (self.began.get(), self.ended.get());
        let took = began
            .zip(ended)
            .map_or(f64::INFINITY, |(began, ended)| (*ended - *began).as_secs_f64());
        wanted as f64 / took
    }
}
