//! Lost and repeated deliveries.

use super::bench::{Bench, delivered, settings};
use crate::lanes::{Gap, Mark, Marks, Outcome, Range};

#[test]
fn a_gap_reopens_once_and_ends_the_epoch() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.lose_one();
    bench.deliver(30, "a");
    bench.deliver(40, "b");
    assert_eq!(bench.gaps(), [Gap { expected: 2, found: 3 }]);
    assert_eq!(bench.run_all(), [10], "what came after the gap is not accepted");
    assert_eq!(bench.floor(), 10);
    bench.reopen();
    for (sequence, key) in [(20, "a"), (30, "a"), (40, "b")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.run_all(), [20, 40, 30]);
    assert_eq!(bench.gaps(), []);
}

#[test]
fn a_lower_consumer_sequence_is_a_gap_too() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.deliver_as(delivered(1, 20, "b"));
    assert_eq!(bench.gaps(), [Gap { expected: 2, found: 1 }]);
    assert_eq!(bench.run_all(), [10]);
}

#[test]
fn an_epoch_begins_at_one() {
    let mut bench = Bench::new(settings());
    bench.deliver_as(delivered(2, 20, "b"));
    assert_eq!(bench.gaps(), [Gap { expected: 1, found: 2 }]);
}

#[test]
fn deliveries_of_another_epoch_are_ignored() {
    let mut bench = Bench::new(settings());
    bench.reopen();
    let current = bench.epoch;
    for stale in [
        super::bench::epoch(1, 0),
        super::bench::epoch(0, 1),
        super::bench::epoch(2, 1),
    ] {
        bench.epoch = stale;
        bench.deliver_as(delivered(1, 10, "a"));
    }
    bench.epoch = current;
    assert_eq!(bench.gaps(), []);
    assert_eq!(bench.started(), [0; 0]);
    bench.deliver_as(delivered(1, 10, "a"));
    assert_eq!(bench.started(), [10]);
}

#[test]
fn after_a_reopen_known_messages_only_learn_their_new_reply() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in [(10, "a"), (20, "a"), (30, "b"), (40, "c")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [10, 30, 40]);
    bench.end(30, Outcome::Success);
    assert_eq!(bench.acks(), ["3:30"]);
    bench.lose_one();
    bench.deliver(60, "a");
    bench.reopen();
    // It may end before the new consumer delivers it again.
    bench.end(40, Outcome::Success);
    assert_eq!(bench.acks(), ["4:40"]);
    for (sequence, key) in [(10, "a"), (20, "a"), (30, "b"), (40, "c"), (50, "a"), (60, "a")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.acks(), ["3:30", "4:40"], "finished ones are acked again, not run");
    assert_eq!(bench.started(), [0; 0]);
    bench.end(10, Outcome::Success);
    assert_eq!(bench.acks(), ["1:10"], "to the reply subject of the new delivery");
    assert_eq!(bench.run_all(), [20, 50, 60]);
    assert_eq!(bench.floor(), 60);
}

#[test]
fn a_redelivery_by_ack_wait_is_not_run_again() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.deliver(20, "a");
    assert_eq!(bench.started(), [10]);
    bench.deliver(10, "a");
    bench.deliver(20, "a");
    assert_eq!(bench.started(), [0; 0]);
    bench.end(10, Outcome::Success);
    assert_eq!(bench.acks(), ["3:10"]);
    bench.deliver(10, "a");
    assert_eq!(bench.acks(), ["5:10"]);
    assert_eq!(bench.run_all(), [20]);
    assert_eq!(bench.acks(), ["4:20"]);
    assert_eq!(bench.held(), 0);
}

#[test]
fn what_progress_says_is_finished_is_acked_and_not_run() {
    let marks = Marks {
        floor: Mark {
            sequence: 15,
            time: 150,
        },
        ranges: vec![Range {
            low: 30,
            high: 40,
            time: 400,
        }],
        ..Marks::default()
    };
    // A work queue delivers from its start.
    let mut bench = Bench::with_marks(settings(), marks);
    for sequence in [10, 20, 30, 40, 50] {
        bench.deliver(sequence, "a");
    }
    assert_eq!(bench.acks(), ["1:10", "3:30", "4:40"]);
    assert_eq!(bench.run_all(), [20, 50]);
    assert_eq!(
        bench.marks(),
        Marks::at(Mark {
            sequence: 50,
            time: 500
        })
    );
}

#[test]
fn a_repeated_reopen_or_an_older_one_changes_nothing() {
    let mut bench = Bench::new(settings());
    bench.reopen();
    bench.deliver(10, "a");
    bench
        .lanes
        .reopen(super::bench::P, &super::bench::filter(), bench.epoch);
    bench
        .lanes
        .reopen(super::bench::P, &super::bench::filter(), super::bench::epoch(1, 0));
    bench.deliver(20, "b");
    assert_eq!(bench.gaps(), []);
    assert_eq!(bench.run_all(), [10, 20]);
}
