//! From a claim that is won to a partition that is served.

use std::collections::BTreeMap;

use super::rig::{Rig, assignment, claim, millis, seconds, settings};
use super::server::{BUCKET_CREATED, filter};
use crate::engine::{Change, Command, CreateFault, Event, Fault, Position, Reply, Retention, WriteFault};
use crate::ids::{Epoch, FencingToken, GroupName, Partition, Revision};
use crate::lanes::{Mark, Marks, Range};
use crate::names::ConsumerName;
use crate::records::{ClaimState, Entry, ProgressRecord};

const P: Partition = Partition(0);
const OLD: u64 = BUCKET_CREATED + 1;

fn name(token: u64, reopen: u32) -> ConsumerName {
    let epoch = Epoch {
        token: FencingToken(token),
        reopen,
    };
    ConsumerName::new(&GroupName::new("g").unwrap(), P, &filter(P), epoch)
}

fn marks(floor: u64) -> Marks {
    Marks::at(Mark {
        sequence: floor,
        time: floor * 10,
    })
}

fn progress(token: u64, marks: Marks) -> ProgressRecord {
    ProgressRecord {
        token: FencingToken(token),
        filters: BTreeMap::from([(filter(P), marks)]),
    }
}

fn of_p(command: &Command) -> bool {
    match command {
        Command::WriteClaim(_, p, ..)
        | Command::ReadClaim(_, p)
        | Command::ReadProgress(_, p)
        | Command::WriteProgress(_, p, ..) => *p == P,
        Command::Open { partition, .. } | Command::Reopen { partition, .. } => *partition == P,
        Command::CreateConsumer(_, spec) => spec.name.partition == P,
        Command::DeleteConsumer(_, name) | Command::InspectConsumer(_, name) => name.partition == P,
        _ => false,
    }
}

fn creates(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::CreateConsumer(..))
}

fn deletes(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::DeleteConsumer(..))
}

fn confirms(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::ReadClaim(..))
}

fn opens(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::Open { .. })
}

fn saves(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::WriteProgress(..))
}

fn raises(command: &Command) -> bool {
    matches!(command, Command::WriteClaim(_, P, record, _) if record.token.0 > BUCKET_CREATED + 100_000)
}

/// A predecessor has released partition 0; its consumer is still there.
pub(super) fn after_release(retention: Retention) -> Rig {
    let mut rig = Rig::with(settings(retention));
    let mut released = claim("b", "b-1", ClaimState::Released);
    released.token = FencingToken(OLD);
    rig.server.put_claim(P, Some(released));
    rig.server.put_progress(P, progress(OLD, marks(40)));
    let position = Position {
        ack_floor: 50,
        acked_at: 1_000,
        start: 1,
        delivered: 50,
    };
    rig.server.consumers.insert(name(OLD, 0), position);
    rig
}

pub(super) fn opened(rig: &Rig) -> (Epoch, Marks) {
    rig.log
        .iter()
        .rev()
        .find_map(|(_, command)| match command {
            Command::Open {
                partition: P,
                epoch,
                marks,
                ..
            } => Some((*epoch, marks.clone())),
            _ => None,
        })
        .unwrap()
}

pub(super) fn created_starts(rig: &Rig) -> Vec<u64> {
    let start = |command: &Command| match command {
        Command::CreateConsumer(_, spec) if spec.name.partition == P => Some(spec.start),
        _ => None,
    };
    rig.log.iter().filter_map(|(_, command)| start(command)).collect()
}

#[test]
fn limits_and_interest_create_confirm_delete_open() {
    for retention in [Retention::Limits, Retention::Interest] {
        let rig = after_release(retention).started();
        let create = rig.order(0, &[&creates])[0];
        let order = rig.order(create, &[&creates, &confirms, &deletes, &opens]);
        assert!(order.is_sorted(), "{order:?}");
        // The older consumer's ack floor is above the saved floor.
        assert_eq!(created_starts(&rig), [51]);
        assert_eq!(opened(&rig).1.floor.sequence, 50);
        assert!(!rig.server.consumers.contains_key(&name(OLD, 0)));
    }
}

