//! Handing a partition over, and keeping its consumers right while it is served.

use std::collections::BTreeMap;

use super::rig::{Rig, assignment, millis, seconds, settings};
use super::server::{BUCKET_CREATED, filter};
use crate::engine::{
    Activity, Change, Command, CreateFault, Event, Position, ReopenReason, Reply, Retention, WriteFault,
};
use crate::ids::{Epoch, FencingToken, GroupName, Partition};
use crate::lanes::{Mark, Marks};
use crate::names::ConsumerName;
use crate::records::ClaimState;

const P: Partition = Partition(0);

fn finished(floor: u64) -> BTreeMap<crate::lanes::Filter, Marks> {
    BTreeMap::from([(filter(P), Marks::at(mark(floor)))])
}

fn mark(sequence: u64) -> Mark {
    Mark {
        sequence,
        time: sequence,
    }
}

fn saves(command: &Command) -> bool {
    matches!(command, Command::WriteProgress(_, P, ..))
}

fn releases(command: &Command) -> bool {
    matches!(command, Command::WriteClaim(_, P, record, _) if record.state == ClaimState::Released)
}

fn creates(command: &Command) -> bool {
    matches!(command, Command::CreateConsumer(_, spec) if spec.name.partition == P)
}

fn deletes(command: &Command) -> bool {
    matches!(command, Command::DeleteConsumer(_, name) if name.partition == P)
}

fn reopens(command: &Command) -> bool {
    matches!(command, Command::Reopen { partition: P, .. })
}

fn cancels(command: &Command) -> bool {
    *command == Command::CancelHandlers(P)
}

fn drains(command: &Command) -> bool {
    *command == Command::Drain(P)
}

/// A serving member that has to give partition 0 to `b`; its handlers take their time.
fn giving() -> (Rig, usize) {
    let mut rig = Rig::serving();
    rig.handlers_end = false;
    rig.peer("b", 1_000);
    let from = rig.log.len();
    rig.server.put_assignment(assignment(5, &["b", "a", "a", "a"]));
    rig.run();
    (rig, from)
}

fn epoch(rig: &Rig) -> Epoch {
    rig.log
        .iter()
        .rev()
        .find_map(|(_, command)| match command {
            Command::Open {
                partition: P, epoch, ..
            }
            | Command::Reopen {
                partition: P, epoch, ..
            } => Some(*epoch),
            _ => None,
        })
        .unwrap()
}

pub(super) fn reopen(rig: &mut Rig, floor: u64, reason: ReopenReason) {
    let event = Event::Reopen {
        partition: P,
        filter: filter(P),
        epoch: epoch(rig),
        floor: mark(floor),
        reason,
    };
    rig.step(event);
}

/// What the lanes have finished; the number of changes is the floor.
fn checkpoint(floor: u64, urgent: bool) -> Event {
    Event::Checkpoint {
        partition: P,
        marks: finished(floor),
        changes: floor,
        urgent,
    }
}

#[test]
fn the_progress_is_saved_and_confirmed_before_the_claim_is_released() {
    let (mut rig, from) = giving();
    assert_eq!(rig.count_since(from, drains), 1);
    rig.advance(seconds(3));
    assert_eq!(rig.count_since(from, saves), 0);
    rig.hold = Some(Box::new(saves));
    rig.step(Event::Drained {
        partition: P,
        marks: finished(30),
    });
    rig.advance(seconds(1));
    assert_eq!(rig.count_since(from, releases), 0);
    let save = rig.take(saves);
    rig.hold = None;
    rig.answer(&save);
    rig.run();
    assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
    assert_eq!(rig.server.progress[&P].value.clone().unwrap().filters, finished(30));
    assert!(rig.told(|change| matches!(change, Change::Released { partition: P })));
}

