//! Messages that may end their process.

use super::batches::batches;
use super::bench::{Bench, P, delivered, epoch, filter, retry, settings};
use crate::ids::{FencingToken, Incarnation, Partition};
use crate::lanes::{Action, BatchScope, Death, Delivered, Filter, Marks, Outcome, Parked, Settings};

const OTHER: Partition = Partition(4);

fn death(incarnation: &str, alone: bool) -> Death {
    Death {
        incarnation: Incarnation(incarnation.to_owned()),
        alone,
    }
}

/// Marks by which so many processes died with the message, the last ones of them alone.
fn deaths(sequence: u64, together: usize, alone: usize) -> Marks {
    let mut marks = Marks::default();
    let lives = (0..together + alone).map(|life| death(&format!("p{life}-1"), life >= together));
    marks.deaths.insert(sequence, lives.collect());
    marks
}

/// A suspect under 2 of key `b`, between others of other keys, and one more of its own key.
fn with_suspect() -> Bench {
    let mut bench = Bench::with_marks(settings(), deaths(2, 2, 0));
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c"), (4, "b")] {
        bench.deliver(sequence, key);
    }
    bench
}

fn parked(bench: &mut Bench) -> Vec<Parked> {
    bench.take(|action| match action {
        Action::Parked(parked) => Some(parked.clone()),
        _ => None,
    })
}

fn killers_become_dead_letters() -> Settings {
    Settings {
        dead_letter_killers: true,
        ..settings()
    }
}

#[test]
fn what_a_dead_member_may_have_begun_with_is_recorded_before_it_starts() {
    let mut bench = Bench::new(settings());
    bench.lanes.be_careful(P, &filter(), 2);
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [3], "nobody can have begun with it");
    assert_eq!(bench.records(), [P], "one for the whole wave");
    assert_eq!(bench.recorded().started.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(bench.started(), [1, 2]);
    assert_eq!(bench.records(), []);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.started(), [4]);
}

#[test]
fn a_message_that_somebody_died_with_is_recorded_too() {
    let mut bench = Bench::with_marks(settings(), deaths(2, 1, 0));
    bench.deliver(1, "a");
    bench.deliver(2, "b");
    assert_eq!(bench.started(), [1]);
    bench.recorded();
    assert_eq!(bench.started(), [2]);
    assert_eq!(bench.marks().deaths[&2].len(), 1);
    bench.end(2, Outcome::Success);
    assert_eq!(bench.marks().deaths.len(), 0, "it is finished");
}

#[test]
fn an_older_record_or_one_of_another_tenure_starts_nothing() {
    let mut bench = Bench::new(settings());
    bench.lanes.be_careful(P, &filter(), 9);
    let before = bench.lanes.changes(P);
    bench.deliver(1, "a");
    assert_eq!(bench.started(), [0; 0]);
    bench.lanes.recorded(P, FencingToken(1), before);
    bench.lanes.recorded(P, FencingToken(2), 1000);
    assert_eq!(bench.started(), [0; 0]);
    bench.recorded();
    assert_eq!(bench.started(), [1]);
}

#[test]
fn what_waits_for_its_record_counts_as_running_for_order_and_concurrency() {
    let mut settings = settings();
    settings.concurrency = std::num::NonZeroUsize::new(2).unwrap();
    let mut bench = Bench::new(settings);
    bench.lanes.be_careful(P, &filter(), 3);
    for (sequence, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "c")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.started(), [0; 0]);
    bench.recorded();
    assert_eq!(bench.started(), [1, 3]);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.started(), [4], "it was in line before 2");
    bench.end(3, Outcome::Success);
    assert_eq!(bench.started(), [0; 0]);
    bench.recorded();
    assert_eq!(bench.started(), [2]);
}

