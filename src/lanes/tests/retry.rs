//! Failures, dead letters, in-progress acks.

use std::time::Duration;

use super::bench::{Bench, P, at, filter, retry, settings, with_max_attempts};
use crate::lanes::{Action, DeadLetter, Marks, Outcome, Parked};

fn letters(bench: &mut Bench) -> Vec<DeadLetter<u64>> {
    bench.take(|action| match action {
        Action::DeadLetter(letter) => Some(letter.clone()),
        _ => None,
    })
}

fn parked(bench: &mut Bench) -> Vec<Parked> {
    bench.take(|action| match action {
        Action::Parked(parked) => Some(parked.clone()),
        _ => None,
    })
}

fn reject(error: &str) -> Outcome {
    Outcome::Reject {
        error: error.to_owned(),
    }
}

#[test]
fn s03_a_failed_message_holds_up_its_key_and_no_other() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [1, 3]);
    bench.end(1, retry("down"));
    bench.end(3, Outcome::Success);
    assert_eq!(bench.acks(), ["3:3"], "a failed message is not acked");
    assert_eq!(bench.run_all(), [4]);
    assert_eq!(bench.floor(), 0);
    bench.advance(49);
    assert_eq!(bench.started(), [0; 0], "at least half of the first delay");
    bench.advance(51);
    assert_eq!(bench.start()[0].attempt, 2);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.run_all(), [2]);
    assert_eq!(bench.marks().attempts.len(), 0);
    assert_eq!(bench.floor(), 4);
}

#[test]
fn the_handler_can_ask_for_a_delay() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.started();
    let after = Some(Duration::from_secs(7));
    bench.end(
        1,
        Outcome::Retry {
            after,
            error: "busy".to_owned(),
        },
    );
    assert_eq!(bench.lanes.deadline(), Some(at(7000)));
    bench.advance(6999);
    assert_eq!(bench.started(), [0; 0]);
    bench.advance(1);
    assert_eq!(bench.started(), [1]);
}

#[test]
fn attempts_go_on_counting_with_a_taker() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    for _ in 0..2 {
        bench.started();
        bench.end(1, retry("down"));
        bench.advance(1000);
    }
    let marks = bench.marks();
    assert_eq!(marks.attempts[&1], 2);
    let mut taker = Bench::with_marks(settings(), marks);
    assert_eq!(taker.marks().attempts[&1], 2, "also before the message is delivered");
    taker.deliver(1, "a");
    assert_eq!(taker.start()[0].attempt, 3);
}

#[test]
fn a_cancelled_attempt_does_not_count_and_its_message_stays_unfinished() {
    let mut bench = Bench::new(with_max_attempts(1));
    bench.deliver(1, "a");
    assert_eq!(bench.start()[0].attempt, 1);
    assert_eq!(bench.marks().started.len(), 1);
    bench.end(1, Outcome::Cancelled);
    assert_eq!(bench.acks(), [""; 0]);
    assert_eq!(bench.marks(), Marks::default());
    assert_eq!(bench.start()[0].attempt, 1);
}

#[test]
fn s05_exhausted_attempts_become_a_dead_letter_before_the_message_ends() {
    let mut bench = Bench::new(with_max_attempts(2));
    bench.deliver(1, "a");
    bench.deliver(2, "a");
    bench.started();
    bench.end(1, retry("first"));
    assert_eq!(letters(&mut bench), []);
    bench.advance(1000);
    bench.started();
    bench.end(1, retry("second"));
    let letter = letters(&mut bench).remove(0);
    assert_eq!(
        (letter.stream_sequence, letter.attempts, letter.error.as_str()),
        (1, 2, "second")
    );
    assert_eq!((letter.key.as_ref(), letter.time, letter.message), ("a", 10, 1));
    assert_eq!(bench.started(), [0; 0], "the key waits for the dead letter");
    assert_eq!((bench.terminated().len(), bench.floor()), (0, 0));
    bench.lanes.dead_lettered(bench.now, letter.run, Ok(()));
    assert_eq!(bench.terminated(), ["1:1"]);
    assert_eq!(bench.floor(), 1);
    assert_eq!(bench.run_all(), [2]);
    assert_eq!(bench.acks(), ["2:2"]);
    bench.lanes.dead_lettered(bench.now, letter.run, Ok(()));
    assert_eq!(bench.terminated().len(), 0, "an answer that comes twice");
}