#[test]
fn a_save_whose_reply_is_lost_is_looked_up_first() {
    for landed in [true, false] {
        let (mut rig, from) = giving();
        rig.hold = Some(Box::new(saves));
        rig.step(Event::Drained {
            partition: P,
            marks: finished(30),
        });
        let save = rig.take(saves);
        rig.hold = None;
        if landed {
            rig.server.answer(&save);
        }
        rig.lose(&save);
        rig.run();
        assert_eq!(rig.count_since(from, releases), 0);
        rig.advance(seconds(1));
        assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
        assert_eq!(rig.server.progress[&P].value.clone().unwrap().filters, finished(30));
    }
}

#[test]
fn a_save_that_always_fails_keeps_the_partition_and_is_not_tried_hot() {
    for fault in [WriteFault::Conflict, WriteFault::Unknown("no leader".to_owned())] {
        let (mut rig, from) = giving();
        let refused = fault.clone();
        rig.faults = Some(Box::new(move |command| {
            saves(command).then(|| Reply::Written(Err(refused.clone())))
        }));
        rig.step(Event::Drained {
            partition: P,
            marks: finished(30),
        });
        rig.run();
        rig.advance(seconds(10));
        let tries = rig.count_since(from, saves);
        assert!((20..=45).contains(&tries), "{tries} for {fault:?}");
        assert_eq!(rig.count_since(from, releases), 0);
    }
}

#[test]
fn a_release_whose_reply_is_lost_is_looked_up_first() {
    for landed in [true, false] {
        let (mut rig, from) = giving();
        rig.watching = false;
        rig.hold = Some(Box::new(releases));
        rig.step(Event::Drained {
            partition: P,
            marks: finished(30),
        });
        rig.run();
        let release = rig.take(releases);
        rig.hold = None;
        if landed {
            rig.server.answer(&release);
        }
        rig.lose(&release);
        rig.advance(seconds(1));
        assert_eq!(rig.count_since(from, releases), if landed { 1 } else { 2 });
        assert_eq!(rig.engine.activities().get(&P), None);
        assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
    }
}

#[test]
fn at_the_drain_timeout_handlers_are_cancelled_once_and_waited_for() {
    let (mut rig, from) = giving();
    rig.advance(millis(9_900));
    assert_eq!(rig.count_since(from, cancels), 0);
    rig.advance(seconds(60));
    assert_eq!(rig.count_since(from, cancels), 1);
    assert!(rig.told(|change| matches!(change, Change::DrainOverdue { partition: P })));
    assert_eq!(rig.count_since(from, releases), 0);
    assert!(matches!(rig.engine.activities()[&P], Activity::Draining(_)));
    rig.step(Event::Drained {
        partition: P,
        marks: finished(30),
    });
    rig.run();
    assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
}

#[test]
fn a_partition_that_comes_back_while_it_drains_is_a_new_tenure() {
    let (mut rig, _) = giving();
    let before = epoch(&rig);
    rig.server.put_assignment(assignment(6, &["a", "a", "a", "a"]));
    rig.run();
    rig.step(Event::Drained {
        partition: P,
        marks: finished(30),
    });
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
    assert!(epoch(&rig).token > before.token);
}

#[test]
fn a_checkpoint_is_saved_one_at_a_time_and_a_failed_one_is_made_up_for() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(saves));
    let from = rig.log.len();
    for floor in [10, 20, 30] {
        rig.step(checkpoint(floor, false));
    }
    assert_eq!(rig.count_since(from, saves), 1);
    let first = rig.take(saves);
    rig.server.answer(&first);
    rig.lose(&first);
    rig.hold = None;
    rig.step(checkpoint(40, false));
    rig.run();
    // It conflicted with the first one, which had landed; the next one goes through.
    rig.step(checkpoint(50, false));
    rig.run();
    assert_eq!(rig.server.progress[&P].value.clone().unwrap().filters, finished(50));
    rig.step(checkpoint(50, false));
    assert_eq!(rig.waiting, []);
}

