//! One handler per key, keys in parallel, partitions in turn.

use super::bench::{Bench, P, delivered, epoch, filter, settings};
use crate::ids::Partition;
use crate::lanes::{Lanes, Marks, Outcome};
use std::num::NonZeroUsize;

#[test]
fn a_key_runs_one_message_at_a_time_and_in_order() {
    let mut bench = Bench::new(settings());
    for sequence in [32, 64, 96] {
        bench.deliver(sequence, "a");
    }
    assert_eq!(bench.started(), [32]);
    assert_eq!(bench.started(), [0; 0], "one runs already");
    bench.end(32, Outcome::Success);
    assert_eq!(bench.acks(), ["1:32"]);
    assert_eq!(bench.started(), [64]);
    bench.end(64, Outcome::Success);
    assert_eq!(bench.run_all(), [96]);
    assert_eq!(bench.floor(), 96);
}

#[test]
fn keys_run_in_parallel_up_to_the_concurrency() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in (1..).zip(["a", "b", "c", "d", "e", "a"]) {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [1, 2, 3, 4]);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.started(), [5], "the key that waits longest comes next");
}

#[test]
fn nothing_runs_before_it_is_dispatched() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.advance(1000);
    assert!(
        bench
            .take(|action| matches!(action, crate::lanes::Action::Run(_)).then_some(()))
            .is_empty()
    );
    assert_eq!(bench.held(), 1);
}

#[test]
fn partitions_take_turns_whatever_they_have_queued() {
    let mut settings = settings();
    settings.concurrency = NonZeroUsize::MIN;
    let mut lanes: Lanes<u64> = Lanes::new(settings, 1);
    let busy = Partition(1);
    let calm = Partition(2);
    let now = crate::time::Time::ZERO;
    for partition in [busy, calm] {
        lanes.open(partition, filter(), epoch(1, 0), Marks::default());
    }
    for sequence in 1..=20 {
        lanes.deliver(
            now,
            busy,
            &filter(),
            epoch(1, 0),
            delivered(sequence, sequence, &format!("k{sequence}")),
        );
    }
    for (count, sequence) in (1..).zip(21..=23) {
        lanes.deliver(now, calm, &filter(), epoch(1, 0), delivered(count, sequence, "calm"));
    }
    let mut order = Vec::new();
    for _ in 0..6 {
        lanes.dispatch();
        let runs: Vec<_> = lanes.actions().collect();
        for action in runs {
            if let crate::lanes::Action::Run(run) = action {
                order.push(run.partition);
                lanes.ended(now, run.run, Outcome::Success);
            }
        }
    }
    assert_eq!(order, [busy, calm, busy, calm, busy, calm]);
}

#[test]
fn lanes_of_idle_keys_are_dropped() {
    let mut bench = Bench::new(settings());
    for sequence in 1..=50 {
        bench.deliver(sequence, &format!("key {sequence}"));
    }
    assert_eq!(bench.lanes.partition_status(P).unwrap().keys, 50);
    bench.run_all();
    let status = bench.lanes.partition_status(P).unwrap();
    assert_eq!((status.keys, status.held.messages, status.running), (0, 0, 0));
    assert_eq!(bench.lanes.deadline(), None, "finished messages leave no timers");
}

#[test]
fn status_names_the_key_with_the_most_messages() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in (1..).zip(["a", "hot", "hot", "b", "hot"]) {
        bench.deliver(sequence, key);
    }
    let deepest = bench.lanes.partition_status(P).unwrap().deepest.unwrap();
    assert_eq!((deepest.key.as_ref(), deepest.depth), ("hot", 3));
}