#[test]
fn a_rejected_message_becomes_a_dead_letter_at_once() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.started();
    bench.end(1, reject("not json"));
    let letter = letters(&mut bench).remove(0);
    assert_eq!((letter.attempts, letter.error.as_str()), (1, "not json"));
}

#[test]
fn a_key_whose_dead_letter_cannot_be_stored_is_parked_and_says_so_once() {
    let mut bench = Bench::new(settings());
    for (sequence, key) in [(1, "a"), (2, "a"), (3, "b")] {
        bench.deliver(sequence, key);
    }
    bench.started();
    bench.end(1, reject("bad"));
    let mut letter = letters(&mut bench).remove(0);
    for round in 0..3 {
        bench
            .lanes
            .dead_lettered(bench.now, letter.run, Err("no stream".to_owned()));
        assert_eq!(parked(&mut bench).len(), usize::from(round == 0));
        assert_eq!(letters(&mut bench), [], "not tried again at once");
        let status = bench.lanes.partition_status(P).unwrap().parked.remove(0);
        assert_eq!(
            (status.key.as_ref(), status.store_error.as_deref()),
            ("a", Some("no stream"))
        );
        bench.advance(1000);
        letter = letters(&mut bench).remove(0);
        assert_eq!(letter.error, "bad");
    }
    bench.end(3, Outcome::Success);
    assert_eq!(bench.started(), [0; 0], "only the parked key waits");
    bench.lanes.dead_lettered(bench.now, letter.run, Ok(()));
    assert_eq!(bench.terminated(), ["1:1"]);
    assert!(bench.lanes.partition_status(P).unwrap().parked.is_empty());
    assert_eq!(bench.run_all(), [2]);
}

#[test]
fn a_dead_letter_ends_the_latest_delivery() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.started();
    bench.end(1, reject("bad"));
    bench.deliver(1, "a");
    let letter = letters(&mut bench).remove(0);
    bench.lanes.dead_lettered(bench.now, letter.run, Ok(()));
    assert_eq!(bench.terminated(), ["2:1"]);
}

#[test]
fn s02_what_is_held_long_is_kept_by_in_progress_acks() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.deliver(2, "a");
    bench.started();
    bench.advance(14_999);
    assert_eq!(bench.kept(), [""; 0]);
    bench.advance(1);
    assert_eq!(bench.kept(), ["1:1", "2:2"], "running and queued ones alike");
    bench.advance(10_000);
    bench.deliver(1, "a");
    bench.advance(5_000);
    assert_eq!(bench.kept(), ["2:2"], "a delivery counts as well");
    bench.end(1, Outcome::Success);
    bench.advance(10_000);
    assert_eq!(bench.kept(), [""; 0], "finished ones are not kept");
    bench.advance(5_000);
    assert_eq!(bench.kept(), ["2:2"]);
}

#[test]
fn a_waiting_message_is_kept_too() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "a");
    bench.started();
    let after = Some(Duration::from_secs(60));
    bench.end(
        1,
        Outcome::Retry {
            after,
            error: String::new(),
        },
    );
    bench.advance(15_000);
    bench.advance(15_000);
    assert_eq!(bench.kept(), ["1:1", "1:1"]);
}

#[test]
fn the_same_history_gives_the_same_actions() {
    let play = || {
        let mut bench = Bench::new(settings());
        for sequence in 1..=20 {
            bench.deliver(sequence, ["a", "b", "c"][sequence as usize % 3]);
        }
        for round in 0..10 {
            for sequence in bench.started() {
                bench.end(sequence, if round % 2 == 0 { retry("x") } else { Outcome::Success });
            }
            bench.advance(70);
        }
        (bench.seen, bench.lanes.progress(P)[&filter()].clone())
    };
    assert_eq!(play(), play());
}