#[test]
fn a_work_queue_confirms_deletes_creates_opens() {
    let rig = after_release(Retention::WorkQueue).started();
    let confirm = rig.order(0, &[&deletes])[0];
    let order = rig.order(confirm, &[&deletes, &creates, &opens]);
    assert!(order.is_sorted(), "{order:?}");
    assert!(rig.order(0, &[&confirms])[0] < order[0]);
    // What is finished is known from the progress record alone.
    assert_eq!(opened(&rig).1.floor.sequence, 40);
}

#[test]
fn the_progress_is_closed_with_the_own_token_before_anything_is_opened() {
    let rig = after_release(Retention::Limits).started();
    let order = rig.order(0, &[&saves, &creates]);
    assert!(order.is_sorted());
    let record = rig.server.progress[&P].value.clone().unwrap();
    assert_eq!(record.token, opened(&rig).0.token);
    assert!(record.token > FencingToken(OLD));
    assert_eq!(record.filters[&filter(P)].floor.sequence, 40);
}

#[test]
fn a_late_loser_deletes_nothing() {
    for retention in [Retention::Limits, Retention::WorkQueue] {
        let mut rig = after_release(retention);
        rig.watching = false;
        rig.hold = Some(Box::new(|command| {
            of_p(command) && matches!(command, Command::WriteProgress(..))
        }));
        rig.step(Event::Start);
        rig.run();
        rig.advance(seconds(1));
        let save = rig.take(saves);
        rig.hold = None;
        // While the member was slow, another one was given the partition.
        rig.server.put_claim(P, Some(claim("b", "b-1", ClaimState::Held)));
        rig.peer("b", 0);
        rig.answer(&save);
        rig.run();
        rig.advance(seconds(1));
        assert_eq!(rig.count(deletes), 0);
        assert_eq!(rig.count(opens), 0);
    }
}

#[test]
fn a_progress_written_in_between_is_read_again() {
    // By an older tenure: what it finished is kept.
    let mut rig = after_release(Retention::Limits);
    rig.hold = Some(Box::new(saves));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let save = rig.take(saves);
    rig.hold = None;
    rig.server.put_progress(P, progress(OLD, marks(60)));
    rig.answer(&save);
    rig.run();
    rig.advance(millis(500));
    assert_eq!(opened(&rig).1.floor.sequence, 60);
    assert_eq!(created_starts(&rig), [61]);
}

#[test]
fn an_own_write_of_the_progress_whose_reply_was_lost_is_adopted() {
    let mut rig = after_release(Retention::Limits);
    rig.hold = Some(Box::new(saves));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let save = rig.take(saves);
    rig.hold = None;
    rig.server.answer(&save);
    rig.lose(&save);
    rig.advance(millis(500));
    assert_eq!(rig.serving_count(), 4);
    // Without a higher token: it is the same tenure.
    let Command::WriteProgress(_, _, record, _) = save else {
        panic!()
    };
    assert_eq!(opened(&rig).0.token, record.token);
}

#[test]
fn a_higher_token_in_the_progress_makes_the_claim_be_raised() {
    let mut rig = after_release(Retention::Limits);
    rig.hold = Some(Box::new(saves));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let save = rig.take(saves);
    rig.hold = None;
    let high = BUCKET_CREATED + 200_000;
    rig.server.put_progress(P, progress(high, marks(70)));
    rig.answer(&save);
    rig.run();
    rig.advance(millis(500));
    assert_eq!(rig.count(raises), 1);
    assert!(opened(&rig).0.token > FencingToken(high));
    assert_eq!(opened(&rig).1.floor.sequence, 70);
}

