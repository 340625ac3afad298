//! A stream that lost its end, or was restored: other messages under sequences seen before.

use super::bench::{Bench, P, delivered, filter, settings};
use crate::lanes::{Action, Delivered, Mark, Marks, Outcome};

/// The message that a younger stream stored: as `delivered`, but later.
fn younger(consumer_sequence: u64, sequence: u64, key: &str) -> Delivered<u64> {
    Delivered {
        time: sequence * 10 + 5000,
        message: sequence + 1000,
        ..delivered(consumer_sequence, sequence, key)
    }
}

#[test]
fn a_later_message_under_a_finished_sequence_is_run() {
    let mut marks = Marks::at(Mark {
        sequence: 50,
        time: 500,
    });
    marks.attempts.insert(60, 4);
    let mut bench = Bench::with_marks(settings(), marks);
    bench.deliver_as(delivered(1, 20, "a"));
    bench.deliver_as(younger(2, 30, "a"));
    assert_eq!(bench.acks(), ["1:20"]);
    assert_eq!(bench.floor(), 29, "30 is not finished");
    assert_eq!(bench.marks().attempts.len(), 0);
    assert_eq!(bench.run_all(), [30]);
    assert_eq!(bench.floor(), 30);
}

#[test]
fn another_message_under_a_held_sequence_takes_its_place() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.deliver(20, "a");
    bench.reopen();
    bench.deliver(10, "a");
    bench.deliver_as(younger(2, 20, "b"));
    let runs = bench.start();
    assert_eq!(runs.iter().map(|run| run.message).collect::<Vec<_>>(), [10, 1020]);
    bench.end(10, Outcome::Success);
    bench.end(20, Outcome::Success);
    assert_eq!(bench.started(), [0; 0]);
    assert_eq!(bench.held(), 0);
    assert_eq!(bench.floor(), 20);
}

#[test]
fn the_success_of_a_replaced_message_does_not_end_the_other() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.started();
    let old = bench.run_of(10);
    bench.reopen();
    bench.deliver_as(younger(1, 10, "a"));
    assert_eq!(bench.started(), [0; 0], "the key still has a handler");
    bench.lanes.ended(bench.now, old, Outcome::Success);
    assert_eq!(bench.acks(), [""; 0]);
    assert_eq!(bench.floor(), 0);
    assert_eq!(bench.start()[0].message, 1010);
    bench.end(10, Outcome::Success);
    assert_eq!(bench.acks(), ["1:10"]);
}

#[test]
fn the_dead_letter_of_a_replaced_message_does_not_end_the_other() {
    let mut bench = Bench::new(settings());
    bench.deliver(10, "a");
    bench.started();
    let old = bench.run_of(10);
    bench.end(
        10,
        Outcome::Reject {
            error: "bad".to_owned(),
        },
    );
    bench.reopen();
    bench.deliver_as(younger(1, 10, "a"));
    bench.lanes.dead_lettered(bench.now, old, Ok(()));
    assert_eq!(bench.terminated(), [""; 0]);
    assert_eq!(bench.run_all(), [10]);
    bench.lanes.stop(P);
    assert_eq!(bench.drained().len(), 1, "the drain does not wait for the old one");
}

#[test]
fn a_stream_found_shorter_is_followed_from_its_end() {
    let mut bench = Bench::new(settings());
    for sequence in [10, 20, 30] {
        bench.deliver(sequence, "a");
    }
    bench.run_all();
    bench.lanes.truncate(P, &filter(), 15);
    assert_eq!(bench.floor(), 15);
    bench.reopen();
    bench.deliver(20, "a");
    assert_eq!(bench.run_all(), [20], "whatever its time");
    assert!(
        bench
            .take(|action| matches!(action, Action::Reopen { .. }).then_some(()))
            .is_empty()
    );
}
