//! Batches: what they are made of, when they start, and what becomes of them.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::bench::{Bench, P, at, epoch, filter, retry, settings};
use crate::lanes::{Action, BatchScope, BatchSettings, Ended, Filter, Marks, Outcome, PullEnd, Settings};

pub(super) fn batches(scope: BatchScope, max_messages: usize) -> Settings {
    let mut settings = settings();
    settings.batch = BatchSettings {
        scope,
        max_messages: NonZeroUsize::new(max_messages).unwrap(),
        max_wait: Duration::from_millis(50),
    };
    settings
}

/// Delivers messages 1, 2, .. of these keys, with pull requests under way.
fn bench(settings: Settings, keys: &str) -> Bench {
    let mut bench = Bench::new(settings);
    bench.pulls();
    for (sequence, key) in (1..).zip(keys.chars()) {
        bench.deliver(sequence, &key.to_string());
    }
    bench
}

fn failed_at(finished: usize) -> Ended {
    Ended {
        finished,
        then: retry("no"),
    }
}

#[test]
fn a_full_batch_of_a_key_runs_at_once_and_the_rest_waits_for_company() {
    let mut bench = bench(batches(BatchScope::Key, 3), "aabaaab");
    assert_eq!(bench.batches(), [vec![1, 2, 4]]);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.acks(), ["1:1", "2:2", "4:4"]);
    assert_eq!(bench.batches(), [[0; 0]; 0], "two of a and two of b wait");
    bench.deliver(8, "b");
    assert_eq!(bench.batches(), [[3, 7, 8]]);
    bench.end(3, Outcome::Success);
    bench.advance(50);
    assert_eq!(bench.batches(), [[5, 6]]);
    bench.end(5, Outcome::Success);
    assert_eq!((bench.floor(), bench.held(), bench.lanes.deadline()), (8, 0, None));
}

#[test]
fn a_message_waits_for_company_from_when_it_came_in() {
    let mut bench = bench(batches(BatchScope::Key, 3), "a");
    assert_eq!(bench.lanes.deadline(), Some(at(50)));
    bench.advance(30);
    bench.deliver(2, "a");
    bench.deliver(3, "b");
    bench.advance(19);
    assert_eq!(bench.batches(), [[0; 0]; 0]);
    bench.advance(1);
    assert_eq!(bench.batches(), [[1, 2]], "b has time left");
    bench.deliver(4, "a");
    bench.advance(60);
    assert_eq!(bench.batches(), [[3]]);
    bench.end(1, Outcome::Success);
    bench.advance(0);
    assert_eq!(bench.batches(), [[4]], "it has waited behind the other batch");
}

#[test]
fn without_a_wait_a_batch_is_whatever_is_there() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut settings = batches(scope, 3);
        settings.batch.max_wait = Duration::ZERO;
        let mut bench = bench(settings, "aa");
        assert_eq!(bench.batches(), [[1, 2]]);
    }
}

#[test]
fn a_batch_that_can_get_no_company_for_lack_of_room_does_not_wait() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut settings = batches(scope, 10);
        settings.max_held = NonZeroUsize::new(4).unwrap();
        let mut bench = bench(settings, "aaa");
        assert_eq!(bench.batches(), [[0; 0]; 0], "one more may come");
        bench.deliver(4, "a");
        assert_eq!(bench.batches(), [[1, 2, 3, 4]]);
    }
}

#[test]
fn company_may_come_by_the_next_request_when_one_has_expired() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut bench = bench(batches(scope, 3), "a");
        let expired = PullEnd {
            messages: usize::MAX,
            ..PullEnd::default()
        };
        bench.lanes.pull_ended(P, &filter(), bench.epoch, expired);
        assert_eq!(bench.batches(), [[0; 0]; 0]);
        bench.advance(50);
        assert_eq!(bench.batches(), [[1]]);
    }
}

#[test]
fn a_batch_of_a_partition_is_in_stream_order_and_alone() {
    let mut bench = bench(batches(BatchScope::Partition, 4), "abcabca");
    assert_eq!(bench.batches(), [[1, 2, 3, 4]]);
    bench.deliver(8, "d");
    bench.advance(50);
    assert_eq!(bench.batches(), [[0; 0]; 0], "the partition has one batch at a time");
    bench.end(1, Outcome::Success);
    assert_eq!(bench.batches(), [[5, 6, 7, 8]]);
    bench.end(5, Outcome::Success);
    assert_eq!((bench.floor(), bench.held(), bench.lanes.deadline()), (8, 0, None));
}

#[test]
fn partitions_have_their_batches_at_the_same_time() {
    let mut bench = bench(batches(BatchScope::Partition, 2), "ab");
    let other = crate::ids::Partition(9);
    bench.lanes.open(other, filter(), epoch(1, 0), Marks::default());
    for sequence in [1, 2] {
        let delivered = super::bench::delivered(sequence, sequence + 10, "x");
        bench.lanes.deliver(bench.now, other, &filter(), epoch(1, 0), delivered);
    }
    assert_eq!(bench.batches(), [[1, 2], [11, 12]]);
}

#[test]
fn a_batch_of_a_partition_takes_from_all_its_filters() {
    let mut bench = bench(batches(BatchScope::Partition, 3), "a");
    let other: Filter = "orders.other".into();
    bench.lanes.open(P, other.clone(), epoch(1, 0), Marks::default());
    let delivered = super::bench::delivered(1, 2, "x");
    bench.lanes.deliver(bench.now, P, &other, epoch(1, 0), delivered);
    bench.deliver(3, "a");
    assert_eq!(bench.batches(), [[1, 2, 3]]);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.lanes.floor(P, &other).map(|mark| mark.sequence), Some(2));
}

