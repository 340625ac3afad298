//! Who plans, when, and what becomes of it.

use super::rig::{Rig, assignment, id, millis, record, seconds};
use crate::engine::{Command, Event, Reply, WriteFault};
use crate::ids::Partition;
use crate::records::MemberState;
use crate::time::Time;

fn plans(command: &Command) -> bool {
    matches!(command, Command::WriteAssignment(..))
}

fn planned_at(rig: &Rig, from: usize) -> Option<Time> {
    rig.log[from..]
        .iter()
        .find(|(_, command)| plans(command))
        .map(|(at, _)| *at)
}

/// `a` beside the peers, oldest first; `a` is younger than all of them.
fn beside(peers: &[&str]) -> Rig {
    let mut rig = Rig::new();
    for (joined, name) in peers.iter().enumerate() {
        rig.peer(name, joined as u64);
    }
    let mut owners = peers.to_vec();
    owners.extend(["a"; 4]);
    rig.server.put_assignment(assignment(1, &owners[..4]));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(1));
    rig
}

#[test]
fn the_oldest_plans_after_a_quiet_time() {
    let mut rig = Rig::serving();
    rig.peer("b", 1_000);
    let joined = rig.now;
    let from = rig.log.len();
    rig.advance(seconds(1));
    let at = planned_at(&rig, from).unwrap();
    assert!(
        at.since(joined) >= millis(200) && at.since(joined) < millis(250),
        "{:?}",
        at.since(joined)
    );
    let owners = rig.server.assignment[&()].value.clone().unwrap();
    let mine = (0..4).filter(|p| owners.owner(Partition(*p)) == Some(&id("a"))).count();
    assert_eq!(mine, 2);
}

#[test]
fn the_next_oldest_plans_only_when_the_oldest_does_not() {
    let mut rig = beside(&["b"]);
    rig.peer("c", 1_000);
    let joined = rig.now;
    let from = rig.log.len();
    rig.advance(seconds(4));
    assert_eq!(planned_at(&rig, from), None);
    rig.advance(seconds(1));
    let at = planned_at(&rig, from).unwrap();
    assert!(
        at.since(joined) >= millis(4_200) && at.since(joined) < millis(4_300),
        "{:?}",
        at.since(joined)
    );
}

#[test]
fn a_member_beyond_the_oldest_three_never_plans() {
    let mut rig = beside(&["b", "c", "d"]);
    rig.peer("e", 1_000);
    let from = rig.log.len();
    rig.advance(seconds(60));
    assert_eq!(planned_at(&rig, from), None);
}

#[test]
fn quiet_is_waited_for_anew_with_every_change_but_not_for_ever() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    let began = rig.now;
    for joiner in 0..20 {
        rig.peer(&format!("m{joiner}"), 1_000 + joiner);
        rig.run();
        rig.advance(millis(150));
    }
    let at = planned_at(&rig, from).unwrap();
    assert!(
        at.since(began) >= millis(1_000) && at.since(began) < millis(1_100),
        "{:?}",
        at.since(began)
    );
    let written = rig.count_since(from, plans);
    assert!(written <= 4, "{written}");
}

#[test]
fn one_that_comes_and_goes_within_the_quiet_time_moves_nothing() {
    let mut rig = Rig::serving();
    let from = rig.log.len();
    rig.peer("b", 1_000);
    rig.run();
    rig.advance(millis(100));
    rig.beating.clear();
    rig.server.put_member(&id("b"), None);
    rig.run();
    rig.advance(seconds(5));
    assert_eq!(planned_at(&rig, from), None);
}

#[test]
fn a_plan_that_comes_second_is_made_anew_from_what_stands() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(plans));
    rig.peer("b", 1_000);
    rig.advance(seconds(1));
    let plan = rig.take(plans);
    rig.watching = false;
    rig.server.put_assignment(assignment(7, &["a", "b", "a", "b"]));
    rig.hold = None;
    rig.answer(&plan);
    rig.run();
    rig.advance(seconds(1));
    // What stands is for the same members: it is taken as it is.
    assert_eq!(rig.server.assignment[&()].value.clone().unwrap().generation.0, 7);
    assert_eq!(rig.engine.generation().unwrap().0, 7);
}

#[test]
fn a_plan_that_cannot_be_written_is_not_tried_hot() {
    let mut rig = Rig::serving();
    rig.faults = Some(Box::new(|command| {
        plans(command).then(|| Reply::Written(Err(WriteFault::Unknown("no leader".to_owned()))))
    }));
    rig.peer("b", 1_000);
    let from = rig.log.len();
    rig.advance(seconds(10));
    let tries = rig.count_since(from, plans);
    assert!((20..=42).contains(&tries), "{tries}");
    rig.faults = None;
    rig.advance(seconds(1));
    assert_eq!(rig.engine.generation().unwrap().0, 2);
}

#[test]
fn a_plan_is_not_lost_with_its_reply() {
    let mut rig = Rig::serving();
    rig.hold = Some(Box::new(plans));
    rig.watching = false;
    rig.peer("b", 1_000);
    rig.advance(seconds(21));
    let plan = rig.take(plans);
    rig.server.answer(&plan);
    rig.lose(&plan);
    rig.advance(seconds(1));
    assert_eq!(rig.engine.generation().unwrap().0, 2);
    assert_eq!(rig.count(plans), 2);
}

#[test]
fn the_dead_and_the_leaving_get_nothing() {
    let mut rig = Rig::serving();
    rig.server
        .put_member(&id("b"), Some(record("b-1", 900, MemberState::Dead)));
    rig.server
        .put_member(&id("c"), Some(record("c-1", 901, MemberState::Leaving)));
    rig.beating.insert(id("c"));
    let from = rig.log.len();
    rig.advance(seconds(10));
    assert_eq!(planned_at(&rig, from), None);
}
