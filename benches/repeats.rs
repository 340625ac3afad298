//! How many messages are handled again after a SIGKILL, by checkpoint interval: `cargo bench --bench repeats`.
//!
//! A member in a process of its own handles a steady stream of messages and tells of every one that it has finished. In the midst of
//! that it is killed. Another member takes over, and what it handles although the dead one had finished it is counted.
//!
//! While all keys flow, the acks say nearly everything, and the interval hardly matters. When one key of each partition waits, on a
//! limits stream only the checkpoints say what is finished behind it.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy::{self, Limits, WorkQueue};
use async_nats::jetstream::{self, consumer, stream};
use futures_util::TryStreamExt;
use jetring::testing::NatsServer;
use jetring::{Delivery, Group, Settings, Transformed};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Messages per second.
const RATE: usize = 2_000;
const KEYS: usize = 500;
const PARTITIONS: u64 = 16;
const INTERVALS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
];
const ROUNDS: u32 = 3;
const DEADLINE: Duration = Duration::from_secs(60);

/// Given to a child: the server, the stream, and the checkpoint interval in milliseconds.
const CHILD: &str = "JETRING_REPEATS_CHILD";

/// The payload of messages that the child never finishes.
const WAITS: &str = "waits";

#[tokio::main]
async fn main() -> Result<()> {
    if let Ok(spec) = std::env::var(CHILD) {
        return child(&spec).await;
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("repeats: not measured; cargo bench --bench repeats");
        return Ok(());
    }
    let server = NatsServer::builder().own().start().await?;
    println!(
        "messages handled again after a SIGKILL: {RATE} messages/s, {KEYS} keys, {PARTITIONS} partitions, plain acks, \
         nats-server {}, {ROUNDS} rounds",
        server.version()
    );
    println!("stream      a key of each partition   checkpoint interval   repeated, each round");
    for retention in [Limits, WorkQueue] {
        for waits in [false, true] {
            for interval in INTERVALS {
                let mut repeated = Vec::new();
                for number in 0..ROUNDS {
                    let round = Round {
                        retention,
                        waits,
                        interval,
                        number,
                    };
                    repeated.push(round.run(&server).await?.to_string());
                }
                println!(
                    "{:<11} {:<25} {:>16} ms   {}",
                    format!("{retention:?}"),
                    if waits { "waits" } else { "flows" },
                    interval.as_millis(),
                    repeated.join(" ")
                );
            }
        }
    }
    Ok(())
}

fn group(stream: &str, interval: Duration) -> Result<Group> {
    let settings = Settings {
        session_timeout: Duration::from_secs(1),
        checkpoint_interval: interval,
        bucket: stream.to_owned(),
        ..Settings::default()
    };
    let strategy = Transformed::of(&format!("{stream}.*"), PARTITIONS)?;
    Ok(Group::new("repeats", stream, strategy)?.with_settings(settings)?)
}

struct Round {
    retention: RetentionPolicy,
    waits: bool,
    interval: Duration,
    number: u32,
}

impl Round {
    /// How many messages were repeated.
    async fn run(&self, server: &NatsServer) -> Result<usize> {
        let name = nuid::next().to_string();
        let client = server.connect().await?;
        let group = group(&name, self.interval)?;
        let template = stream::Config {
            retention: self.retention,
            ..stream::Config::default()
        };
        group.provision(&client, template).await?;
        let jetstream = jetstream::new(client.clone());
        let repeated = self.killed(server, &group, &name, &jetstream).await;
        jetstream.delete_stream(&name).await?;
        jetstream.delete_key_value(&name).await?;
        repeated
    }

    async fn killed(
        &self,
        server: &NatsServer,
        group: &Group,
        name: &str,
        jetstream: &jetstream::Context,
    ) -> Result<usize> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(CHILD, format!("{} {name} {}", server.url(), self.interval.as_millis()))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the child has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        // It has entered.
        tokio::time::timeout(DEADLINE, lines.next_line()).await??;
        let reader = tokio::spawn(async move {
            let mut finished = HashSet::new();
            while let Some(line) = lines.next_line().await? {
                finished.insert(line);
            }
            Ok::<_, std::io::Error>(finished)
        });
        let waiting = self.publish_waiting(group, name, jetstream).await?;
        // Each time somewhere else between two checkpoints.
        let time = Duration::from_secs(1) + self.interval + self.interval * (self.number + 1) / (ROUNDS + 1);
        let published = publish(name, jetstream, Instant::now() + time).await?;
        child.kill().await?;
        let finished = reader.await??;

