//! Stop, cancel, close, and coming back.

use super::bench::{Bench, P, delivered, epoch, filter, retry, settings};
use crate::ids::FencingToken;
use crate::lanes::{Action, Mark, Marks, Outcome, Phase, Range};

#[test]
fn a_stop_is_drained_at_once_if_nothing_runs() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.pulls();
    bench.lanes.stop(P);
    assert_eq!(bench.drained(), [Marks::default()], "what was held stays unfinished");
    bench.deliver(2, "b");
    assert_eq!(bench.held(), 0);
    assert_eq!(bench.pulls(), [0; 0]);
    bench.lanes.stop(P);
    assert_eq!(bench.drained(), [], "said once");
}

#[test]
fn a_stop_waits_for_what_runs_and_starts_nothing() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "c")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [1, 3, 4]);
    bench.end(4, retry("down"));
    bench.lanes.stop(P);
    bench.deliver(5, "d");
    bench.deliver(3, "b");
    bench.advance(1000);
    assert_eq!(
        bench.started(),
        [0; 0],
        "neither the next of a key, nor a retry, nor a new one"
    );
    bench.end(1, Outcome::Success);
    assert_eq!(bench.drained(), []);
    bench.end(3, Outcome::Success);
    assert_eq!(
        bench.acks(),
        ["1:1", "6:3"],
        "success after the stop counts, to the latest delivery"
    );
    let marks = bench.drained().remove(0);
    assert_eq!(marks.floor, Mark { sequence: 1, time: 10 });
    assert_eq!(
        marks.ranges,
        [Range {
            low: 3,
            high: 3,
            time: 30
        }]
    );
    assert_eq!(marks.attempts.into_iter().collect::<Vec<_>>(), [(4, 1)]);
    assert_eq!(bench.lanes.partition_status(P).unwrap().phase, Phase::Drained);
    bench.lanes.close(P);
    assert_eq!(bench.ended(), [FencingToken(1)]);
    assert!(bench.lanes.is_idle());
}

#[test]
fn a_stop_waits_for_a_dead_letter_on_its_way() {
    for (stored, floor) in [(Ok(()), 1), (Err("no stream".to_owned()), 0)] {
        let mut bench = Bench::new(settings());
        bench.deliver(1, "a");
        bench.started();
        bench.lanes.stop(P);
        bench.end(
            1,
            Outcome::Reject {
                error: "bad".to_owned(),
            },
        );
        assert_eq!(bench.drained(), []);
        bench.lanes.dead_lettered(bench.now, bench.run_of(1), stored);
        assert_eq!(bench.drained()[0].floor.sequence, floor);
        bench.advance(10_000);
        let again = bench.take(|action| matches!(action, Action::DeadLetter(_)).then_some(()));
        assert_eq!(again.len(), 1, "it is not tried again");
    }
}

#[test]
fn cancel_tells_each_running_handler_once() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "b")] {
        bench.deliver(sequence, key);
    }
    bench.started();
    bench.lanes.stop(P);
    bench.lanes.cancel(P);
    bench.lanes.cancel(P);
    assert_eq!(bench.cancelled(), [bench.run_of(1), bench.run_of(2)]);
    bench.end(1, Outcome::Cancelled);
    // One that succeeds in spite of it has succeeded.
    bench.end(2, Outcome::Success);
    let marks = bench.drained().remove(0);
    assert_eq!(
        (marks.floor.sequence, marks.ranges.len(), marks.attempts.len()),
        (0, 1, 0)
    );
}

#[test]
fn s18_a_success_after_ownership_is_lost_finishes_nothing() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.deliver(2, "b");
    bench.deliver(3, "b");
    bench.started();
    bench.lanes.close(P);
    assert_eq!(bench.cancelled(), [bench.run_of(1), bench.run_of(2)]);
    assert_eq!(bench.lanes.running(P), 2);
    assert_eq!(bench.held(), 0);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.ended(), []);
    bench.end(2, retry("late"));
    assert_eq!(bench.ended(), [FencingToken(1)]);
    assert_eq!(bench.acks(), [""; 0]);
    assert!(bench.lanes.is_idle());
    assert_eq!(bench.lanes.deadline(), None);
}

