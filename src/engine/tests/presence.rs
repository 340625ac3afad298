//! Entering the group, the heartbeat, and leaving.

use super::rig::{Rig, claim, id, millis, record, seconds};
use crate::engine::{Change, Command, Event, MemberPhase, Refusal, Reply, Stop, WriteFault};
use crate::ids::{Incarnation, Partition};
use crate::records::{ClaimState, MemberState};

fn enters(command: &Command) -> bool {
    matches!(command, Command::WriteMember(_, member, ..) if *member == id("a"))
}

fn stop(rig: &Rig) -> Option<Stop> {
    rig.log.iter().find_map(|(_, command)| match command {
        Command::Stop(stop) => Some(stop.clone()),
        _ => None,
    })
}

#[test]
fn an_empty_key_is_entered_and_the_first_heartbeat_writes_the_age() {
    let mut rig = Rig::new();
    rig.step(Event::Start);
    rig.run();
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    let entry = rig.server.member(&id("a"));
    let record = entry.value.unwrap();
    assert_eq!(record.beat, 2);
    assert!(record.joined.unwrap() < entry.revision);
}

#[test]
fn a_lone_member_serves_within_a_second() {
    let mut rig = Rig::new();
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_dead_record_is_replaced_at_once() {
    let mut rig = Rig::new();
    rig.server
        .put_member(&id("a"), Some(record("old-1", 1, MemberState::Dead)));
    rig.step(Event::Start);
    rig.run();
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    assert!(rig.now.as_nanos() < 100_000_000);
}

#[test]
fn a_live_duplicate_ends_the_member() {
    let mut rig = Rig::new();
    rig.peer("a", 1);
    rig.step(Event::Start);
    rig.run();
    assert_eq!(rig.engine.phase(), MemberPhase::Joining);
    rig.advance(seconds(2));
    let incarnation = Incarnation("a-1".to_owned());
    assert_eq!(stop(&rig), Some(Stop::Duplicate { incarnation }));
}

#[test]
fn a_silent_predecessor_is_waited_for_then_buried_and_replaced() {
    let mut rig = Rig::new();
    rig.server
        .put_member(&id("a"), Some(record("old-1", 1, MemberState::Active)));
    rig.step(Event::Start);
    rig.run();
    assert!(rig.told(|change| matches!(change, Change::AwaitingPredecessor { .. })));
    rig.advance(millis(3_900));
    assert_eq!(rig.count(enters), 0);
    rig.advance(millis(200));
    let writes: Vec<_> = rig.log.iter().filter(|(_, command)| enters(command)).collect();
    assert!(matches!(&writes[0].1, Command::WriteMember(_, _, record, _) if record.state == MemberState::Dead));
    assert!(matches!(&writes[1].1, Command::WriteMember(_, _, record, _) if record.incarnation.0 == "seed-1"));
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
}

#[test]
fn a_predecessor_that_cannot_be_read_any_more_makes_the_member_prepare_anew() {
    let mut rig = Rig::new();
    rig.server
        .put_member(&id("a"), Some(record("old-1", 1, MemberState::Active)));
    rig.step(Event::Start);
    rig.run();
    // The bucket is gone: reads fail until somebody makes it again.
    rig.faults = Some(Box::new(|command| {
        let fault = crate::engine::Fault("there is no bucket".to_owned());
        matches!(command, Command::ReadMember(..)).then(|| Reply::Member(Err(fault)))
    }));
    rig.advance(seconds(9));
    let prepared = rig.count(|command| matches!(command, Command::Prepare(_)));
    assert!(prepared > 1, "{prepared}");
    rig.server.members.clear();
    rig.faults = None;
    rig.advance(seconds(1));
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
}

#[test]
fn another_process_with_a_seed_that_begins_alike_is_not_ones_own_past() {
    let mut rig = Rig::new();
    rig.server
        .put_member(&id("a"), Some(record("seed-ling-1", 1, MemberState::Active)));
    rig.step(Event::Start);
    rig.run();
    assert_eq!(rig.engine.phase(), MemberPhase::Joining);
    rig.advance(seconds(1));
    assert_eq!(rig.count(enters), 0);
}

#[test]
fn a_first_write_whose_reply_is_lost_is_adopted_and_the_lease_runs_from_when_it_was_sent() {
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(enters));
    rig.step(Event::Start);
    rig.run();
    let sent = rig.now;
    let write = rig.take(enters);
    rig.server.answer(&write);
    rig.advance(seconds(1));
    rig.lose(&write);
    rig.advance(millis(300));
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    assert_eq!(rig.engine.lease_end(), Some(sent + millis(3_460)));
}

