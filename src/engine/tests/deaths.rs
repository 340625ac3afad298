//! Who is blamed for a member's death, and when it is taken back.

use std::collections::BTreeMap;

use super::rig::{Rig, assignment, claim, id, millis, record, seconds, settings};
use super::server::{BUCKET_CREATED, filter};
use crate::engine::{Command, Event, Fault, Position, Reply, Retention, WriteFault};
use crate::ids::{Epoch, FencingToken, GroupName, Incarnation, Partition};
use crate::lanes::{Death, Mark, Marks};
use crate::names::ConsumerName;
use crate::records::{ClaimState, MemberState, ProgressRecord};

const P: Partition = Partition(0);

fn name(token: FencingToken, reopen: u32) -> ConsumerName {
    ConsumerName::new(&GroupName::new("g").unwrap(), P, &filter(P), Epoch { token, reopen })
}

fn death(incarnation: &str, alone: bool) -> Death {
    Death {
        incarnation: Incarnation(incarnation.to_owned()),
        alone,
    }
}

/// How the former owner, `b` in the incarnation `b-1`, is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Former {
    Released,
    Dead,
    /// Another process bears its id.
    Restarted,
    /// The same process, in a later incarnation.
    Rejoined,
    /// Without a record.
    Absent,
}

/// Partition 0 was served by `b` until it ended like that; its record says that 41 and 43 are started.
fn after(former: Former, retention: Retention) -> Rig {
    let mut rig = Rig::with(settings(retention));
    let state = match former {
        Former::Released => ClaimState::Released,
        _ => ClaimState::Held,
    };
    let mut held = claim("b", "b-1", state);
    held.token = FencingToken(BUCKET_CREATED + 500);
    let revision = rig.server.put_claim(P, Some(held.clone()));
    let token = held.token_at(revision, BUCKET_CREATED);
    let mut marks = Marks::at(Mark {
        sequence: 40,
        time: 400,
    });
    marks.started.extend([41, 43]);
    let filters = BTreeMap::from([(filter(P), marks)]);
    rig.server.put_progress(P, ProgressRecord { token, filters });
    let position = Position {
        ack_floor: 40,
        acked_at: 1_000,
        start: 1,
        delivered: 60,
    };
    rig.server.consumers.insert(name(token, 0), position);
    rig.server.put_assignment(assignment(1, &["a", "a", "a", "a"]));
    let found = match former {
        Former::Released | Former::Absent => None,
        Former::Dead => Some(record("b-1", 1, MemberState::Dead)),
        Former::Restarted => Some(record("c-1", 1, MemberState::Active)),
        Former::Rejoined => Some(record("b-2", 1, MemberState::Active)),
    };
    if let Some(found) = found {
        rig.server.put_member(&id("b"), Some(found));
    }
    rig
}

fn started(mut rig: Rig) -> Rig {
    if rig.server.members.contains_key(&id("b")) {
        rig.beating.insert(id("b"));
    }
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(6));
    rig
}

/// The marks and the bound of care that the lanes were opened with.
fn opened(rig: &Rig) -> (Marks, u64) {
    let open = rig.log.iter().rev().find_map(|(_, command)| match command {
        Command::Open {
            partition: P,
            marks,
            careful_until,
            ..
        } => Some((marks.clone(), *careful_until)),
        _ => None,
    });
    open.unwrap()
}

fn saved(rig: &Rig) -> Marks {
    rig.server.progress[&P].value.clone().unwrap().filters[&filter(P)].clone()
}

fn saves(command: &Command) -> bool {
    matches!(command, Command::WriteProgress(_, P, ..))
}

fn absolves(command: &Command) -> bool {
    matches!(command, Command::Absolve(P, _))
}

fn recorded(command: &Command) -> bool {
    matches!(command, Command::Recorded(P, ..))
}

/// The lanes ask for this to be written before they go on.
fn urgent(floor: u64, changes: u64) -> Event {
    let marks = Marks::at(Mark {
        sequence: floor,
        time: 0,
    });
    Event::Checkpoint {
        partition: P,
        marks: BTreeMap::from([(filter(P), marks)]),
        changes,
        urgent: true,
    }
}

