//! The lease: what keeps it, what ends it, and what follows from its end.

use super::rig::{Rig, id, millis, record, seconds};
use crate::engine::{Change, Command, Event, Fault, FenceReason, MemberPhase, Reply, WriteFault};
use crate::ids::{Incarnation, Partition};
use crate::records::MemberState;
use crate::time::Time;

fn beats(command: &Command) -> bool {
    matches!(command, Command::WriteMember(_, member, ..) if *member == id("a"))
}

fn reads_own(command: &Command) -> bool {
    matches!(command, Command::ReadMember(_, member) if *member == id("a"))
}

fn closes(command: &Command) -> bool {
    matches!(command, Command::Close(..))
}

fn overruns(rig: &Rig) -> usize {
    rig.count(|command| *command == Command::Overrun)
}

fn fenced_for(rig: &Rig, reason: FenceReason) -> bool {
    rig.told(|change| *change == Change::Fenced { reason })
}

/// A serving member whose next heartbeat was sent and is held back, with the end of its lease before that.
fn beat_under_way() -> (Rig, Command, Time) {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(beats));
    while rig.waiting.is_empty() {
        rig.advance(millis(10));
    }
    let end = rig.engine.lease_end().unwrap();
    let beat = rig.take(beats);
    (rig, beat, end)
}

/// When the newest heartbeat was sent.
fn sent(rig: &Rig) -> Time {
    rig.log.iter().rev().find(|(_, command)| beats(command)).unwrap().0
}

#[test]
fn a_heartbeat_that_landed_without_a_reply_counts_from_when_it_was_sent() {
    let (mut rig, beat, before) = beat_under_way();
    let sent = sent(&rig);
    rig.server.answer(&beat);
    rig.advance(seconds(1));
    assert_eq!(rig.engine.lease_end(), Some(before));
    rig.lose(&beat);
    rig.run();
    // Read 1 s later, but the lease knows only of the write.
    assert_eq!(rig.engine.lease_end(), Some(sent + millis(3_460)));
}

#[test]
fn a_heartbeat_that_did_not_land_counts_for_nothing() {
    let (mut rig, beat, before) = beat_under_way();
    rig.advance(seconds(1));
    rig.lose(&beat);
    rig.run();
    assert_eq!(rig.engine.lease_end(), Some(before));
    rig.hold = None;
    rig.advance(millis(300));
    assert!(rig.engine.lease_end().unwrap() > before);
}

#[test]
fn a_heartbeat_that_lands_later_counts_from_when_it_was_sent() {
    let (mut rig, beat, before) = beat_under_way();
    let first = sent(&rig);
    rig.advance(seconds(1));
    rig.lose(&beat);
    rig.run();
    rig.advance(millis(300));
    let second = rig.take(beats);
    // The first one lands now, so that the second one is rejected.
    rig.server.answer(&beat);
    rig.answer(&second);
    rig.run();
    let end = rig.engine.lease_end().unwrap();
    assert_eq!(end, first + millis(3_460));
    assert!(end > before);
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
}

#[test]
fn a_rejected_heartbeat_fences_at_once_if_the_record_is_dead() {
    let (mut rig, beat, _) = beat_under_way();
    rig.watching = false;
    let mut dead = rig.server.member(&id("a")).value.unwrap();
    dead.state = MemberState::Dead;
    rig.server.put_member(&id("a"), Some(dead));
    rig.handlers_end = false;
    rig.answer(&beat);
    rig.run();
    assert!(fenced_for(&rig, FenceReason::DeclaredDead));
    assert_eq!(rig.count(closes), 4);
}

#[test]
fn a_rejected_heartbeat_fences_at_once_if_the_record_is_somebody_elses_or_gone() {
    for found in [Some(record("other-1", 9, MemberState::Active)), None] {
        let (mut rig, beat, _) = beat_under_way();
        rig.watching = false;
        rig.server.put_member(&id("a"), found);
        rig.handlers_end = false;
        rig.answer(&beat);
        rig.run();
        assert!(fenced_for(&rig, FenceReason::Replaced));
        assert_eq!(rig.count(closes), 4);
    }
}

#[test]
fn bad_news_from_the_watch_fences_and_good_news_does_not_lengthen_the_lease() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    let end = rig.engine.lease_end();
    let mut own = rig.server.member(&id("a")).value.unwrap();
    own.beat += 100;
    rig.server.put_member(&id("a"), Some(own.clone()));
    rig.run();
    assert_eq!(rig.engine.lease_end(), end);
    own.state = MemberState::Dead;
    rig.server.put_member(&id("a"), Some(own));
    rig.run();
    assert!(fenced_for(&rig, FenceReason::DeclaredDead));
}