#[test]
fn what_has_not_begun_is_dropped_by_a_stop_a_cancel_and_a_close() {
    for end in 0..3 {
        let mut bench = Bench::new(settings());
        bench.lanes.be_careful(P, &filter(), 1);
        bench.deliver(1, "a");
        bench.deliver(2, "b");
        assert_eq!(bench.started(), [2]);
        match end {
            0 => bench.lanes.stop(P),
            1 => bench.lanes.cancel(P),
            _ => bench.lanes.close(P),
        }
        assert_eq!(bench.lanes.running(P), 1);
        if end > 0 {
            assert_eq!(bench.cancelled(), [bench.run_of(2)], "it was never told to run");
        }
        if end == 1 {
            assert_eq!(bench.started(), [0; 0]);
            bench.recorded();
            assert_eq!(bench.started(), [1], "it takes its turn again");
            continue;
        }
        bench.end(2, Outcome::Cancelled);
        bench.lanes.recorded(P, FencingToken(1), 1000);
        assert_eq!(bench.started(), [0; 0]);
        if end == 0 {
            assert_eq!(bench.drained(), [Marks::default()]);
        } else {
            assert_eq!(bench.ended(), [FencingToken(1)]);
        }
    }
}

#[test]
fn a_suspect_waits_for_all_others_and_they_wait_for_it() {
    let mut bench = with_suspect();
    bench.lanes.open(OTHER, filter(), epoch(1, 0), Marks::default());
    bench
        .lanes
        .deliver(bench.now, OTHER, &filter(), epoch(1, 0), delivered(1, 50, "z"));
    assert_eq!(bench.started(), [1, 50]);
    assert_eq!(bench.records(), []);
    bench.end(1, Outcome::Success);
    assert_eq!(bench.started(), [0; 0], "3 must not be running with it");
    bench.end(50, Outcome::Success);
    assert_eq!(bench.started(), [0; 0]);
    // Both records said that something else is started.
    assert_eq!(bench.records(), [P, OTHER]);
    let marks = bench.recorded();
    assert_eq!(
        (marks.started.into_iter().collect::<Vec<_>>(), marks.alone),
        (vec![2], true)
    );
    assert_eq!(bench.started(), [0; 0], "the other partition's record still blames 50");
    bench.lanes.recorded(OTHER, FencingToken(1), bench.lanes.changes(OTHER));
    let runs = bench.start_runs();
    assert_eq!(
        runs.iter()
            .map(|run| (run.attempts[0].stream_sequence, run.alone))
            .collect::<Vec<_>>(),
        [(2, true)]
    );
    bench.deliver(5, "d");
    assert_eq!(bench.started(), [0; 0]);
    bench.end(2, Outcome::Success);
    assert_eq!(bench.started(), [0; 0], "the record still says that it runs");
    assert_eq!(bench.records(), [P]);
    let marks = bench.recorded();
    assert_eq!((marks.started.len(), marks.alone, marks.deaths.len()), (0, false, 0));
    let runs = bench.start_runs();
    assert!(runs.iter().all(|run| !run.alone));
    assert_eq!(runs.len(), 3);
}

#[test]
fn a_suspect_that_fails_is_tried_again_alone() {
    let mut bench = with_suspect();
    bench.started();
    bench.end(1, Outcome::Success);
    bench.started();
    bench.recorded();
    assert_eq!(bench.started(), [2]);
    bench.end(2, retry("down"));
    bench.started();
    bench.recorded();
    assert_eq!(bench.started(), [3], "the others go on while it waits");
    bench.advance(1000);
    assert_eq!(bench.started(), [0; 0]);
    bench.end(3, Outcome::Success);
    bench.started();
    bench.recorded();
    assert!(bench.start_runs()[0].alone);
}