#[test]
fn a_first_write_that_lands_after_all_is_adopted() {
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(enters));
    rig.step(Event::Start);
    rig.run();
    let first = rig.take(enters);
    rig.lose(&first);
    rig.advance(millis(300));
    let second = rig.take(enters);
    rig.server.answer(&first);
    rig.answer(&second);
    rig.advance(millis(300));
    assert_eq!(rig.engine.phase(), MemberPhase::Active);
    assert_eq!(rig.engine.incarnation().0, "seed-1");
}

#[test]
fn heartbeats_come_at_their_interval_and_no_faster() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    rig.advance(seconds(60));
    let beats = rig.count_since(from, enters);
    assert!((59..=61).contains(&beats), "{beats}");
}

#[test]
fn a_group_that_does_not_fit_ends_the_member_and_one_out_of_reach_does_not() {
    let mut rig = Rig::new();
    rig.faults = Some(Box::new(|command| {
        let fault = Refusal::Retry("no answer".to_owned());
        matches!(command, Command::Prepare(_)).then(|| Reply::Prepared(Err(fault)))
    }));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(10));
    let tries = rig.count(|command| matches!(command, Command::Prepare(_)));
    assert!((30..=42).contains(&tries), "{tries}");
    rig.faults = Some(Box::new(|command| {
        let fault = Refusal::Final("P differs".to_owned());
        matches!(command, Command::Prepare(_)).then(|| Reply::Prepared(Err(fault)))
    }));
    rig.advance(seconds(1));
    assert_eq!(stop(&rig), Some(Stop::Refused("P differs".to_owned())));
}

#[test]
fn leaving_alone_is_immediate() {
    let mut rig = Rig::serving();
    let before = rig.now;
    rig.step(Event::Leave);
    rig.run();
    assert_eq!(stop(&rig), Some(Stop::Left));
    assert!(rig.now.since(before) < millis(50), "{:?}", rig.now.since(before));
    assert_eq!(rig.server.member(&id("a")).value, None);
    let claims = rig.server.claims.values();
    assert!(
        claims
            .into_iter()
            .all(|entry| entry.value.as_ref().unwrap().state == ClaimState::Released)
    );
}

#[test]
fn leaving_does_not_wait_for_the_next_heartbeat_when_one_is_under_way() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(enters));
    rig.advance(seconds(1));
    let beat = rig.take(enters);
    let before = rig.now;
    rig.step(Event::Leave);
    rig.hold = None;
    rig.answer(&beat);
    rig.run();
    rig.advance(millis(50));
    assert_eq!(stop(&rig), Some(Stop::Left));
    assert!(rig.now.since(before) < millis(100));
}

