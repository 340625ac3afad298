//! When a claim may be taken.

use super::rig::{Rig, assignment, claim, id, millis, record, seconds};
use super::server::{BUCKET_CREATED, filter};
use crate::engine::{Activity, Change, Command, Event, Position, Reply, Seen, WriteFault};
use crate::ids::{Epoch, FencingToken, Partition, Revision};
use crate::names::ConsumerName;
use crate::records::{ClaimState, Entry, MemberState};
use crate::time::Time;

const P: Partition = Partition(0);

fn wins(command: &Command) -> bool {
    matches!(command, Command::WriteClaim(_, P, record, _) if record.state == ClaimState::Held)
}

fn reads_owner(command: &Command) -> bool {
    matches!(command, Command::ReadMember(_, member) if *member == id("b"))
}

fn won_at(rig: &Rig) -> Option<Time> {
    rig.log.iter().find(|(_, command)| wins(command)).map(|(at, _)| *at)
}

fn holds(rig: &Rig) -> bool {
    rig.server.claim(P).value.is_some_and(|claim| claim.owner == id("a"))
}

/// `a` is to get partition 0; `b` beats, and holds it.
fn held_by_b() -> Rig {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Held)));
    rig.server.put_assignment(assignment(1, &["a", "b", "b", "b"]));
    rig
}

fn start(rig: &mut Rig) {
    rig.step(Event::Start);
    rig.run();
}

fn consumer(partition: Partition, token: u64) -> ConsumerName {
    let epoch = Epoch {
        token: FencingToken(token),
        reopen: 0,
    };
    ConsumerName::new(
        &crate::ids::GroupName::new("g").unwrap(),
        partition,
        &filter(partition),
        epoch,
    )
}

#[test]
fn a_released_claim_is_taken_at_once() {
    let mut rig = held_by_b();
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    start(&mut rig);
    rig.advance(millis(50));
    assert!(holds(&rig));
}

#[test]
fn a_live_owner_is_waited_for_and_its_release_is_seen() {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.advance(seconds(30));
    assert_eq!(won_at(&rig), None);
    assert!(rig.told(|change| matches!(
        change,
        Change::Waiting {
            partition: P,
            owner: Some(_)
        }
    )));
    let polls = rig.count(reads_owner);
    assert!((28..=70).contains(&polls), "{polls}");
    let released = rig.now;
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.run();
    assert!(won_at(&rig).unwrap().since(released) < millis(5));
}

#[test]
fn a_release_that_the_watch_does_not_show_is_found_by_polling() {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.watching = false;
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.advance(millis(1_100));
    assert!(holds(&rig));
}

#[test]
fn a_claim_of_the_dead_or_of_a_former_life_is_taken_at_once() {
    for found in [
        record("b-1", 0, MemberState::Dead),
        record("b-2", 0, MemberState::Active),
    ] {
        let mut rig = held_by_b();
        start(&mut rig);
        rig.advance(seconds(2));
        rig.server.put_member(&id("b"), Some(found));
        let changed = rig.now;
        rig.run();
        assert!(won_at(&rig).unwrap().since(changed) < millis(10));
    }
}

#[test]
fn a_silent_owner_is_declared_dead_by_whoever_waits_for_it() {
    let mut rig = held_by_b();
    // `a` is none of the oldest, and does not watch `b`.
    for (joined, name) in ["c", "d", "e"].into_iter().enumerate() {
        rig.peer(name, joined as u64);
    }
    rig.server
        .put_member(&id("b"), Some(record("b-1", 50, MemberState::Active)));
    rig.beating.remove(&id("b"));
    start(&mut rig);
    rig.advance(millis(3_900));
    assert_eq!(won_at(&rig), None);
    rig.advance(millis(1_500));
    assert!(holds(&rig));
}

#[test]
fn without_a_record_of_the_owner_a_full_session_timeout_is_waited() {
    let mut rig = held_by_b();
    rig.beating.clear();
    rig.server.put_member(&id("b"), None);
    start(&mut rig);
    rig.advance(millis(3_950));
    assert_eq!(won_at(&rig), None);
    rig.advance(millis(200));
    assert!(holds(&rig));
}

#[test]
fn without_claim_and_consumers_nothing_is_waited_for() {
    let mut rig = Rig::new();
    start(&mut rig);
    rig.advance(millis(300));
    assert!(holds(&rig));
}

