//! A server that answers nothing, or refuses everything: members wait, and are there when it is back.

use super::rig::{Rig, seconds};
use crate::engine::{Command, CreateFault, Event, Fault, MemberPhase, Refusal, ReopenReason, Reply, WriteFault};

fn refusal(command: &Command) -> Reply {
    let fault = || Fault("no leader".to_owned());
    match command {
        Command::Prepare(_) => Reply::Prepared(Err(Refusal::Retry(fault().0))),
        Command::ReadMember(..) => Reply::Member(Err(fault())),
        Command::ReadGroup(_) => Reply::Group(Err(fault())),
        Command::ReadAssignment(_) => Reply::Assignment(Err(fault())),
        Command::ReadClaim(..) => Reply::Claim(Err(fault())),
        Command::ReadClaims(_) => Reply::Claims(Err(fault())),
        Command::ReadProgress(..) => Reply::Progress(Err(fault())),
        Command::Survey(_) => Reply::Survey(Err(fault())),
        Command::InspectConsumer(..) => Reply::Consumer(Err(fault())),
        Command::CreateConsumer(..) => Reply::Created(Err(CreateFault::Unknown(fault().0))),
        Command::DeleteConsumer(..) => Reply::Deleted(Err(fault())),
        _ => Reply::Written(Err(WriteFault::Unknown(fault().0))),
    }
}

/// The kinds of commands, one at a time.
fn kind(command: &Command) -> String {
    let text = format!("{command:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

const KINDS: [&str; 15] = [
    "Prepare",
    "ReadMember",
    "WriteMember",
    "ReadGroup",
    "ReadAssignment",
    "WriteAssignment",
    "ReadClaim",
    "ReadClaims",
    "WriteClaim",
    "ReadProgress",
    "WriteProgress",
    "Survey",
    "InspectConsumer",
    "CreateConsumer",
    "DeleteConsumer",
];

/// At most what a member sends that retries at its interval: 4 partitions, up to six steps each, 4 times a second.
const PER_SECOND: usize = 100;

fn checked(rig: &mut Rig, what: &str, length: u64) {
    let from = rig.log.len();
    rig.advance(seconds(length));
    let sent = rig.count_since(from, |command| command.ticket().is_some());
    let limit = PER_SECOND * usize::try_from(length).unwrap();
    assert!(sent <= limit, "{what}: {sent} in {length} s");
}

#[test]
fn whatever_is_refused_is_not_tried_hot_and_is_mended_afterwards() {
    for kind_refused in KINDS {
        for serving in [false, true] {
            let mut rig = if serving { Rig::serving() } else { Rig::new() };
            rig.faults = Some(Box::new(move |command| {
                (kind(command) == kind_refused).then(|| refusal(command))
            }));
            if !serving {
                rig.step(Event::Start);
            }
            rig.run();
            checked(&mut rig, kind_refused, 60);
            rig.faults = None;
            rig.advance(seconds(30));
            assert_eq!(rig.engine.phase(), MemberPhase::Active, "{kind_refused}");
            assert_eq!(rig.serving_count(), 4, "{kind_refused}, serving before: {serving}");
        }
    }
}

#[test]
fn whatever_conflicts_is_not_tried_hot_and_is_mended_afterwards() {
    for kind_refused in ["WriteMember", "WriteAssignment", "WriteClaim", "WriteProgress"] {
        let mut rig = Rig::new();
        rig.faults = Some(Box::new(move |command| {
            (kind(command) == kind_refused).then_some(Reply::Written(Err(WriteFault::Conflict)))
        }));
        rig.step(Event::Start);
        rig.run();
        checked(&mut rig, kind_refused, 60);
        rig.faults = None;
        rig.advance(seconds(30));
        assert_eq!(rig.serving_count(), 4, "{kind_refused}");
    }
}

#[test]
fn a_server_that_is_away_for_a_minute_is_waited_for() {
    let mut rig = Rig::serving();
    rig.faults = Some(Box::new(|command| Some(refusal(command))));
    checked(&mut rig, "everything", 60);
    assert_eq!(rig.serving_count(), 0);
    rig.faults = None;
    rig.step(Event::Reconnected);
    rig.advance(seconds(10));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_quiet_member_is_quiet() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    rig.advance(seconds(600));
    let per_minute = rig.count_since(from, |_| true) / 10;
    // A heartbeat a second, the assignment every 4 s, three listings every 20 s.
    assert!(per_minute <= 60 + 15 + 9 + 2, "{per_minute}");
}

#[test]
fn nothing_is_kept_of_what_is_over() {
    let mut rig = Rig::serving();
    for life in 0..200 {
        let name = format!("pod-{life}");
        rig.peer(&name, 1_000 + life);
        rig.run();
        rig.advance(seconds(1));
        rig.beating.clear();
        rig.server.put_member(&super::rig::id(&name), None);
        rig.run();
        rig.advance(seconds(1));
    }
    assert_eq!(rig.engine.cx.pending.len(), 0);
    let known = rig.engine.membership.known();
    assert!(known <= 1 + 11, "{known}");
}

#[test]
fn a_stream_that_is_away_is_looked_at_until_it_is_back() {
    let mut rig = Rig::serving();
    let looks = |command: &Command| matches!(command, Command::Survey(_));
    // A consumer is missing because the stream was deleted; it is being made anew.
    rig.faults = Some(Box::new(|command| match command {
        Command::Survey(_) | Command::CreateConsumer(..) => Some(refusal(command)),
        _ => None,
    }));
    let from = rig.log.len();
    super::handover::reopen(&mut rig, 30, ReopenReason::Missing);
    rig.advance(seconds(2));
    assert!(
        rig.count_since(from, looks) > 1,
        "it must not wait for the next routine look"
    );
    rig.faults = None;
    rig.advance(seconds(1));
    let from = rig.log.len();
    rig.advance(seconds(2));
    assert_eq!(rig.count_since(from, looks), 0, "the stream is back");
}