#[test]
fn only_a_death_is_blamed_on_what_was_started() {
    for (former, blamed) in [
        (Former::Released, false),
        (Former::Dead, true),
        (Former::Restarted, true),
        (Former::Rejoined, false),
        (Former::Absent, false),
    ] {
        for retention in [Retention::Limits, Retention::WorkQueue] {
            let rig = started(after(former, retention));
            let (marks, careful_until) = opened(&rig);
            assert_eq!(marks.started.len(), 0, "nothing of it runs any more");
            let expected = if blamed {
                BTreeMap::from([41, 43].map(|sequence| (sequence, vec![death("b-1", false)])))
            } else {
                BTreeMap::new()
            };
            assert_eq!(marks.deaths, expected, "{former:?}");
            assert_eq!(saved(&rig).deaths, expected, "{former:?}");
            // What it was given is what it can have begun with.
            assert_eq!(careful_until, if blamed { 60 } else { 0 }, "{former:?}");
        }
    }
}

#[test]
fn a_message_that_ran_alone_is_blamed_as_such() {
    let mut rig = after(Former::Dead, Retention::Limits);
    let mut record = rig.server.progress[&P].value.clone().unwrap();
    let marks = record.filters.get_mut(&filter(P)).unwrap();
    marks.started.remove(&43);
    marks.alone = true;
    rig.server.put_progress(P, record);
    let rig = started(rig);
    assert_eq!(opened(&rig).0.deaths, BTreeMap::from([(41, vec![death("b-1", true)])]));
    assert!(!saved(&rig).alone);
}

#[test]
fn a_record_by_another_than_the_dead_is_not_held_against_it() {
    // Whoever died had won the claim and nothing more: what is started there was started by somebody before.
    let mut rig = after(Former::Dead, Retention::Limits);
    let mut record = rig.server.progress[&P].value.clone().unwrap();
    record.token.0 -= 1;
    rig.server.put_progress(P, record);
    let rig = started(rig);
    let (marks, careful_until) = opened(&rig);
    assert_eq!((marks.deaths.len(), marks.started.len()), (0, 0));
    assert_eq!(careful_until, 60);
}

#[test]
fn a_death_is_counted_once_even_if_the_record_is_closed_twice() {
    for landed in [true, false] {
        let mut rig = after(Former::Dead, Retention::Limits);
        rig.hold = Some(Box::new(saves));
        rig.step(Event::Start);
        rig.run();
        rig.advance(millis(900));
        let save = rig.take(saves);
        if landed {
            rig.server.answer(&save);
        }
        rig.hold = None;
        rig.reply(&save, Reply::Written(Err(WriteFault::Unknown("no leader".to_owned()))));
        rig.advance(seconds(3));
        assert_eq!(opened(&rig).0.deaths[&41], [death("b-1", false)]);
    }
}

#[test]
fn where_the_consumer_of_the_dead_does_not_tell_how_far_it_came_the_whole_stream_is_suspicious() {
    for retention in [Retention::Limits, Retention::WorkQueue] {
        // It is gone.
        let mut rig = after(Former::Dead, retention);
        rig.server.consumers.clear();
        let rig = started(rig);
        assert_eq!(opened(&rig).1, rig.server.last_sequence);
        // It had been re-opened, and delivers from the floor again.
        let mut rig = after(Former::Dead, retention);
        let token = rig.server.progress[&P].value.as_ref().unwrap().token;
        let position = rig.server.consumers[&name(token, 0)];
        rig.server.consumers.insert(name(token, 1), position);
        let rig = started(rig);
        assert_eq!(opened(&rig).1, rig.server.last_sequence);
        // It goes between the listing and the question.
        let mut rig = after(Former::Dead, retention);
        rig.faults = Some(Box::new(|command| {
            matches!(command, Command::InspectConsumer(..)).then_some(Reply::Consumer(Ok(None)))
        }));
        let rig = started(rig);
        assert_eq!(opened(&rig).1, rig.server.last_sequence);
    }
}

#[test]
fn a_process_that_turns_out_to_live_is_no_longer_held_against_anybody() {
    let mut rig = started(after(Former::Dead, Retention::Limits));
    assert_eq!(rig.count(absolves), 0);
    // A late hint of what it was before.
    rig.server
        .put_member(&id("b"), Some(record("b-1", 1, MemberState::Active)));
    rig.run();
    assert_eq!(rig.count(absolves), 0, "an incarnation that is dead never rises again");
    rig.server
        .put_member(&id("b"), Some(record("b-2", 1, MemberState::Active)));
    rig.run();
    assert_eq!(rig.count(absolves), 1);
    rig.advance(seconds(5));
    assert_eq!(rig.count(absolves), 1, "once is enough");
}