#[test]
fn a_token_at_or_above_ones_own_on_a_consumer_is_raised_above_first() {
    let mut rig = after_release(Retention::Limits);
    let high = BUCKET_CREATED + 300_000;
    let position = Position {
        ack_floor: 55,
        acked_at: 1_000,
        start: 1,
        delivered: 55,
    };
    rig.server.consumers.insert(name(high, 2), position);
    let rig = rig.started();
    assert_eq!(rig.count(raises), 1);
    let (epoch, marks) = opened(&rig);
    assert_eq!(epoch.token, FencingToken(high + 1));
    assert_eq!(marks.floor.sequence, 55);
    let order = rig.order(0, &[&raises, &saves, &creates]);
    assert!(order.is_sorted());
    assert_eq!(
        rig.server.consumers.keys().filter(|name| name.partition == P).count(),
        1
    );
}

#[test]
fn a_raise_without_a_reply_is_looked_up_and_not_repeated_hot() {
    for fault in [WriteFault::Conflict, WriteFault::Unknown("no leader".to_owned())] {
        let mut rig = after_release(Retention::Limits);
        rig.server.progress.clear();
        let high = BUCKET_CREATED + 300_000;
        rig.server.put_progress(P, progress(high, marks(40)));
        let refused = fault.clone();
        rig.faults = Some(Box::new(move |command| {
            raises(command).then(|| Reply::Written(Err(refused.clone())))
        }));
        rig.step(Event::Start);
        rig.run();
        rig.advance(seconds(10));
        let tries = rig.count(raises);
        assert!((10..=45).contains(&tries), "{tries} for {fault:?}");
        rig.faults = None;
        rig.advance(seconds(1));
        assert_eq!(rig.serving_count(), 4);
    }
}

#[test]
fn an_own_consumer_from_a_half_done_step_is_accepted_if_it_starts_early_enough() {
    for (start, accepted) in [(51, true), (30, true), (52, false)] {
        let mut rig = after_release(Retention::Limits);
        rig.hold = Some(Box::new(creates));
        rig.step(Event::Start);
        rig.run();
        rig.advance(millis(500));
        let create = rig.take(creates);
        rig.hold = None;
        let Command::CreateConsumer(_, spec) = &create else {
            panic!()
        };
        let found = Position {
            ack_floor: start - 1,
            acked_at: 1_000,
            start,
            delivered: start - 1,
        };
        rig.server.consumers.insert(spec.name.clone(), found);
        rig.server.names.insert(spec.name.clone());
        rig.reply(&create, Reply::Created(Err(CreateFault::Exists)));
        rig.run();
        rig.advance(millis(500));
        assert_eq!(rig.serving_count(), 4);
        let reopen = opened(&rig).0.reopen;
        assert_eq!(reopen, if accepted { 0 } else { 1 }, "{start}");
        assert_eq!(
            rig.server.consumers.keys().filter(|name| name.partition == P).count(),
            1
        );
        assert_eq!(opened(&rig).1.floor.sequence, 50);
    }
}

#[test]
fn an_own_consumer_that_starts_too_late_does_not_move_the_position() {
    // Nobody served the partition before: the only older consumer is the half-done one itself.
    let mut rig = Rig::new();
    rig.hold = Some(Box::new(creates));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let create = rig.take(creates);
    rig.hold = None;
    let Command::CreateConsumer(_, spec) = &create else {
        panic!()
    };
    let found = Position {
        ack_floor: 89,
        acked_at: 1_000,
        start: 90,
        delivered: 89,
    };
    rig.server.consumers.insert(spec.name.clone(), found);
    rig.server.names.insert(spec.name.clone());
    rig.reply(&create, Reply::Created(Err(CreateFault::Exists)));
    rig.run();
    rig.advance(millis(500));
    assert_eq!(opened(&rig).1.floor.sequence, 0);
    assert_eq!(created_starts(&rig), [1, 1]);
}