#[test]
fn a_suspect_that_goes_away_lets_the_others_go_on() {
    for stop in [true, false] {
        // While it waits for the others.
        let mut bench = with_suspect();
        bench.lanes.open(OTHER, filter(), epoch(1, 0), Marks::default());
        assert_eq!(bench.started(), [1]);
        bench
            .lanes
            .deliver(bench.now, OTHER, &filter(), epoch(1, 0), delivered(1, 50, "z"));
        if stop {
            bench.lanes.stop(P);
        } else {
            bench.lanes.close(P);
        }
        assert_eq!(bench.started(), [0; 0]);
        bench.end(1, Outcome::Cancelled);
        assert_eq!(bench.started(), [50], "stop: {stop}");
        // While its record is written, and while it runs.
        for runs in [false, true] {
            let mut bench = with_suspect();
            bench.lanes.open(OTHER, filter(), epoch(1, 0), Marks::default());
            bench.started();
            bench.end(1, Outcome::Success);
            bench.started();
            bench
                .lanes
                .deliver(bench.now, OTHER, &filter(), epoch(1, 0), delivered(1, 50, "z"));
            if runs {
                bench.recorded();
                bench.lanes.recorded(OTHER, FencingToken(1), 1000);
                assert_eq!(bench.started(), [2]);
            }
            if stop {
                bench.lanes.stop(P);
            } else {
                bench.lanes.close(P);
            }
            if runs {
                assert_eq!(bench.started(), [0; 0], "it still runs");
                bench.end(2, Outcome::Cancelled);
            }
            assert_eq!(bench.started(), [50]);
        }
    }
}

#[test]
fn after_enough_deaths_alone_a_key_is_parked_and_says_why() {
    let mut bench = Bench::with_marks(settings(), deaths(2, 5, 3));
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c"), (4, "b")] {
        bench.deliver(sequence, key);
    }
    let told = parked(&mut bench);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].key.as_ref(), told[0].stream_sequence), ("b", 2));
    assert!(told[0].error.contains("died 3 times"), "{}", told[0].error);
    assert_eq!(told[0].store_error, None);
    assert_eq!(bench.lanes.partition_status(P).unwrap().parked, told);
    assert_eq!(bench.run_all(), [1, 3], "others are not disturbed");
    bench.advance(1_000_000);
    assert_eq!(bench.started(), [0; 0]);
    assert_eq!(parked(&mut bench), []);
    bench.lanes.stop(P);
    let marks = bench.drained().remove(0);
    assert_eq!(
        (marks.floor.sequence, marks.deaths[&2].len()),
        (1, 8),
        "the next owner knows too"
    );
}

#[test]
fn fewer_deaths_alone_and_any_number_together_condemn_nobody() {
    let mut bench = Bench::with_marks(settings(), deaths(2, 12, 2));
    bench.deliver(2, "b");
    bench.started();
    bench.recorded();
    assert!(bench.start_runs()[0].alone);
    bench.end(2, Outcome::Success);
    assert_eq!(bench.marks().deaths.len(), 0);
}

#[test]
fn a_killer_becomes_a_dead_letter_where_that_is_wanted_and_its_key_goes_on() {
    let mut bench = Bench::with_marks(killers_become_dead_letters(), deaths(2, 2, 3));
    bench.deliver(2, "b");
    bench.deliver(4, "b");
    assert_eq!(bench.started(), [0; 0]);
    let letter = bench.take(|action| match action {
        Action::DeadLetter(letter) => Some(letter.clone()),
        _ => None,
    });
    assert_eq!((letter.len(), letter[0].stream_sequence), (1, 2));
    assert!(letter[0].error.contains("died 3 times"));
    bench.lanes.dead_lettered(bench.now, letter[0].run, Ok(()));
    assert_eq!(bench.terminated(), ["1:2"]);
    assert_eq!(bench.run_all(), [4]);
    assert_eq!(bench.marks().deaths.len(), 0);
}

#[test]
fn what_was_counted_is_taken_back_when_the_process_turns_out_to_live() {
    let mut bench = Bench::with_marks(settings(), deaths(2, 2, 3));
    bench.deliver(2, "b");
    assert_eq!(parked(&mut bench).len(), 1);
    let before = bench.lanes.changes(P);
    for (life, stays) in [("p9-2", 5), ("p4-1", 5), ("p4-2", 4), ("p4-3", 4)] {
        bench.lanes.absolve(P, &Incarnation(life.to_owned()));
        assert_eq!(bench.marks().deaths[&2].len(), stays, "{life}");
    }
    assert!(bench.lanes.changes(P) > before, "the record is to be written");
    bench.started();
    bench.recorded();
    assert!(bench.start_runs()[0].alone, "condemned no more, but still suspected");
    bench.end(2, retry("later"));
    bench.recorded();
    for life in ["p0-2", "p1-2", "p2-2"] {
        bench.lanes.absolve(P, &Incarnation(life.to_owned()));
    }
    bench.advance(1000);
    bench.started();
    bench.recorded();
    assert!(!bench.start_runs()[0].alone);
}