#[test]
fn without_a_claim_but_with_a_consumer_of_the_partition_a_full_session_timeout_is_waited() {
    let mut rig = Rig::new();
    let position = Position {
        ack_floor: 7,
        acked_at: 1_000,
        start: 1,
        delivered: 7,
    };
    rig.server.consumers.insert(consumer(P, BUCKET_CREATED + 500), position);
    start(&mut rig);
    rig.advance(millis(3_950));
    assert_eq!(won_at(&rig), None);
    rig.advance(millis(500));
    assert!(holds(&rig));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn consumers_from_before_the_bucket_make_every_absent_claim_wait() {
    let mut rig = Rig::new();
    let position = Position {
        ack_floor: 7,
        acked_at: 1_000,
        start: 1,
        delivered: 7,
    };
    rig.server
        .consumers
        .insert(consumer(Partition(3), BUCKET_CREATED - 500), position);
    start(&mut rig);
    rig.advance(millis(3_950));
    assert_eq!(won_at(&rig), None);
    rig.advance(millis(500));
    assert!(holds(&rig));
}

#[test]
fn members_that_start_together_do_not_wait_for_each_others_consumers() {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    rig.server
        .put_claim(Partition(3), Some(claim("b", "b-1", ClaimState::Held)));
    let position = Position {
        ack_floor: 0,
        acked_at: 1_000,
        start: 1,
        delivered: 0,
    };
    rig.server
        .consumers
        .insert(consumer(Partition(3), BUCKET_CREATED + 5), position);
    rig.server.put_assignment(assignment(1, &["a", "a", "b", "b"]));
    start(&mut rig);
    rig.advance(millis(300));
    assert_eq!(rig.serving_count(), 2);
}

#[test]
fn after_a_reconnect_only_a_claim_seen_being_released_is_taken() {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.advance(seconds(1));
    rig.step(Event::Reconnected);
    rig.run();
    // `b` looks dead: but the server may have come back with old records.
    rig.server
        .put_member(&id("b"), Some(record("b-1", 0, MemberState::Dead)));
    rig.advance(seconds(3));
    assert_eq!(won_at(&rig), None);
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.run();
    assert!(holds(&rig));
}

#[test]
fn after_a_reconnect_the_quarantine_ends() {
    let mut rig = held_by_b();
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.step(Event::Reconnected);
    start(&mut rig);
    rig.advance(millis(3_900));
    assert_eq!(won_at(&rig), None);
    rig.advance(millis(200));
    assert!(holds(&rig));
}

#[test]
fn an_owner_read_before_the_claim_changed_is_no_evidence_against_the_new_claim() {
    let mut rig = held_by_b();
    rig.hold = Some(Box::new(reads_owner));
    start(&mut rig);
    rig.advance(seconds(1));
    let read = rig.take(reads_owner);
    let old_life = rig.server.answer(&read);
    // Meanwhile b has come back and has taken its claim again.
    rig.server
        .put_member(&id("b"), Some(record("b-2", 0, MemberState::Active)));
    rig.server.put_claim(P, Some(claim("b", "b-2", ClaimState::Held)));
    rig.run();
    rig.reply(&read, old_life);
    rig.hold = None;
    rig.run();
    rig.advance(seconds(10));
    assert_eq!(won_at(&rig), None);
}

#[test]
fn a_release_seen_while_the_owner_is_read_is_acted_on_at_once() {
    let mut rig = held_by_b();
    rig.hold = Some(Box::new(reads_owner));
    start(&mut rig);
    rig.advance(millis(100));
    let read = rig.take(reads_owner);
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.run();
    rig.hold = None;
    rig.answer(&read);
    rig.run();
    assert!(holds(&rig));
}

#[test]
fn a_release_seen_while_the_claim_is_read_is_acted_on_at_once() {
    let reads_claim = |command: &Command| matches!(command, Command::ReadClaim(_, P));
    let mut rig = held_by_b();
    rig.hold = Some(Box::new(reads_claim));
    start(&mut rig);
    rig.advance(millis(100));
    let (read, before) = (rig.take(reads_claim), rig.server.claim(P));
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.run();
    rig.hold = None;
    rig.reply(&read, Reply::Claim(Ok(before)));
    rig.run();
    assert!(holds(&rig));
}

#[test]
fn a_win_whose_reply_is_lost_is_adopted_when_it_is_read() {
    let mut rig = Rig::new();
    rig.watching = false;
    rig.hold = Some(Box::new(wins));
    start(&mut rig);
    rig.advance(millis(500));
    let win = rig.take(wins);
    rig.server.answer(&win);
    rig.lose(&win);
    rig.advance(millis(500));
    assert_eq!(rig.count(wins), 1);
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_win_that_lands_later_is_adopted_and_not_won_twice() {
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(wins));
    start(&mut rig);
    rig.advance(millis(500));
    let first = rig.take(wins);
    rig.lose(&first);
    rig.advance(millis(300));
    let second = rig.take(wins);
    rig.server.answer(&first);
    rig.answer(&second);
    rig.hold = None;
    rig.advance(millis(500));
    assert_eq!(rig.serving_count(), 4);
}

/// The claim of a partition that is not `a`'s names this life of `a`.
fn a_claim_unknown_to_a(watching: bool) -> Rig {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.server.put_assignment(assignment(2, &["b", "b", "b", "b"]));
    rig.advance(seconds(1));
    rig.watching = watching;
    rig.server.put_claim(P, Some(claim("a", "seed-1", ClaimState::Held)));
    rig
}

#[test]
fn a_claim_that_names_a_member_that_does_not_serve_it_is_released_when_it_is_listed() {
    let mut rig = a_claim_unknown_to_a(false);
    rig.advance(seconds(21));
    assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
    assert_eq!(rig.count(|command| matches!(command, Command::Open { .. })), 0);
}

#[test]
fn a_claim_that_names_a_member_that_does_not_serve_it_is_released_when_it_is_seen() {
    let mut rig = a_claim_unknown_to_a(true);
    rig.run();
    rig.advance(millis(20));
    assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
}

#[test]
fn a_claim_that_names_a_member_and_is_assigned_to_it_is_opened_when_it_is_listed() {
    let mut rig = Rig::serving();
    rig.watching = false;
    let mut own = claim("a", "seed-1", ClaimState::Held);
    own.token = FencingToken(BUCKET_CREATED + 10_000);
    // Another write of this life has landed: the tenure served is over, this one begins.
    rig.server.put_claim(P, Some(own));
    rig.advance(seconds(45));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_partition_that_is_taken_away_while_it_is_waited_for_is_forgotten() {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.advance(seconds(2));
    rig.server.put_assignment(assignment(2, &["b", "b", "b", "b"]));
    rig.run();
    assert_eq!(rig.engine.activities().get(&P), None);
    let from = rig.log.len();
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.advance(seconds(5));
    assert_eq!(rig.count_since(from, wins), 0);
}

#[test]
fn a_hint_older_than_what_is_known_changes_nothing() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    let old = Entry {
        value: Some(claim("b", "b-1", ClaimState::Held)),
        revision: Revision(1),
    };
    rig.step(Event::Seen(Seen::Claim(P, old)));
    assert_eq!(
        rig.count_since(from, |command| matches!(command, Command::ReadClaim(..))),
        0
    );
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_hint_from_a_bucket_that_is_no_more_is_overruled_by_the_leader() {
    let mut rig = held_by_b();
    rig.hold = Some(Box::new(|command| matches!(command, Command::ReadClaim(_, P))));
    start(&mut rig);
    rig.advance(millis(100));
    let old = Entry {
        value: Some(claim("z", "z-1", ClaimState::Held)),
        revision: Revision(9_000),
    };
    rig.step(Event::Seen(Seen::Claim(P, old)));
    rig.hold = None;
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Released)));
    rig.advance(seconds(1));
    assert!(holds(&rig));
}