#[test]
fn an_overlap_with_ones_own_past_is_swept_and_tried_again() {
    let mut rig = Rig::with(settings(Retention::WorkQueue));
    rig.hold = Some(Box::new(creates));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let create = rig.take(creates);
    rig.hold = None;
    // A zombie's late create.
    let position = Position {
        ack_floor: 0,
        acked_at: 1_000,
        start: 1,
        delivered: 0,
    };
    rig.server.consumers.insert(name(OLD, 0), position);
    rig.answer(&create);
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
    assert!(!rig.server.consumers.contains_key(&name(OLD, 0)));
}

#[test]
fn an_overlap_with_a_stranger_is_reported_and_nothing_of_it_is_deleted() {
    let mut rig = Rig::with(settings(Retention::WorkQueue));
    rig.faults = Some(Box::new(|command| {
        let overlap = CreateFault::Overlap("taken by the consumer other_group".to_owned());
        creates(command).then_some(Reply::Created(Err(overlap)))
    }));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(10));
    assert!(rig.told(|change| matches!(change, Change::Trouble { detail, .. } if detail.contains("other_group"))));
    assert_eq!(rig.count(|command| matches!(command, Command::DeleteConsumer(..))), 0);
    let tries = rig.count(creates);
    assert!((20..=45).contains(&tries), "{tries}");
}

#[test]
fn an_overlap_with_a_higher_epoch_deletes_nothing() {
    let mut rig = Rig::with(settings(Retention::WorkQueue));
    rig.hold = Some(Box::new(creates));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let create = rig.take(creates);
    rig.hold = None;
    let position = Position {
        ack_floor: 0,
        acked_at: 1_000,
        start: 1,
        delivered: 0,
    };
    rig.server.consumers.insert(name(BUCKET_CREATED + 900_000, 0), position);
    rig.answer(&create);
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.count(deletes), 0);
}

#[test]
fn a_claim_doubted_while_the_listing_failed_can_still_be_confirmed_later() {
    let mut rig = after_release(Retention::Limits);
    rig.watching = false;
    rig.faults = Some(Box::new(|command| {
        matches!(command, Command::Survey(_)).then(|| Reply::Survey(Err(Fault("no answer".to_owned()))))
    }));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(400));
    rig.hold = Some(Box::new(confirms));
    // A hint that contradicts the claim makes it be read again, and the answer takes long.
    let absent = Entry {
        value: None,
        revision: Revision(9_000),
    };
    rig.step(Event::Seen(crate::engine::Seen::Claim(P, absent)));
    rig.advance(seconds(1));
    rig.faults = None;
    rig.hold = None;
    rig.run();
    rig.advance(seconds(5));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn an_answer_about_an_old_consumer_is_not_taken_for_one_about_the_own() {
    let mut rig = after_release(Retention::Limits);
    let second = name(OLD - 1, 0);
    let position = Position {
        ack_floor: 20,
        acked_at: 1_000,
        start: 1,
        delivered: 20,
    };
    rig.server.consumers.insert(second.clone(), position);
    rig.hold = Some(Box::new(inspects));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(500));
    let slow = rig.take(|command| matches!(command, Command::InspectConsumer(_, name) if *name == second));
    let failed = rig.take(inspects);
    rig.reply(&failed, Reply::Consumer(Err(Fault("no answer".to_owned()))));
    rig.hold = Some(Box::new(creates));
    rig.advance(millis(500));
    // The second round is through; a consumer of the own name is there and starts too late.
    let create = rig.take(creates);
    let Command::CreateConsumer(_, spec) = &create else {
        panic!()
    };
    let found = Position {
        ack_floor: 79,
        acked_at: 1_000,
        start: 80,
        delivered: 79,
    };
    rig.server.consumers.insert(spec.name.clone(), found);
    rig.server.names.insert(spec.name.clone());
    rig.hold = Some(Box::new(inspects));
    rig.reply(&create, Reply::Created(Err(CreateFault::Exists)));
    rig.answer(&slow);
    rig.hold = None;
    rig.run();
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
    assert_eq!(created_starts(&rig).last(), Some(&51));
}