#[test]
fn a_gap_opens_the_next_epoch_at_the_floor_and_deletes_the_last() {
    for retention in [Retention::Limits, Retention::WorkQueue] {
        let mut rig = Rig::with(settings(retention)).started();
        rig.advance(seconds(1));
        let before = epoch(&rig);
        let from = rig.log.len();
        reopen(&mut rig, 30, ReopenReason::Gap);
        rig.run();
        assert_eq!(rig.count_since(from, reopens), 1);
        let after = epoch(&rig);
        assert_eq!((after.token, after.reopen), (before.token, before.reopen + 1));
        assert_eq!(
            rig.server.consumers.keys().filter(|name| name.partition == P).count(),
            1
        );
        let order = match retention {
            Retention::WorkQueue => rig.order(from, &[&deletes, &creates, &reopens]),
            _ => rig.order(from, &[&creates, &deletes, &reopens]),
        };
        assert!(order.is_sorted(), "{retention:?} {order:?}");
        let started = |command: &Command| matches!(command, Command::CreateConsumer(_, spec) if spec.start == 31);
        assert_eq!(rig.count_since(from, started), 1);
        assert!(
            !rig.log[from..]
                .iter()
                .any(|(_, command)| matches!(command, Command::Open { .. }))
        );
    }
}

#[test]
fn a_reopen_of_an_epoch_that_is_over_changes_nothing() {
    let mut rig = Rig::serving();
    let old = epoch(&rig);
    reopen(&mut rig, 30, ReopenReason::Gap);
    rig.advance(seconds(1));
    let from = rig.log.len();
    let event = Event::Reopen {
        partition: P,
        filter: filter(P),
        epoch: old,
        floor: mark(30),
        reason: ReopenReason::Missing,
    };
    rig.step(event);
    rig.run();
    assert_eq!(rig.count_since(from, creates), 0);
}

#[test]
fn a_consumer_that_is_lost_again_and_again_is_not_reopened_hot() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    let end = rig.now + seconds(10);
    let mut last = None;
    while rig.now < end {
        rig.server.consumers.retain(|name, _| name.partition != P);
        if last != Some(epoch(&rig)) {
            last = Some(epoch(&rig));
            reopen(&mut rig, 30, ReopenReason::Missing);
        }
        rig.advance(millis(5));
    }
    let made = rig.count_since(from, creates);
    assert!((20..=42).contains(&made), "{made}");
}

#[test]
fn the_periodic_listing_finds_a_missing_consumer_and_reopens_it_at_what_was_saved() {
    let mut rig = Rig::serving();
    rig.step(checkpoint(70, false));
    rig.run();
    rig.server.consumers.retain(|name, _| name.partition != P);
    let from = rig.log.len();
    rig.advance(seconds(21));
    assert_eq!(rig.count_since(from, reopens), 1);
    let started = |command: &Command| matches!(command, Command::CreateConsumer(_, spec) if spec.start == 71);
    assert_eq!(rig.count_since(from, started), 1);
}

fn leftover(rig: &mut Rig, token: FencingToken, reopen: u32) -> ConsumerName {
    let group = GroupName::new("g").unwrap();
    let name = ConsumerName::new(&group, P, &filter(P), Epoch { token, reopen });
    rig.server.consumers.insert(
        name.clone(),
        Position {
            ack_floor: 0,
            acked_at: 1_000,
            start: 1,
            delivered: 0,
        },
    );
    name
}