#[test]
fn a_claim_won_in_a_younger_bucket_is_not_served_with_a_token_of_the_old_one() {
    let mut rig = held_by_b();
    start(&mut rig);
    rig.advance(seconds(2));
    // The bucket is deleted, and made again by somebody else, before the next heartbeat notices.
    rig.server.revision = 0;
    rig.server.members.clear();
    rig.server.claims.clear();
    rig.server.put_claim(P, Some(claim("z", "z-1", ClaimState::Released)));
    rig.step(Event::Seen(Seen::Member(
        id("b"),
        Entry {
            value: None,
            revision: Revision(5_000),
        },
    )));
    rig.advance(seconds(2));
    let opened = |command: &Command| matches!(command, Command::Open { .. });
    let first = rig.log.iter().position(|(_, command)| opened(command)).unwrap();
    let rejoined = rig.log.iter().position(
        |(_, command)| matches!(command, Command::Notify(Change::Joined { incarnation }) if incarnation.0 == "seed-2"),
    );
    assert!(rejoined.unwrap() < first);
}

#[test]
fn a_claim_lost_to_somebody_else_closes_the_partition() {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Held)));
    rig.run();
    assert!(matches!(rig.engine.activities()[&P], Activity::Ending(_)));
    assert!(rig.told(|change| matches!(change, Change::Lost { partition: P })));
}

#[test]
fn claims_that_cannot_be_written_are_not_tried_hot() {
    for fault in [WriteFault::Conflict, WriteFault::Unknown("no leader".to_owned())] {
        let mut rig = Rig::new();
        let refused = fault.clone();
        rig.faults = Some(Box::new(move |command| {
            wins(command).then(|| Reply::Written(Err(refused.clone())))
        }));
        start(&mut rig);
        rig.advance(seconds(10));
        let tries = rig.count(wins);
        assert!((20..=45).contains(&tries), "{tries} for {fault:?}");
        rig.faults = None;
        rig.advance(seconds(1));
        assert_eq!(rig.serving_count(), 4);
    }
}