        let of_the_dead = consumers(name, jetstream).await?;
        let of_the_dead: HashSet<String> = of_the_dead.into_iter().map(|info| info.name).collect();
        let (sender, mut handled) = mpsc::unbounded_channel();
        let handler = move |delivery: Delivery| {
            sender.send(text(&delivery)).ok();
            async { Ok(()) }
        };
        let member = group.join(&server.connect().await?, "taker", handler).await?;
        let mut missing = published + waiting - finished.len();
        let mut repeated = 0;
        let mut count = |message: String| match finished.contains(&message) {
            true => repeated += 1,
            false => missing -= 1,
        };
        // All is handled, and what is to be repeated is too, when the consumers await nothing any more.
        tokio::time::timeout(DEADLINE, all_acked(name, jetstream, &of_the_dead)).await??;
        handled.close();
        while let Some(message) = handled.recv().await {
            count(message);
        }
        if missing > 0 {
            return Err(format!("{missing} messages are lost").into());
        }
        member.leave().await?;
        Ok(repeated)
    }

    /// One message in each partition, of a key of its own, that the child never finishes; how many.
    async fn publish_waiting(&self, group: &Group, name: &str, jetstream: &jetstream::Context) -> Result<usize> {
        let mut partitions = HashSet::new();
        for number in (0_u32..).take_while(|_| self.waits) {
            let key = format!("waits-{number}");
            if partitions.insert(group.partition_of(&key)) {
                jetstream.publish(format!("{name}.{key}"), WAITS.into()).await?.await?;
            }
            if partitions.len() as u64 == PARTITIONS {
                break;
            }
        }
        Ok(partitions.len())
    }
}

/// Publishes at the usual rate until then; how many.
async fn publish(name: &str, jetstream: &jetstream::Context, until: Instant) -> Result<usize> {
    let tick = Duration::from_millis(10);
    let mut ticks = tokio::time::interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut published = 0;
    while Instant::now() < until {
        ticks.tick().await;
        let mut stored = Vec::new();
        for _ in 0..RATE / 100 {
            let subject = format!("{name}.k{}", published % KEYS);
            stored.push(jetstream.publish(subject, published.to_string().into()).await?);
            published += 1;
        }
        for stored in stored {
            stored.await?;
        }
    }
    Ok(published)
}

/// Waits until the consumers of the stream are others, which have delivered everything and had it acked.
async fn all_acked(name: &str, jetstream: &jetstream::Context, of_the_dead: &HashSet<String>) -> Result<()> {
    loop {
        let found = consumers(name, jetstream).await?;
        let done = |info: &consumer::Info| {
            !of_the_dead.contains(&info.name) && info.num_pending == 0 && info.num_ack_pending == 0
        };
        if found.len() as u64 == PARTITIONS && found.iter().all(done) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn consumers(name: &str, jetstream: &jetstream::Context) -> Result<Vec<consumer::Info>> {
    let stream = jetstream.get_stream(name).await?;
    Ok(stream.consumers().try_collect().await?)
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.payload()).into_owned()
}

/// Handles messages and writes down each one that is finished, in a line that a SIGKILL cannot take back.
async fn child(spec: &str) -> Result<()> {
    let mut spec = spec.split(' ');
    let (Some(url), Some(name), Some(interval)) = (spec.next(), spec.next(), spec.next()) else {
        return Err("not started by the benchmark".into());
    };
    let client = async_nats::connect(url).await?;
    let handler = |delivery: Delivery| async move {
        let text = text(&delivery);
        if text == WAITS {
            std::future::pending::<()>().await;
        }
        println!("{text}");
        Ok(())
    };
    let group = group(name, Duration::from_millis(interval.parse()?))?;
    let member = group.join(&client, "killed", handler).await?;
    println!("entered");
    member.run_until(std::future::pending::<()>()).await?;
    Ok(())
}