#[test]
fn what_is_finished_above_the_floor_is_handed_to_the_lanes() {
    let mut rig = after_release(Retention::Limits);
    let mut known = marks(45);
    known.ranges.push(Range {
        low: 70,
        high: 72,
        time: 700,
    });
    rig.server.put_progress(P, progress(OLD, known));
    let rig = rig.started();
    assert_eq!(
        opened(&rig).1.ranges,
        [Range {
            low: 70,
            high: 72,
            time: 700
        }]
    );
}

#[test]
fn a_group_that_starts_late_in_the_stream_starts_there() {
    let mut rig = Rig::new();
    rig.server.start_sequence = 500;
    let rig = rig.started();
    assert_eq!(created_starts(&rig), [500]);
    assert_eq!(opened(&rig).1.floor.sequence, 499);
}

#[test]
fn a_listing_asked_for_before_the_win_is_not_used_after_it() {
    let surveys = |command: &Command| matches!(command, Command::Survey(_));
    let mut rig = Rig::new();
    rig.peer("b", 0);
    rig.server.put_assignment(assignment(1, &["a", "b", "b", "b"]));
    rig.hold = Some(Box::new(surveys));
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(100));
    // The claim is absent, so the consumers are listed; meanwhile the partition goes to b and comes back.
    let early = rig.take(surveys);
    let listing = rig.server.answer(&early);
    rig.server.put_assignment(assignment(2, &["b", "b", "b", "b"]));
    rig.run();
    let mut released = claim("b", "b-1", ClaimState::Released);
    released.token = FencingToken(OLD);
    rig.server.put_claim(P, Some(released));
    let position = Position {
        ack_floor: 50,
        acked_at: 1_000,
        start: 1,
        delivered: 50,
    };
    rig.server.consumers.insert(name(OLD, 0), position);
    rig.server.put_assignment(assignment(3, &["a", "b", "b", "b"]));
    rig.run();
    rig.advance(millis(100));
    rig.reply(&early, listing);
    rig.hold = None;
    rig.run();
    rig.advance(millis(500));
    assert!(!rig.server.consumers.contains_key(&name(OLD, 0)));
    assert_eq!(created_starts(&rig), [51]);
}

fn inspects(command: &Command) -> bool {
    of_p(command) && matches!(command, Command::InspectConsumer(..))
}

#[test]
fn a_consumer_that_nobody_answers_for_holds_nothing_up() {
    for retention in [Retention::Limits, Retention::Interest] {
        let mut rig = after_release(retention);
        rig.faults = Some(Box::new(|command| {
            inspects(command).then(|| Reply::Consumer(Err(Fault("timed out".to_owned()))))
        }));
        let rig = rig.started();
        assert_eq!(rig.count(inspects), 3);
        // Its ack floor is not known; what was saved is.
        assert_eq!(created_starts(&rig), [41]);
        assert!(!rig.server.consumers.contains_key(&name(OLD, 0)));
    }
}

#[test]
fn a_consumer_whose_creation_is_not_answered_is_left_for_another_name() {
    for retention in [Retention::Limits, Retention::Interest, Retention::WorkQueue] {
        let mut rig = after_release(retention);
        let first =
            |command: &Command| matches!(command, Command::CreateConsumer(_, spec) if spec.name.epoch.reopen == 0);
        rig.faults = Some(Box::new(move |command| {
            let unanswered = || Reply::Created(Err(CreateFault::Unknown("timed out".to_owned())));
            (of_p(command) && first(command)).then(unanswered)
        }));
        let rig = rig.started();
        let epoch = opened(&rig).0;
        assert_eq!(epoch.reopen, 1);
        assert_eq!(rig.count(|command| creates(command) && first(command)), 2);
        // It may have been made, on a server that is away: it is deleted before anything is delivered.
        let left = name(epoch.token.0, 0);
        let deletes_left = |command: &Command| matches!(command, Command::DeleteConsumer(_, name) if *name == left);
        let order = rig.order(0, &[&deletes_left, &opens]);
        assert!(order.is_sorted(), "{order:?}");
    }
}
