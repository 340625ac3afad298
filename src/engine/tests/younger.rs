//! A stream that holds other messages where finished ones were.

use super::handover::reopen;
use super::opening::{after_release, created_starts, opened};
use super::rig::{Rig, millis, seconds};
use super::server::filter;
use crate::engine::{Change, Command, Event, Fault, ReopenReason, Reply, Retention};
use crate::ids::Partition;
use crate::lanes::Range;

const P: Partition = Partition(0);

fn checks(command: &Command) -> bool {
    matches!(command, Command::FindReplaced(_, of, _) if *of == filter(P))
}

fn told_of_loss(rig: &Rig) -> bool {
    rig.told(
        |change| matches!(change, Change::Trouble { partition: P, detail } if detail.contains("has lost messages")),
    )
}

#[test]
fn a_consumer_starts_at_the_first_message_that_took_the_place_of_a_finished_one() {
    for retention in [Retention::Limits, Retention::Interest] {
        let mut rig = after_release(retention);
        rig.server.newer_from = Some(20);
        let rig = rig.started();
        assert_eq!(created_starts(&rig), [20]);
        // What came before is as finished as it was, by its time.
        assert_eq!(opened(&rig).1.floor.sequence, 19);
        assert!(told_of_loss(&rig));
    }
}

#[test]
fn nothing_is_created_before_the_stream_was_asked_and_a_failure_is_asked_again() {
    let mut rig = after_release(Retention::Limits);
    rig.hold = Some(Box::new(checks));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(2));
    assert!(created_starts(&rig).is_empty());
    let check = rig.take(checks);
    rig.reply(&check, Reply::Replaced(Err(Fault("no answer".to_owned()))));
    assert!(created_starts(&rig).is_empty());
    rig.advance(millis(500));
    let check = rig.take(checks);
    rig.lose(&check);
    rig.advance(millis(500));
    rig.hold = None;
    rig.run();
    assert_eq!(created_starts(&rig), [51]);
    assert!(!told_of_loss(&rig));
}

#[test]
fn a_work_queue_needs_no_asking_for_its_consumers_deliver_whatever_is_left() {
    let rig = after_release(Retention::WorkQueue).started();
    assert_eq!(rig.count(checks), 0);
}

#[test]
fn nothing_is_asked_about_a_filter_of_which_nothing_is_finished() {
    let rig = Rig::serving();
    assert_eq!(rig.count(checks), 0);
    assert_eq!(created_starts(&rig), [1]);
}

#[test]
fn an_ack_floor_of_unknown_time_is_not_used() {
    let mut rig = after_release(Retention::Limits);
    for position in rig.server.consumers.values_mut() {
        position.acked_at = 0;
    }
    let rig = rig.started();
    assert_eq!(created_starts(&rig), [41]);
    assert_eq!(opened(&rig).1.floor.sequence, 40);
}

#[test]
fn a_consumer_opened_high_up_is_opened_again_where_the_stream_has_come_back_to() {
    let mut rig = after_release(Retention::Limits).started();
    let (epoch, marks) = opened(&rig);
    assert_eq!((epoch.reopen, marks.floor.sequence), (0, 50));
    rig.server.last_sequence = 30;
    rig.advance(seconds(25));
    assert_eq!(rig.count(|command| matches!(command, Command::Truncate(P, 30))), 1);
    // What the lanes answer to that.
    reopen(&mut rig, 30, ReopenReason::StreamShrunk);
    rig.run();
    assert_eq!(created_starts(&rig), [51, 31]);
}

#[test]
fn a_consumer_that_is_missed_is_opened_again_where_other_messages_begin() {
    let mut rig = after_release(Retention::Limits).started();
    rig.server.newer_from = Some(35);
    rig.server.consumers.clear();
    rig.advance(seconds(25));
    assert_eq!(created_starts(&rig), [51, 35]);
    assert!(told_of_loss(&rig));
}

#[test]
fn a_consumer_that_was_being_created_when_the_stream_was_found_shorter_is_not_used() {
    let creates = |command: &Command| matches!(command, Command::CreateConsumer(_, spec) if spec.name.partition == P);
    let deletes = |command: &Command| matches!(command, Command::DeleteConsumer(_, name) if name.partition == P);
    let held: [fn(&Command) -> bool; 2] = [creates, deletes];
    for retention in [Retention::Limits, Retention::Interest] {
        for under_way in held {
            let mut rig = after_release(retention).started();
            rig.hold = Some(Box::new(under_way));
            reopen(&mut rig, 50, ReopenReason::Gap);
            rig.run();
            // The periodic listing shows the loss meanwhile.
            rig.server.last_sequence = 30;
            rig.advance(seconds(25));
            rig.hold = None;
            rig.run();
            rig.advance(seconds(1));
            assert_eq!(created_starts(&rig), [51, 51, 31]);
            assert_eq!(
                rig.server.consumers.keys().filter(|name| name.partition == P).count(),
                1
            );
            assert_eq!(rig.serving_count(), 4);
        }
    }
}

#[test]
fn an_ack_by_a_clock_behind_the_streams_is_no_loss_and_what_the_record_says_stays() {
    let mut rig = after_release(Retention::Limits);
    let record = rig.server.progress.get_mut(&P).unwrap().value.as_mut().unwrap();
    let marks = record.filters.get_mut(&filter(P)).unwrap();
    marks.ranges.push(Range {
        low: 60,
        high: 62,
        time: 620,
    });
    marks.attempts.insert(55, 2);
    let known = marks.clone();
    // All but the last few of what the consumer before has acked.
    rig.server.newer_from = Some(48);
    let rig = rig.started();
    assert_eq!(created_starts(&rig), [48]);
    let (_, opened) = opened(&rig);
    assert_eq!(opened.floor.sequence, 47);
    assert_eq!((opened.ranges, opened.attempts), (known.ranges, known.attempts));
    assert!(!told_of_loss(&rig));
}
