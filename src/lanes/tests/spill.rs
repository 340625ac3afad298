//! Keys that wait: few messages in memory, the rest spilled and read again.

use std::num::NonZeroUsize;

use super::bench::{Bench, P, delivered, filter, retry, settings};
use crate::lanes::{Action, Delivered, Found, Outcome, Settings, Stall};

fn number(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn depth(lane_depth: usize) -> Settings {
    let mut settings = settings();
    settings.lane_depth = number(lane_depth);
    settings
}

/// Fails the first of a key that has `count` messages, from sequence 1 on.
fn hot(settings: Settings, count: u64) -> Bench {
    let mut bench = Bench::new(settings);
    for sequence in 1..=count {
        bench.deliver(sequence, "hot");
    }
    assert_eq!(bench.started(), [1]);
    bench.end(1, retry("down"));
    bench
}

fn gone(bench: &mut Bench) -> Vec<u64> {
    bench.take(|action| match action {
        Action::Gone { stream_sequence, .. } => Some(*stream_sequence),
        _ => None,
    })
}

#[test]
fn a_waiting_key_keeps_few_messages_in_memory() {
    let mut bench = hot(depth(3), 5);
    assert_eq!((bench.held(), bench.spilled()), (3, 2), "what lies past the depth");
    bench.deliver(6, "hot");
    assert_eq!((bench.held(), bench.spilled()), (3, 3), "what comes behind");
    assert_eq!(bench.floor(), 0);
    bench.advance(15_000);
    assert_eq!(bench.kept().len(), 6, "all are kept from being delivered again");
}

#[test]
fn spilled_messages_are_read_again_in_order_when_their_turn_comes() {
    let mut bench = hot(depth(4), 8);
    assert_eq!((bench.held(), bench.spilled()), (4, 4));
    assert_eq!(bench.reads(), [], "not while the key waits");
    bench.advance(100);
    let mut ran = Vec::new();
    loop {
        let started = bench.started();
        for &sequence in &started {
            ran.push(sequence);
            bench.end(sequence, Outcome::Success);
        }
        if bench.answer_reads().is_empty() && started.is_empty() {
            break;
        }
    }
    assert_eq!(ran, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((bench.held(), bench.spilled(), bench.floor()), (0, 0, 8));
}

#[test]
fn what_arrives_behind_a_spilled_message_is_spilled_even_if_the_key_runs() {
    let mut bench = hot(depth(1), 3);
    bench.advance(100);
    assert_eq!(bench.started(), [1]);
    bench.deliver(4, "hot");
    bench.deliver(5, "calm");
    assert_eq!((bench.held(), bench.spilled()), (2, 3));
}

#[test]
fn a_key_reads_ahead_no_further_than_half_its_depth() {
    let mut bench = hot(depth(6), 20);
    bench.advance(100);
    for sequence in 1..=3 {
        assert_eq!(bench.started(), [sequence]);
        bench.end(sequence, Outcome::Success);
    }
    assert_eq!(bench.reads(), [], "three are still in memory");
    bench.started();
    bench.end(4, Outcome::Success);
    let reads: Vec<_> = bench.reads().into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(reads, [7]);
}

#[test]
fn a_key_reads_ahead_only_into_free_room() {
    let mut settings = depth(8);
    settings.max_held = number(10);
    settings.concurrency = number(10);
    let mut bench = hot(settings, 20);
    assert_eq!((bench.held(), bench.spilled()), (1, 19));
    // Others take what room the hot one leaves.
    for sequence in 21..=29 {
        bench.deliver(sequence, &format!("calm {sequence}"));
    }
    bench.advance(100);
    bench.started();
    assert_eq!(bench.reads(), [], "the room is full");
    bench.end(1, Outcome::Success);
    let reads: Vec<_> = bench.reads().into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(reads, [2], "the one that has ended has made room for the next");
    assert_eq!(bench.held(), 10);
}

#[test]
fn a_message_that_is_gone_while_its_key_waits_again_leaves_no_count() {
    let mut bench = hot(depth(4), 12);
    bench.advance(100);
    for sequence in 1..=3 {
        bench.started();
        bench.end(sequence, Outcome::Success);
    }
    bench.started();
    let (sequence, read) = bench.reads()[0];
    assert_eq!(sequence, 5, "read ahead while 4 runs");
    bench.end(4, retry("down"));
    bench.lanes.read(read, Found::Gone);
    assert_eq!(gone(&mut bench), [5]);
    bench.lanes.audit();
    assert_eq!((bench.held(), bench.spilled()), (1, 7));
}

#[test]
fn a_spilled_message_that_is_gone_counts_as_finished_and_is_reported() {
    let mut bench = hot(depth(1), 3);
    bench.advance(100);
    bench.started();
    bench.end(1, Outcome::Success);
    let (sequence, read) = bench.reads()[0];
    assert_eq!(sequence, 2);
    bench.acks();
    bench.lanes.read(read, Found::Gone);
    assert_eq!((gone(&mut bench), bench.acks()), (vec![2], vec!["2:2".to_owned()]));
    assert_eq!(bench.floor(), 2);
    assert_eq!(bench.answer_reads(), [3]);
    assert_eq!(bench.run_all(), [3]);
}

#[test]
fn another_message_under_the_sequence_means_that_ours_is_gone_and_is_not_acked() {
    let mut bench = hot(depth(1), 2);
    bench.advance(100);
    bench.started();
    bench.end(1, Outcome::Success);
    bench.acks();
    let (_, read) = bench.reads()[0];
    bench.lanes.read(read, Found::Message { time: 9999, message: 2 });
    assert_eq!((gone(&mut bench), bench.acks().len()), (vec![2], 0));
    // The other one is delivered with its own time.
    bench.deliver_as(Delivered {
        time: 9999,
        ..delivered(3, 2, "hot")
    });
    assert_eq!(bench.run_all(), [2]);
}

#[test]
fn a_delivery_spares_a_read() {
    let mut bench = hot(depth(1), 2);
    bench.advance(100);
    bench.started();
    bench.end(1, Outcome::Success);
    let (_, read) = bench.reads()[0];
    bench.deliver(2, "hot");
    assert_eq!(bench.run_all(), [2]);
    bench.lanes.read(read, Found::Gone);
    assert_eq!(gone(&mut bench), [0; 0], "an answer that comes too late");
    assert_eq!(bench.held(), 0);
}

#[test]
fn a_read_counts_as_held_and_is_forgotten_when_the_partition_closes() {
    let mut bench = hot(depth(1), 2);
    bench.advance(100);
    bench.started();
    bench.end(1, Outcome::Success);
    let (_, read) = bench.reads()[0];
    assert_eq!((bench.held(), bench.spilled()), (1, 0));
    bench.lanes.stop(P);
    assert_eq!(bench.drained()[0].floor.sequence, 1);
    bench.lanes.read(read, Found::Message { time: 20, message: 2 });
    assert_eq!((bench.held(), bench.started().len()), (0, 0));
    bench.lanes.close(P);
    assert_eq!(bench.lanes.deadline(), None);
}

#[test]
fn waiting_keys_with_more_than_half_of_the_room_keep_one_message_each_longest_waiting_first() {
    let mut settings = depth(10);
    settings.max_held = number(20);
    let mut bench = Bench::new(settings);
    for (sequence, key) in (1..=6).map(|s| (s, "a")).chain((7..=12).map(|s| (s, "b"))) {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [1, 7]);
    bench.end(7, retry("down"));
    assert_eq!(bench.spilled(), 0, "six of ten");
    bench.end(1, retry("down"));
    assert_eq!(
        (bench.held(), bench.spilled()),
        (7, 5),
        "b, which waits longest, has one left"
    );
    for sequence in 13..=17 {
        bench.deliver(sequence, "a");
    }
    assert_eq!((bench.held(), bench.spilled()), (2, 15));
}

#[test]
fn bytes_of_waiting_keys_count_as_well() {
    let mut settings = settings();
    settings.max_bytes = number(100);
    let mut bench = Bench::new(settings);
    for sequence in 1..=6 {
        bench.deliver(sequence, "a");
    }
    bench.started();
    bench.end(1, retry("down"));
    assert_eq!((bench.held(), bench.spilled()), (1, 5));
}

#[test]
fn a_partition_with_too_many_spilled_stops_pulling_and_names_the_key() {
    let mut settings = depth(1);
    settings.max_held = number(20);
    settings.max_parked = number(30);
    let mut bench = hot(settings, 20);
    assert_eq!(bench.pulls(), [11], "no more than may be parked");
    for sequence in 21..=31 {
        bench.deliver(sequence, "hot");
    }
    assert_eq!((bench.held(), bench.spilled()), (1, 30));
    assert_eq!(bench.pulls(), [0; 0]);
    let stalled = bench.lanes.partition_status(P).unwrap().stalled.unwrap();
    assert_eq!((stalled.why, stalled.key.as_ref()), (Stall::Parked, "hot"));
    bench.advance(100);
    loop {
        let started = bench.started();
        for &sequence in &started {
            bench.end(sequence, Outcome::Success);
        }
        if bench.answer_reads().is_empty() && started.is_empty() {
            break;
        }
    }
    assert!(!bench.pulls().is_empty());
    assert_eq!(bench.lanes.partition_status(P).unwrap().stalled, None);
}

#[test]
fn a_filter_with_too_many_ranges_stops_pulling_and_names_the_key() {
    let mut settings = settings();
    settings.max_ranges = number(2);
    let mut bench = Bench::new(settings);
    bench.pulls();
    for (sequence, key) in [(1, "stuck"), (2, "a"), (3, "stuck"), (4, "b"), (5, "c")] {
        bench.deliver(sequence, key);
    }
    bench.lanes.pulls_lost(P, &filter(), bench.epoch);
    bench.started();
    for sequence in [2, 4, 5] {
        bench.end(sequence, Outcome::Success);
    }
    assert_eq!(bench.marks().ranges.len(), 2);
    let stalled = bench.lanes.partition_status(P).unwrap().stalled.unwrap();
    assert_eq!((stalled.why, stalled.key.as_ref()), (Stall::Ranges, "stuck"));
    bench.pulls();
    bench.lanes.pulls_lost(P, &filter(), bench.epoch);
    assert_eq!(bench.pulls(), [0; 0]);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.pulls().len(), 1);
}

#[test]
fn a_taker_reaches_loaded_ranges_however_many_they_are() {
    let mut settings = settings();
    settings.max_ranges = number(1);
    let range = |low| crate::lanes::Range {
        low,
        high: low,
        time: low * 10,
    };
    let marks = crate::lanes::Marks {
        ranges: vec![range(2), range(4)],
        ..Default::default()
    };
    let mut bench = Bench::with_marks(settings, marks);
    assert_eq!(bench.pulls().len(), 1);
    for sequence in 1..=3 {
        bench.deliver(sequence, "a");
    }
    bench.lanes.pulls_lost(P, &filter(), bench.epoch);
    assert_eq!(bench.pulls().len(), 1);
    bench.deliver(4, "a");
    assert_eq!(bench.run_all(), [1, 3]);
    assert_eq!(bench.floor(), 4);
}

/// S42 and S03 in one: a key that fails for long, in a partition with little room, while ten thousand messages pass.
#[test]
fn s42_one_waiting_hot_key_neither_stops_others_nor_grows_memory() {
    let mut settings = depth(4);
    settings.max_held = number(32);
    settings.max_parked = number(10_000);
    let mut bench = Bench::new(settings);
    let (mut next, mut asked, mut hot_ran, mut others) = (1, 0, Vec::new(), 0);
    for round in 0..4000 {
        asked += bench.pulls().into_iter().sum::<usize>();
        // Nine of ten messages are for the hot key.
        for _ in 0..asked.min(10) {
            if next <= 10_000 {
                let key = if next % 10 == 0 {
                    format!("calm {}", next % 70)
                } else {
                    "hot".to_owned()
                };
                bench.deliver(next, &key);
                next += 1;
                asked -= 1;
            }
        }
        bench.answer_reads();
        for run in bench.start() {
            let sequence = run.stream_sequence;
            if run.key.as_ref() != "hot" {
                others += 1;
                bench.end(sequence, Outcome::Success);
            } else if round < 2000 {
                bench.end(sequence, retry("down"));
            } else {
                hot_ran.push(sequence);
                bench.end(sequence, Outcome::Success);
            }
        }
        assert!(bench.held() <= 32);
        bench.advance(10);
        if round == 1999 {
            assert_eq!(
                (next, others),
                (10_001, 1000),
                "all others were handled while the key waited"
            );
            assert!(bench.held() <= 4 && bench.spilled() >= 8996);
        }
    }
    let left = bench.spilled();
    assert!(
        hot_ran.is_sorted() && hot_ran.len() > 1900,
        "{} ran, {left} left",
        hot_ran.len()
    );
    assert_eq!(hot_ran.first(), Some(&1));
}