#[test]
fn a_member_that_opens_a_partition_takes_back_what_it_knows_to_be_wrong() {
    let mut rig = after(Former::Released, Retention::Limits);
    let mut old = rig.server.progress[&P].value.clone().unwrap();
    let marks = old.filters.get_mut(&filter(P)).unwrap();
    marks.started.clear();
    marks
        .deaths
        .insert(41, vec![death("b-1", false), death("d-1", true), death("d-3", true)]);
    rig.server.put_progress(P, old);
    rig.server
        .put_member(&id("d"), Some(record("d-2", 1, MemberState::Active)));
    let rig = started(rig);
    assert_eq!(
        saved(&rig).deaths,
        BTreeMap::from([(41, vec![death("b-1", false), death("d-3", true)])])
    );
}

#[test]
fn a_fenced_member_that_comes_back_blames_nothing_of_its_own() {
    let mut rig = Rig::serving();
    let mut record = rig.server.progress[&P].value.clone().unwrap();
    record.filters.get_mut(&filter(P)).unwrap().started.insert(7);
    rig.server.put_progress(P, record);
    rig.now = rig.now + seconds(60);
    rig.step(Event::Wake);
    rig.run();
    rig.advance(seconds(5));
    assert_eq!(rig.engine.incarnation().0, "seed-2");
    assert_eq!(rig.serving_count(), 4);
    let (marks, careful_until) = opened(&rig);
    assert_eq!((marks.deaths.len(), marks.started.len(), careful_until), (0, 0, 0));
}

#[test]
fn an_urgent_checkpoint_is_told_when_it_is_confirmed() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(saves));
    rig.step(urgent(10, 5));
    let first = rig.take(saves);
    // What comes while a write is under way is written right after it.
    rig.step(urgent(20, 8));
    assert_eq!((rig.count(recorded), rig.waiting.len()), (0, 0));
    rig.answer(&first);
    assert_eq!(rig.log.iter().filter(|(_, c)| recorded(c)).count(), 1);
    let second = rig.take(saves);
    rig.answer(&second);
    let told: Vec<u64> = rig
        .log
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Recorded(P, _, changes) => Some(*changes),
            _ => None,
        })
        .collect();
    assert_eq!(told, [5, 8]);
    assert_eq!(saved(&rig).floor.sequence, 20);
    // What the record holds already is not written again.
    rig.step(urgent(20, 9));
    assert_eq!((rig.count(recorded), rig.waiting.len()), (3, 0));
}

#[test]
fn an_urgent_checkpoint_is_tried_until_it_is_confirmed_and_not_hot() {
    for fault in [WriteFault::Conflict, WriteFault::Unknown("no leader".to_owned())] {
        let mut rig = Rig::serving();
        let refused = fault.clone();
        rig.faults = Some(Box::new(move |command| {
            saves(command).then(|| Reply::Written(Err(refused.clone())))
        }));
        let from = rig.log.len();
        rig.step(urgent(10, 5));
        rig.run();
        rig.advance(seconds(10));
        let tries = rig.count_since(from, saves);
        assert!((10..=45).contains(&tries), "{tries} for {fault:?}");
        assert_eq!(rig.count(recorded), 0);
        rig.faults = None;
        rig.advance(seconds(1));
        assert_eq!((rig.count(recorded), saved(&rig).floor.sequence), (1, 10));
        let from = rig.log.len();
        rig.advance(seconds(10));
        assert_eq!(rig.count_since(from, saves), 0);
    }
}

#[test]
fn an_urgent_checkpoint_survives_a_read_that_fails() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(saves));
    rig.step(urgent(10, 5));
    let save = rig.take(saves);
    // It lands, and nobody hears of it.
    rig.server.answer(&save);
    rig.reply(&save, Reply::Written(Err(WriteFault::Conflict)));
    rig.hold = None;
    let read = rig.take(|command| matches!(command, Command::ReadProgress(..)));
    rig.reply(&read, Reply::Progress(Err(Fault("no answer".to_owned()))));
    rig.advance(seconds(2));
    assert_eq!(rig.count(recorded), 1);
}