#[test]
fn the_periodic_listing_sweeps_lower_epochs_once_the_claim_is_confirmed() {
    let mut rig = Rig::serving();
    reopen(&mut rig, 30, ReopenReason::Gap);
    rig.advance(seconds(1));
    let token = epoch(&rig).token;
    // One of an older tenure, and one of this tenure whose creation was delayed on its way.
    let older = leftover(&mut rig, FencingToken(BUCKET_CREATED), 0);
    let earlier = leftover(&mut rig, token, 0);
    let from = rig.log.len();
    rig.advance(seconds(21));
    assert!(!rig.server.consumers.contains_key(&older));
    assert!(!rig.server.consumers.contains_key(&earlier));
    let confirms = |command: &Command| matches!(command, Command::ReadClaim(_, P));
    assert!(rig.order(from, &[&confirms, &deletes]).is_sorted());
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn the_periodic_listing_leaves_the_predecessor_of_a_filter_that_is_being_opened_alone() {
    let mut rig = Rig::with(settings(Retention::Interest));
    let older = leftover(&mut rig, FencingToken(BUCKET_CREATED), 0);
    rig.server
        .put_claim(P, Some(super::rig::claim("b", "b-1", ClaimState::Released)));
    rig.hold = Some(Box::new(|command| matches!(command, Command::InspectConsumer(..))));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(30));
    // An interest stream forgets what no consumer wants, even for a moment.
    assert!(rig.server.consumers.contains_key(&older));
    rig.hold = None;
    rig.run();
    rig.advance(seconds(1));
    assert!(!rig.server.consumers.contains_key(&older));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_higher_epoch_in_the_listing_only_makes_the_claim_be_read() {
    let mut rig = Rig::serving();
    let higher = leftover(&mut rig, FencingToken(BUCKET_CREATED + 900_000), 0);
    let from = rig.log.len();
    rig.advance(seconds(21));
    assert!(rig.server.consumers.contains_key(&higher));
    assert!(rig.count_since(from, |command| matches!(command, Command::ReadClaim(_, P))) > 0);
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_consumer_that_cannot_be_made_is_not_tried_hot() {
    let mut rig = Rig::new();
    rig.faults = Some(Box::new(|command| {
        let fault = CreateFault::Unknown("no leader".to_owned());
        matches!(command, Command::CreateConsumer(..)).then(|| Reply::Created(Err(fault)))
    }));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(10));
    let tries = rig.count(creates);
    assert!((20..=45).contains(&tries), "{tries}");
    rig.faults = None;
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn late_answers_to_steps_of_a_tenure_that_is_over_are_ignored() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(creates));
    reopen(&mut rig, 30, ReopenReason::Gap);
    rig.advance(seconds(1));
    let late = rig.take(creates);
    rig.peer("b", 1_000);
    rig.server.put_assignment(assignment(5, &["b", "a", "a", "a"]));
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.server.claim(P).value.unwrap().state, ClaimState::Released);
    let from = rig.log.len();
    rig.reply(&late, Reply::Created(Ok(())));
    rig.run();
    assert_eq!(rig.log.len(), from);
}

#[test]
fn filters_found_later_are_opened_from_the_groups_start() {
    let mut rig = Rig::serving();
    let new = crate::lanes::Filter::new("t.new");
    let from = rig.log.len();
    let found = BTreeMap::from([(P, vec![filter(P), new.clone()])]);
    rig.step(Event::Discovered(found.clone()));
    rig.step(Event::Discovered(found));
    rig.run();
    let opened = |command: &Command| matches!(command, Command::Open { filter, marks, .. } if *filter == new && marks.floor.sequence == 0);
    assert_eq!(rig.count_since(from, opened), 1);
}

#[test]
fn filters_found_while_their_partition_is_being_opened_are_not_forgotten() {
    let closes = |command: &Command| matches!(command, Command::WriteProgress(_, P, ..));
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(closes));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(1));
    let closing = rig.take(closes);
    // The listing was made without it, and a stream that does not move is not looked at again.
    let new = crate::lanes::Filter::new("t.new");
    rig.step(Event::Discovered(BTreeMap::from([(P, vec![new.clone()])])));
    rig.hold = None;
    rig.answer(&closing);
    rig.run();
    let opened = |command: &Command| matches!(command, Command::Open { filter, marks, .. } if *filter == new && marks.floor.sequence == 0);
    assert_eq!(rig.count(opened), 1);
}