#[test]
fn a_suspect_that_is_cleared_while_it_waits_runs_like_any_other() {
    let mut bench = with_suspect();
    assert_eq!(bench.started(), [1]);
    bench.lanes.absolve(P, &Incarnation("p0-2".to_owned()));
    bench.lanes.absolve(P, &Incarnation("p1-2".to_owned()));
    bench.end(1, Outcome::Success);
    assert_eq!(bench.started(), [3, 2]);
}

/// Messages 1, 2, .. that belong into one batch of a key or of a partition.
fn deliver_together(bench: &mut Bench, scope: BatchScope, count: u64) {
    bench.pulls();
    for sequence in 1..=count {
        let key = match scope {
            BatchScope::Key => "a",
            BatchScope::Partition => ["a", "b", "c"][usize::try_from(sequence % 3).unwrap()],
        };
        bench.deliver(sequence, key);
    }
}

#[test]
fn a_suspect_shares_no_batch_and_waits_for_no_company() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut bench = Bench::with_marks(batches(scope, 4), deaths(3, 2, 0));
        deliver_together(&mut bench, scope, 5);
        assert_eq!(bench.batches(), [[1, 2]], "{scope:?}: it ends before the suspect");
        bench.end(1, Outcome::Success);
        assert_eq!(bench.batches(), [[0; 0]; 0]);
        assert_eq!(bench.records(), [P]);
        let marks = bench.recorded();
        assert_eq!(
            (marks.started.into_iter().collect::<Vec<_>>(), marks.alone),
            (vec![3], true)
        );
        let runs = bench.start_runs();
        assert_eq!((runs.len(), runs[0].attempts.len(), runs[0].alone), (1, 1, true));
        assert_eq!(runs[0].attempts[0].stream_sequence, 3);
        bench.end(3, Outcome::Success);
        assert_eq!(bench.batches(), [[0; 0]; 0]);
        let marks = bench.recorded();
        assert_eq!((marks.started.len(), marks.alone, marks.deaths.len()), (0, false, 0));
        bench.advance(50);
        assert_eq!(bench.batches(), [[4, 5]]);
        bench.end(4, Outcome::Success);
        assert_eq!((bench.floor(), bench.held(), bench.lanes.deadline()), (5, 0, None));
    }
}

#[test]
fn a_batch_ends_before_a_message_that_is_condemned_and_never_has_it() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let mut bench = Bench::with_marks(batches(scope, 4), deaths(3, 0, 3));
        deliver_together(&mut bench, scope, 4);
        let batch = match scope {
            BatchScope::Key => vec![1, 2],
            // Its key is parked already, and passed over.
            BatchScope::Partition => vec![1, 2, 4],
        };
        bench.advance(50);
        assert_eq!(bench.batches(), [batch]);
        bench.end(1, Outcome::Success);
        bench.advance(50);
        assert_eq!(bench.batches(), [[0; 0]; 0], "{scope:?}");
        assert_eq!(parked(&mut bench).len(), 1);
        assert_eq!(bench.lanes.partition_status(P).unwrap().parked[0].stream_sequence, 3);
    }
}

