//! What the pure lanes cost for one message, from its delivery to its ack: `cargo bench --bench lanes`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jetring::ids::{Epoch, FencingToken, Partition};
use jetring::lanes::{Action, BatchSettings, Delivered, Filter, Lanes, Marks, Outcome, Retry, Settings};
use jetring::time::Time;

const PARTITIONS: u16 = 16;
const KEYS: u64 = 1_000;
const MESSAGES: u64 = 20_000;

fn settings() -> Settings {
    let number = |number| NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN);
    Settings {
        concurrency: number(256),
        max_held: number(1_000),
        max_held_total: number(10_000),
        max_bytes: number(1 << 23),
        max_bytes_total: number(1 << 26),
        lane_depth: number(100),
        max_parked: number(1_000),
        max_ranges: number(1_000),
        idle_pull: number(8),
        several_filters: false,
        ack_wait: Some(Duration::from_secs(30)),
        inspect_interval: Some(Duration::from_secs(5)),
        ack_check_interval: Duration::from_secs(20),
        retry: Retry {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(30),
            max_attempts: None,
        },
        max_kills: NonZeroU32::MIN,
        dead_letter_killers: false,
        batch: BatchSettings::SINGLE,
    }
}

fn filter(partition: Partition) -> Filter {
    Filter::new(format!("bench.{partition}.>"))
}

/// A backlog, delivered as far as there is room, and handlers that all succeed.
fn work_off(keys: &[Arc<str>], reply: &Arc<str>) -> u64 {
    let epoch = Epoch {
        token: FencingToken(1),
        reopen: 0,
    };
    let mut lanes = Lanes::new(settings(), 1);
    let filters: Vec<Filter> = (0..PARTITIONS).map(|partition| filter(Partition(partition))).collect();
    for (partition, filter) in (0..).map(Partition).zip(&filters) {
        lanes.open(partition, filter.clone(), epoch, Marks::default());
    }
    // What was asked for and not yet delivered, and how far each partition is.
    let mut asked = vec![0; usize::from(PARTITIONS)];
    let mut delivered = vec![0; usize::from(PARTITIONS)];
    let mut running = Vec::new();
    let (mut now, mut acked) = (0, 0);
    while acked < MESSAGES {
        now += 1_000_000;
        let time = Time::from_nanos(now);
        lanes.wake(time);
        for partition in 0..PARTITIONS {
            let index = usize::from(partition);
            for _ in 0..std::mem::take(&mut asked[index]) {
                delivered[index] += 1;
                let sequence = delivered[index] * u64::from(PARTITIONS) + u64::from(partition);
                let message = Delivered {
                    stream_sequence: sequence,
                    read_sequence: sequence,
                    consumer_sequence: delivered[index],
                    time: sequence,
                    key: keys[(sequence % KEYS) as usize].clone(),
                    reply: reply.clone(),
                    bytes: 128,
                    message: sequence,
                };
                lanes.deliver(time, Partition(partition), &filters[index], epoch, message);
            }
        }
        for run in running.drain(..) {
            lanes.ended(time, run, Outcome::Success);
        }
        lanes.dispatch();
        for action in lanes.actions() {
            match action {
                Action::Run(run) => running.push(run.run),
                Action::Ack { .. } => acked += 1,
                Action::Pull {
                    partition, messages, ..
                } => asked[usize::from(partition.0)] += messages,
                _ => {}
            }
        }
    }
    acked
}

fn lanes(criterion: &mut Criterion) {
    let keys: Vec<Arc<str>> = (0..KEYS).map(|number| format!("k{number}").into()).collect();
    let reply: Arc<str> = "$JS.ACK.BENCH.consumer.1.2.3.4.5".into();
    let mut group = criterion.benchmark_group("lanes");
    group.throughput(Throughput::Elements(MESSAGES));
    group.sample_size(20);
    group.bench_function("deliver, run, ack", |bencher| bencher.iter(|| work_off(&keys, &reply)));
    group.finish();
}

criterion_group!(benches, lanes);
criterion_main!(benches);