#[test]
fn what_fails_in_a_batch_waits_and_what_was_not_tried_is_not_counted() {
    let mut bench = bench(batches(BatchScope::Key, 4), "aaaa");
    bench.batches();
    bench.end(1, failed_at(2));
    assert_eq!(bench.acks(), ["1:1", "2:2"]);
    let marks = bench.marks();
    assert_eq!((marks.floor.sequence, marks.started.len()), (2, 0));
    assert_eq!(marks.attempts.into_iter().collect::<Vec<_>>(), [(3, 1)]);
    assert_eq!(bench.batches(), [[0; 0]; 0]);
    bench.advance(100);
    bench.advance(0);
    let attempts = bench.start();
    let attempts: Vec<_> = attempts.iter().map(|one| (one.stream_sequence, one.attempt)).collect();
    assert_eq!(attempts, [(3, 2), (4, 1)]);
    bench.end(3, Outcome::Success);
    assert_eq!(bench.floor(), 4);
}

#[test]
fn a_batch_of_a_partition_passes_over_keys_that_wait() {
    let mut bench = bench(batches(BatchScope::Partition, 4), "abab");
    assert_eq!(bench.batches(), [[1, 2, 3, 4]]);
    bench.end(1, failed_at(1));
    assert_eq!(bench.acks(), ["1:1"]);
    for (sequence, key) in [(5, "b"), (6, "a"), (7, "c"), (8, "a"), (9, "b")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.batches(), [[3, 6, 7, 8]], "4, 5 and 9 are behind 2");
    bench.advance(100);
    bench.end(3, Outcome::Success);
    assert_eq!(bench.batches(), [[2, 4, 5, 9]]);
    bench.end(2, Outcome::Success);
    assert_eq!((bench.floor(), bench.held()), (9, 0));
}

#[test]
fn a_failure_of_all_blames_the_first_and_a_place_that_is_not_there_counts_as_that() {
    for ended in [failed_at(0), failed_at(4), failed_at(usize::MAX)] {
        let mut bench = bench(batches(BatchScope::Key, 4), "aaaa");
        bench.batches();
        bench.end(1, ended);
        assert_eq!(bench.acks(), [""; 0]);
        assert_eq!(bench.marks().attempts.into_iter().collect::<Vec<_>>(), [(1, 1)]);
        bench.advance(100);
        assert_eq!(bench.batches(), [[1, 2, 3, 4]]);
    }
}

#[test]
fn a_rejected_message_of_a_batch_becomes_a_dead_letter_and_its_key_goes_on() {
    let mut bench = bench(batches(BatchScope::Partition, 4), "abab");
    bench.batches();
    let then = Outcome::Reject {
        error: "bad".to_owned(),
    };
    bench.end(1, Ended { finished: 1, then });
    let letters = bench.take(|action| match action {
        Action::DeadLetter(letter) => Some((letter.run, letter.stream_sequence, letter.attempts)),
        _ => None,
    });
    let [(run, 2, 1)] = letters[..] else {
        panic!("{letters:?}");
    };
    bench.advance(50);
    assert_eq!(bench.batches(), [[3]]);
    bench.lanes.dead_lettered(bench.now, run, Ok(()));
    assert_eq!(bench.terminated(), ["2:2"]);
    bench.end(3, Outcome::Success);
    bench.advance(0);
    assert_eq!(bench.batches(), [[4]]);
}

#[test]
fn concurrency_counts_batches() {
    let mut settings = batches(BatchScope::Key, 2);
    settings.concurrency = NonZeroUsize::new(2).unwrap();
    let mut bench = bench(settings, "aabbcc");
    assert_eq!(bench.batches(), [[1, 2], [3, 4]]);
    bench.end(3, Outcome::Success);
    assert_eq!(bench.batches(), [[5, 6]]);
}

#[test]
fn a_drain_starts_no_batch_and_counts_what_a_cancelled_one_has_done() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut bench = bench(batches(scope, 3), "aaaaab");
        assert_eq!(bench.batches(), [[1, 2, 3]]);
        bench.lanes.stop(P);
        bench.advance(100);
        assert_eq!(bench.batches(), [[0; 0]; 0]);
        bench.lanes.cancel(P);
        assert_eq!(bench.cancelled().len(), 1);
        let then = Outcome::Cancelled;
        bench.end(1, Ended { finished: 2, then });
        let marks = bench.drained().remove(0);
        assert_eq!((marks.floor.sequence, marks.attempts.len()), (2, 0));
        assert_eq!(bench.lanes.deadline(), None);
        // The taker gets exactly what is unfinished.
        let mut taker = Bench::with_marks(batches(scope, 3), marks);
        taker.pulls();
        for (sequence, key) in [(3, "a"), (4, "a"), (5, "a"), (6, "b")] {
            taker.deliver(sequence, key);
        }
        assert_eq!(taker.batches(), [[3, 4, 5]]);
    }
}

#[test]
fn another_message_under_the_sequence_of_one_in_a_batch_is_not_finished_with_it() {
    let mut bench = bench(batches(BatchScope::Key, 3), "aaa");
    bench.batches();
    let mut younger = super::bench::delivered(4, 2, "a");
    younger.time = 1000;
    bench.deliver_as(younger);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.acks(), ["1:1", "3:3"]);
    assert_eq!(bench.floor(), 1);
}

#[test]
fn a_closed_partition_leaves_no_wait_behind() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut bench = bench(batches(scope, 3), "ab");
        bench.lanes.close(P);
        assert_eq!((bench.lanes.deadline(), bench.held()), (None, 0));
        bench.advance(100);
        assert_eq!(bench.batches(), [[0; 0]; 0]);
    }
}