#[test]
fn a_batch_with_one_delicate_message_is_withheld_until_all_of_it_is_recorded() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        for careful in [true, false] {
            let marks = if careful { Marks::default() } else { deaths(2, 1, 0) };
            let mut bench = Bench::with_marks(batches(scope, 3), marks);
            if careful {
                bench.lanes.be_careful(P, &filter(), 1);
            }
            let before = bench.lanes.changes(P);
            deliver_together(&mut bench, scope, 3);
            assert_eq!(bench.batches(), [[0; 0]; 0]);
            assert_eq!(bench.records(), [P], "one for all");
            bench.lanes.recorded(P, FencingToken(1), before);
            assert_eq!(bench.batches(), [[0; 0]; 0], "that record does not have them");
            assert_eq!(bench.recorded().started.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
            assert_eq!(bench.batches(), [[1, 2, 3]]);
            bench.end(1, Outcome::Success);
            assert_eq!((bench.floor(), bench.marks().started.len()), (3, 0));
        }
    }
}

#[test]
fn a_withheld_batch_is_dropped_as_a_whole_by_a_stop_and_by_a_younger_stream() {
    for scope in [BatchScope::Key, BatchScope::Partition] {
        let withheld = || {
            let mut bench = Bench::with_marks(batches(scope, 3), Marks::default());
            bench.lanes.be_careful(P, &filter(), 9);
            deliver_together(&mut bench, scope, 3);
            assert_eq!(bench.batches(), [[0; 0]; 0]);
            bench
        };
        let mut bench = withheld();
        bench.lanes.stop(P);
        assert_eq!(bench.lanes.running(P), 0);
        assert_eq!(bench.drained(), [Marks::default()]);

        let mut bench = withheld();
        bench.reopen();
        bench.deliver_as(Delivered {
            time: 5000,
            message: 1003,
            ..delivered(1, 3, "d")
        });
        bench.recorded();
        assert_eq!(
            bench.batches(),
            [[0; 0]; 0],
            "{scope:?}: what it is made of has changed"
        );
        bench.advance(50);
        bench.batches();
        bench.recorded();
        let runs = bench.start_runs();
        let attempts = runs.iter().flat_map(|run| &run.attempts);
        let started: Vec<_> = attempts.map(|attempt| (attempt.message, attempt.attempt)).collect();
        assert_eq!(started, [(1, 1), (2, 1), (1003, 1)]);
    }
}

#[test]
fn deaths_of_messages_that_a_younger_stream_has_replaced_are_forgotten() {
    let mut bench = Bench::with_marks(settings(), deaths(2, 2, 0));
    bench.lanes.truncate(P, &filter(), 1);
    assert_eq!(bench.marks().deaths.len(), 0);
    let other: Filter = "orders.other".into();
    bench.lanes.truncate(P, &other, 0);
}

#[test]
fn deaths_of_messages_that_are_gone_are_forgotten_although_the_floor_stands() {
    let mut marks = deaths(2, 2, 3);
    for (sequence, life) in [(5, "q-1"), (9, "r-1")] {
        marks.deaths.insert(sequence, vec![death(life, false)]);
        marks.attempts.insert(sequence, 1);
    }
    let mut bench = Bench::with_marks(settings(), marks);
    // 2 is condemned and holds the floor. 5 was finished and acked just before its process died: a work queue has deleted it.
    bench.deliver(2, "b");
    let before = bench.lanes.changes(P);
    bench.deliver(4, "a");
    assert_eq!(
        bench.marks().deaths.keys().copied().collect::<Vec<_>>(),
        [2, 5, 9],
        "not known yet"
    );
    bench.deliver(7, "a");
    let marks = bench.marks();
    assert_eq!(marks.deaths.keys().copied().collect::<Vec<_>>(), [2, 9]);
    assert_eq!(marks.attempts.keys().copied().collect::<Vec<_>>(), [9]);
    assert!(bench.lanes.changes(P) > before, "the record is to be written");
    // What is delivered is not gone, now or when it comes again.
    bench.deliver(9, "c");
    bench.deliver(12, "c");
    bench.reopen();
    for (sequence, key) in [(2, "b"), (4, "a"), (7, "a"), (9, "c"), (12, "c")] {
        bench.deliver(sequence, key);
    }
    assert_eq!(bench.marks().deaths.keys().copied().collect::<Vec<_>>(), [2, 9]);
}