#[test]
fn without_a_confirmed_heartbeat_the_member_fences_exactly_when_its_lease_ends() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.hold = Some(Box::new(|command| beats(command) || reads_own(command)));
    let end = rig.engine.lease_end().unwrap();
    rig.advance(seconds(5));
    let closed: Vec<Time> = rig.log.iter().filter(|(_, c)| closes(c)).map(|(at, _)| *at).collect();
    assert_eq!(closed, [end; 4]);
    assert!(!rig.engine.may_dispatch(end));
    assert!(fenced_for(&rig, FenceReason::LeaseExpired));
}

#[test]
fn a_process_that_wakes_from_a_freeze_fences_before_anything_else() {
    let (mut rig, beat, _) = beat_under_way();
    rig.handlers_end = false;
    rig.now = rig.now + seconds(60);
    let from = rig.log.len();
    // The heartbeat did land, a minute ago, and its reply is the first thing the process sees.
    let reply = rig.server.answer(&beat);
    assert!(!rig.engine.may_dispatch(rig.now));
    rig.reply(&beat, reply);
    assert!(fenced_for(&rig, FenceReason::LeaseExpired));
    let news = |command: &Command| !closes(command) && !matches!(command, Command::Notify(_) | Command::Overrun);
    assert_eq!(rig.count_since(from, news), 0);
    assert_eq!(rig.count_since(from, closes), 4);
}

#[test]
fn a_fenced_member_rejoins_only_when_everything_has_ended_as_a_new_incarnation() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.now = rig.now + seconds(60);
    rig.step(Event::Wake);
    let closed: Vec<_> = rig
        .log
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Close(partition, token) => Some((*partition, *token)),
            _ => None,
        })
        .collect();
    for (partition, token) in closed {
        rig.run();
        rig.advance(seconds(1));
        assert_eq!(rig.engine.phase(), MemberPhase::Fenced);
        rig.step(Event::Ended { partition, token });
    }
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    let record = rig.server.member(&id("a")).value.unwrap();
    assert_eq!(record.incarnation, Incarnation("seed-2".to_owned()));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn an_end_of_another_tenure_is_not_taken_for_this_ones() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.now = rig.now + seconds(60);
    rig.step(Event::Wake);
    for partition in 0..4 {
        let token = crate::ids::FencingToken(1);
        rig.step(Event::Ended {
            partition: Partition(partition),
            token,
        });
    }
    assert_eq!(rig.engine.phase(), MemberPhase::Fenced);
}

#[test]
fn handlers_that_outlive_the_session_are_reported_once_and_exactly_then() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.hold = Some(Box::new(|command| beats(command) || reads_own(command)));
    let over = rig.engine.lease_end().unwrap() + millis(540);
    rig.advance(seconds(20));
    let told: Vec<Time> = rig
        .log
        .iter()
        .filter(|(_, c)| *c == Command::Overrun)
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(told, [over]);
}

#[test]
fn nothing_is_reported_when_nothing_runs_any_more() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(|command| beats(command) || reads_own(command)));
    rig.advance(seconds(20));
    assert!(fenced_for(&rig, FenceReason::LeaseExpired));
    assert_eq!(overruns(&rig), 0);
    // Also not when a process that served nothing wakes long after its lease.
    let mut rig = Rig::new();
    rig.peer("b", 0);
    rig.server
        .put_assignment(super::rig::assignment(1, &["b", "b", "b", "b"]));
    rig.step(Event::Start);
    rig.run();
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    rig.now = rig.now + seconds(60);
    rig.step(Event::Wake);
    assert!(fenced_for(&rig, FenceReason::LeaseExpired));
    assert_eq!(overruns(&rig), 0);
}

#[test]
fn heartbeats_that_fail_at_once_are_not_repeated_hot() {
    let mut rig = Rig::serving();
    rig.faults = Some(Box::new(|command| {
        let fault = || "no leader".to_owned();
        if beats(command) {
            Some(Reply::Written(Err(WriteFault::Unknown(fault()))))
        } else {
            reads_own(command).then(|| Reply::Member(Err(Fault(fault()))))
        }
    }));
    let from = rig.log.len();
    rig.advance(seconds(3));
    let tries = rig.count_since(from, beats);
    assert!((4..=14).contains(&tries), "{tries}");
}
