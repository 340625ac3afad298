//! A stream that has lost its newest messages, and has stored others since.

use super::handover::{P, creates, epoch, finished, reopen, reopens};
use super::rig::{Rig, seconds};
use super::server::filter;
use crate::engine::{Command, CreateFault, Event, ReopenReason, Reply};

/// The start of the consumer that was asked for last.
fn start(command: &Command) -> u64 {
    match command {
        Command::CreateConsumer(_, spec) => spec.start,
        other => panic!("{other:?} creates nothing"),
    }
}

fn truncations(rig: &Rig, from: usize) -> Vec<u64> {
    let truncation = |(_, command): &(_, Command)| match command {
        Command::Truncate(P, last) => Some(*last),
        _ => None,
    };
    rig.log[from..].iter().filter_map(truncation).collect()
}

/// A member that serves, has finished up to 30, and has to open again because its consumer is gone.
fn missing() -> Rig {
    let mut rig = Rig::serving();
    rig.step(Event::Checkpoint {
        partition: P,
        marks: finished(30),
        changes: 30,
        urgent: false,
    });
    rig.run();
    rig.hold = Some(Box::new(creates));
    reopen(&mut rig, 30, ReopenReason::Missing);
    rig.run();
    rig
}

#[test]
fn messages_that_are_younger_than_what_is_finished_are_delivered() {
    let mut rig = missing();
    let from = rig.log.len();
    let create = rig.take(creates);
    let Command::CreateConsumer(_, spec) = &create else {
        panic!("{create:?}")
    };
    let kept = finished(30)[&filter(P)].floor;
    assert_eq!(
        (spec.start, spec.finished),
        (31, kept.time),
        "what the server is to compare"
    );
    rig.reply(&create, Reply::Created(Err(CreateFault::Younger(20))));
    // The lanes forget it too, and the next attempt begins there.
    assert_eq!(truncations(&rig, from), [20]);
    let again = rig.take(creates);
    assert_eq!(start(&again), 21);
    rig.hold = None;
    rig.answer(&again);
    rig.run();
    assert_eq!(rig.count_since(from, reopens), 1);
}

#[test]
fn a_stream_found_shorter_while_a_filter_is_opened_has_it_opened_again_from_its_end() {
    let mut rig = missing();
    let from = rig.log.len();
    let create = rig.take(creates);
    rig.server.last_sequence = 10;
    // The look at the stream that follows a missing consumer is answered before the consumer is made.
    rig.advance(seconds(25));
    assert_eq!(truncations(&rig, from), [10]);
    rig.hold = None;
    rig.answer(&create);
    rig.run();
    rig.advance(seconds(1));
    let last = rig.server.consumers.iter().find(|(name, _)| name.partition == P);
    assert_eq!(last.map(|(_, position)| position.start), Some(11));
    assert_eq!(rig.count_since(from, reopens), 1);
}

#[test]
fn a_shorter_stream_lowers_the_start_of_a_filter_that_was_opened_further_on() {
    let mut rig = missing();
    let create = rig.take(creates);
    rig.hold = None;
    rig.answer(&create);
    rig.run();
    assert_eq!(epoch(&rig).reopen, 1);
    rig.advance(seconds(1));
    reopen(&mut rig, 10, ReopenReason::StreamShrunk);
    rig.run();
    let found = rig.server.consumers.iter().find(|(name, _)| name.partition == P);
    assert_eq!(found.map(|(_, position)| position.start), Some(11));
}