#[test]
fn a_partition_that_comes_back_waits_for_its_older_handlers() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.started();
    let old = bench.run_of(1);
    bench.lanes.close(P);
    bench.epoch = epoch(2, 0);
    bench.lanes.open(P, filter(), bench.epoch, Marks::default());
    bench.deliver_as(delivered(1, 1, "a"));
    bench.deliver(2, "b");
    assert_eq!(bench.started(), [0; 0]);
    bench.lanes.ended(bench.now, old, Outcome::Success);
    assert_eq!(bench.ended(), [FencingToken(1)]);
    assert_eq!(bench.started(), [1, 2], "the old success counted for nothing");
}

#[test]
fn a_higher_token_closes_the_older_tenure_and_a_lower_one_is_stale() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.lanes.open(P, filter(), epoch(0, 9), Marks::default());
    assert_eq!(bench.held(), 1);
    bench.lanes.open(P, filter(), epoch(5, 0), Marks::default());
    assert_eq!(bench.ended(), [FencingToken(1)]);
    assert_eq!(bench.held(), 0);
    assert_eq!(bench.lanes.partition_status(P).unwrap().token, FencingToken(5));
}

#[test]
fn each_filter_has_its_own_position() {
    let mut bench = Bench::new(settings());
    let late: crate::lanes::Filter = "orders.late".into();
    bench.deliver(100, "a");
    bench.run_all();
    bench.lanes.open(P, late.clone(), epoch(1, 0), Marks::default());
    bench
        .lanes
        .deliver(bench.now, P, &late, epoch(1, 0), delivered(1, 7, "late"));
    assert_eq!(bench.run_all(), [7], "its backlog lies below the other's floor");
    let progress = bench.lanes.progress(P);
    assert_eq!(
        (progress[&filter()].floor.sequence, progress[&late].floor.sequence),
        (100, 7)
    );
}

#[test]
fn changes_tell_when_a_checkpoint_is_due() {
    let mut bench = Bench::new(settings());
    let opened = bench.lanes.changes(P);
    bench.deliver(1, "a");
    assert_eq!(bench.lanes.changes(P), opened, "a delivery alone is no progress");
    bench.run_all();
    let finished = bench.lanes.changes(P);
    assert!(finished > opened);
    bench.deliver(1, "a");
    bench.advance(100_000);
    assert_eq!(bench.lanes.changes(P), finished);
}

#[test]
fn close_all_ends_every_tenure() {
    let mut bench = Bench::new(settings());
    bench
        .lanes
        .open(crate::ids::Partition(9), filter(), epoch(4, 0), Marks::default());
    bench.lanes.close_all();
    assert_eq!(bench.ended(), [FencingToken(1), FencingToken(4)]);
    assert!(bench.lanes.is_idle());
    bench.lanes.stop(P);
    bench.lanes.close(P);
    assert_eq!(bench.ended(), []);
}

#[test]
fn neither_a_drain_nor_an_end_overtakes_older_handlers() {
    for stop in [true, false] {
        let mut bench = Bench::new(settings());
        bench.deliver(1, "a");
        bench.started();
        bench.lanes.close(P);
        bench.lanes.open(P, filter(), epoch(2, 0), Marks::default());
        if stop {
            bench.lanes.stop(P);
        } else {
            bench.lanes.close(P);
        }
        assert_eq!((bench.drained().len(), bench.ended().len()), (0, 0));
        bench.end(1, Outcome::Cancelled);
        assert_eq!(bench.drained().len(), usize::from(stop));
        bench.lanes.close(P);
        assert_eq!(bench.ended(), [FencingToken(1), FencingToken(2)]);
    }
}
