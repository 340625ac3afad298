//! The watchdog: what two answers of the server show together, and what they do not.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::bench::{Bench, P, filter, settings};
use crate::lanes::{ConsumerView, Outcome, Reopening, Settings};

fn watched() -> Settings {
    let mut settings = settings();
    settings.inspect_interval = Some(Duration::from_secs(1));
    settings
}

/// A filter that has asked for messages.
fn bench() -> Bench {
    let mut bench = Bench::new(watched());
    bench.pulls();
    bench
}

fn view(delivered: u64, pending: u64) -> ConsumerView {
    ConsumerView {
        delivered,
        pending,
        ack_pending: 0,
        ack_floor: delivered,
    }
}

/// A second passes; if the server is asked, it says this. Whether it was.
fn look(bench: &mut Bench, view: ConsumerView) -> bool {
    bench.advance(1000);
    let asked = bench.inspections();
    assert!(asked <= 1);
    if asked == 1 {
        bench.lanes.inspected(bench.now, P, &filter(), bench.epoch, view);
    }
    asked == 1
}

#[test]
fn a_last_delivery_that_was_swallowed_is_noticed_at_the_second_answer() {
    let mut bench = bench();
    bench.deliver(1, "a");
    bench.run_all();
    look(&mut bench, view(2, 0));
    look(&mut bench, view(2, 0));
    assert_eq!(bench.reopenings(), [Reopening::Swallowed { seen: 1, delivered: 2 }]);
    assert!(!look(&mut bench, view(2, 0)), "the epoch is over");
    bench.reopen();
    bench.deliver(2, "a");
    assert_eq!(bench.run_all(), [2]);
    look(&mut bench, view(1, 0));
    look(&mut bench, view(1, 0));
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn what_is_under_way_is_not_swallowed() {
    let mut bench = bench();
    for sequence in 1..10 {
        bench.advance(1000);
        bench
            .lanes
            .inspected(bench.now, P, &filter(), bench.epoch, view(sequence, 3));
        // It comes after the answer, every time.
        bench.deliver(sequence, "a");
    }
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn s36_a_stuck_consumer_is_replaced_and_its_successor_gets_more_time() {
    let mut bench = bench();
    for needed in [2, 3, 5] {
        let mut answers = 0;
        let reopened = loop {
            answers += usize::from(look(&mut bench, view(0, 7)));
            if let Some(reopened) = bench.reopenings().pop() {
                break reopened;
            }
        };
        assert_eq!((reopened, answers), (Reopening::Stuck { pending: 7 }, needed));
        bench.reopen();
        bench.pulls();
    }
    bench.deliver(1, "a");
    for _ in 0..3 {
        look(&mut bench, view(1, 6));
    }
    assert_eq!(
        bench.reopenings(),
        [Reopening::Stuck { pending: 6 }],
        "one that delivers ends the patience"
    );
}

#[test]
fn a_consumer_with_nothing_to_deliver_is_not_stuck() {
    let mut bench = bench();
    for _ in 0..10 {
        assert!(look(&mut bench, view(0, 0)));
    }
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn a_full_room_is_no_reason_to_ask_or_to_worry() {
    let mut settings = watched();
    settings.max_held = NonZeroUsize::new(2).unwrap();
    settings.ack_check_interval = Duration::ZERO;
    let mut bench = Bench::new(settings);
    bench.pulls();
    bench.deliver(1, "a");
    bench.deliver(2, "a");
    bench.started();
    for _ in 0..5 {
        // Asked for its acks only.
        look(&mut bench, view(2, 100));
        bench.pulls();
    }
    assert_eq!(bench.reopenings(), []);
    // Room, for a moment, at each look.
    for sequence in [1, 2, 3, 4] {
        bench.end(sequence, Outcome::Success);
        bench.pulls();
        look(&mut bench, view(sequence + 1, 100));
        bench.deliver(sequence + 2, "a");
        bench.started();
    }
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn a_room_that_was_full_between_two_answers_excuses_the_consumer() {
    let mut bench = bench();
    look(&mut bench, view(0, 5));
    let everything = crate::lanes::PullEnd {
        messages: usize::MAX,
        ..Default::default()
    };
    // The member's whole room is taken by others for some time.
    let other = crate::ids::Partition(9);
    bench.lanes.open(other, filter(), bench.epoch, Default::default());
    for sequence in 1..=1000 {
        let delivered = super::bench::delivered(sequence, sequence, "x");
        bench.lanes.deliver(bench.now, other, &filter(), bench.epoch, delivered);
    }
    bench.lanes.pull_ended(P, &filter(), bench.epoch, everything);
    bench.pulls();
    bench.lanes.close(other);
    assert!(!bench.pulls().is_empty());
    bench.advance(1000);
    bench.inspections();
    bench.lanes.inspected(bench.now, P, &filter(), bench.epoch, view(0, 5));
    assert_eq!(bench.reopenings(), []);
    look(&mut bench, view(0, 5));
    assert_eq!(bench.reopenings(), [Reopening::Stuck { pending: 5 }]);
}

#[test]
fn acks_that_were_lost_are_noticed_at_the_second_answer_and_mended_by_a_reopen() {
    let mut bench = bench();
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c")] {
        bench.deliver(sequence, key);
    }
    bench.started();
    bench.end(1, Outcome::Success);
    bench.end(3, Outcome::Success);
    bench.acks();
    // The ack of 1 was lost; that of 2 is not due.
    let lost = ConsumerView {
        delivered: 3,
        pending: 0,
        ack_pending: 2,
        ack_floor: 0,
    };
    assert!(look(&mut bench, lost));
    assert_eq!(bench.reopenings(), []);
    while bench.reopenings().is_empty() {
        look(&mut bench, lost);
    }
    assert!(
        bench.now < super::bench::at(4000),
        "nothing comes, so it is looked at soon"
    );
    bench.reopen();
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.acks(), ["1:1", "3:3"], "acked again, and not run");
    bench.end(2, Outcome::Success);
    assert_eq!(bench.acks(), ["2:2"]);
}

#[test]
fn lost_acks_above_a_message_that_takes_long_are_counted_when_nothing_happens() {
    let mut bench = bench();
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c")] {
        bench.deliver(sequence, key);
    }
    bench.started();
    bench.end(2, Outcome::Success);
    let awaits = |ack_pending| ConsumerView {
        delivered: 3,
        pending: 0,
        ack_pending,
        ack_floor: 0,
    };
    look(&mut bench, awaits(3));
    bench.end(3, Outcome::Success);
    look(&mut bench, awaits(2));
    assert_eq!(bench.reopenings(), [], "an ack may be on its way");
    look(&mut bench, awaits(2));
    assert_eq!(bench.reopenings(), [Reopening::LostAcks { pending: 2 }]);
}

#[test]
fn what_is_unfinished_or_was_acked_a_moment_ago_is_no_lost_ack() {
    let mut bench = bench();
    bench.deliver(1, "a");
    bench.deliver(2, "b");
    bench.started();
    let unacked = |ack_pending, ack_floor| ConsumerView {
        delivered: 2,
        pending: 0,
        ack_pending,
        ack_floor,
    };
    for _ in 0..30 {
        look(&mut bench, unacked(2, 0));
    }
    assert_eq!(bench.reopenings(), []);
    bench.end(1, Outcome::Success);
    look(&mut bench, unacked(2, 0));
    assert_eq!(bench.reopenings(), [], "its ack is on the way");
    look(&mut bench, unacked(1, 1));
    bench.end(2, Outcome::Success);
    look(&mut bench, unacked(0, 2));
    look(&mut bench, unacked(0, 2));
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn what_the_consumer_before_delivered_says_nothing_about_the_acks_of_this_one() {
    let mut bench = bench();
    bench.deliver(1, "a");
    bench.deliver(2, "b");
    bench.started();
    bench.end(1, Outcome::Success);
    bench.reopen();
    bench.deliver(2, "b");
    let unacked = ConsumerView {
        delivered: 1,
        pending: 0,
        ack_pending: 1,
        ack_floor: 0,
    };
    for _ in 0..5 {
        bench.pulls();
        look(&mut bench, unacked);
    }
    assert_eq!(bench.reopenings(), []);
}

#[test]
fn a_busy_consumer_is_asked_for_its_acks_only_and_at_a_slow_period() {
    let mut bench = bench();
    let mut asked = 0;
    for sequence in 1..=60 {
        bench.deliver(sequence, "a");
        bench.run_all();
        asked += usize::from(look(&mut bench, view(sequence, 1)));
        bench.pulls();
    }
    assert_eq!((asked, bench.reopenings().len()), (3, 0));
}

#[test]
fn answers_that_come_together_or_about_another_consumer_say_nothing() {
    let mut bench = bench();
    bench.deliver(1, "a");
    let swallowed = view(2, 0);
    for _ in 0..3 {
        bench.lanes.inspected(bench.now, P, &filter(), bench.epoch, swallowed);
    }
    let old = bench.epoch;
    bench.reopen();
    bench.advance(1000);
    bench.lanes.inspected(bench.now, P, &filter(), old, swallowed);
    assert_eq!(bench.reopenings(), []);
    bench.lanes.stop(P);
    bench.inspections();
    for _ in 0..3 {
        assert!(!look(&mut bench, swallowed));
    }
}

#[test]
fn nobody_looks_when_nothing_is_open() {
    let mut bench = bench();
    bench.lanes.close(P);
    bench.advance(1000);
    assert_eq!(bench.lanes.deadline(), None);
    bench
        .lanes
        .open(P, filter(), super::bench::epoch(2, 0), Default::default());
    assert!(bench.lanes.deadline().is_some());
}

/// A second passes; if the server is asked, nobody answers for the consumer. Whether it was.
fn nobody_answers(bench: &mut Bench) -> bool {
    bench.advance(1000);
    let asked = bench.inspections() == 1;
    if asked {
        bench.lanes.leaderless(P, &filter(), bench.epoch);
    }
    asked
}

#[test]
fn a_consumer_that_nobody_answers_for_is_replaced_and_its_successor_gets_more_time() {
    let mut bench = bench();
    for needed in [2, 3, 5] {
        let mut looks = 0;
        let reopened = loop {
            looks += usize::from(nobody_answers(&mut bench));
            if let Some(reopened) = bench.reopenings().pop() {
                break reopened;
            }
        };
        assert_eq!((reopened, looks), (Reopening::Leaderless, needed));
        bench.reopen();
        bench.pulls();
    }
}

#[test]
fn an_answer_or_a_delivery_shows_that_a_consumer_has_a_leader() {
    let mut bench = bench();
    for sequence in 1..5 {
        assert!(nobody_answers(&mut bench));
        assert!(look(&mut bench, view(sequence - 1, 0)));
        assert!(nobody_answers(&mut bench));
        bench.deliver(sequence, "a");
        bench.run_all();
        bench.pulls();
        // What came in between is seen at this look.
        look(&mut bench, view(sequence, 0));
    }
    assert_eq!(bench.reopenings(), []);
}