#[test]
fn a_leaving_member_waits_for_the_plan_hands_over_and_goes_only_then() {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    let mut rig = rig_with_all(rig);
    rig.handlers_end = false;
    rig.step(Event::Leave);
    rig.run();
    let state = |rig: &Rig| rig.server.member(&id("a")).value.map(|record| record.state);
    assert_eq!(state(&rig), Some(MemberState::Leaving));
    assert_eq!(rig.count(|command| matches!(command, Command::Drain(_))), 0);
    rig.server
        .put_assignment(super::rig::assignment(9, &["b", "b", "b", "b"]));
    rig.run();
    assert_eq!(rig.count(|command| matches!(command, Command::Drain(_))), 4);
    for partition in 0..4 {
        assert_eq!(state(&rig), Some(MemberState::Leaving));
        rig.step(rig.drained(Partition(partition)));
        rig.run();
    }
    rig.advance(millis(20));
    assert_eq!(state(&rig), None);
    assert_eq!(stop(&rig), Some(Stop::Left));
}

#[test]
fn a_leaver_takes_nothing_that_is_assigned_to_it_meanwhile() {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    let mut rig = rig_with_all(rig);
    rig.hold = Some(Box::new(|command| matches!(command, Command::PurgeMember(..))));
    rig.step(Event::Leave);
    rig.server
        .put_assignment(super::rig::assignment(9, &["b", "b", "b", "b"]));
    rig.run();
    rig.advance(millis(100));
    assert_eq!(rig.serving_count(), 0);
    // A plan made before its leaving was known gives it something back, while its purge is on its way.
    rig.server
        .put_assignment(super::rig::assignment(10, &["a", "a", "b", "b"]));
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 0);
    rig.hold = None;
    rig.run();
    assert_eq!(stop(&rig), Some(Stop::Left));
}

/// `a` with all partitions although `b` is there, and `b` would be the planner.
fn rig_with_all(mut rig: Rig) -> Rig {
    rig.server
        .put_assignment(super::rig::assignment(8, &["a", "a", "a", "a"]));
    rig.started()
}

#[test]
fn a_leaver_that_nobody_plans_for_gives_up_by_itself() {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    let mut rig = rig_with_all(rig);
    rig.step(Event::Leave);
    rig.run();
    rig.advance(millis(2_500));
    assert_eq!(stop(&rig), Some(Stop::Left));
}

#[test]
fn a_purge_whose_reply_is_lost_ends_the_member_all_the_same() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(|command| matches!(command, Command::PurgeMember(..))));
    rig.step(Event::Leave);
    rig.run();
    let purge = rig.take(|command| matches!(command, Command::PurgeMember(..)));
    rig.server.answer(&purge);
    rig.lose(&purge);
    rig.run();
    rig.advance(millis(300));
    assert_eq!(stop(&rig), Some(Stop::Left));
}

#[test]
fn a_leaver_that_cannot_reach_the_server_ends_with_its_lease() {
    let mut rig = Rig::serving();
    rig.faults = Some(Box::new(|command| {
        let fault = WriteFault::Unknown("no answer".to_owned());
        let writes = matches!(
            command,
            Command::WriteMember(..) | Command::WriteClaim(..) | Command::WriteProgress(..) | Command::PurgeMember(..)
        );
        writes.then_some(Reply::Written(Err(fault)))
    }));
    rig.step(Event::Leave);
    rig.run();
    rig.advance(seconds(5));
    assert_eq!(stop(&rig), Some(Stop::Left));
}

#[test]
fn a_claim_of_a_former_life_is_taken_back_at_once() {
    let mut rig = Rig::new();
    rig.server
        .put_member(&id("a"), Some(record("old-1", 1, MemberState::Dead)));
    rig.server
        .put_claim(Partition(2), Some(claim("a", "old-1", ClaimState::Held)));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_leave_while_an_answer_is_awaited_that_fails_ends_the_member() {
    let prepares = |command: &Command| matches!(command, Command::Prepare(_));
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(prepares));
    rig.step(Event::Start);
    rig.run();
    let prepare = rig.take(prepares);
    rig.step(Event::Leave);
    assert_eq!(stop(&rig), None);
    rig.lose(&prepare);
    rig.advance(seconds(1));
    assert_eq!(stop(&rig), Some(Stop::Left));
    assert_eq!(rig.count(enters), 0);
}
