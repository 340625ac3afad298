//! Who is declared dead, by whom, and on what evidence.

use super::rig::{Rig, assignment, claim, id, millis, record, seconds};
use crate::engine::{Change, Command, Event, Reply, Seen, WatchScope, WriteFault};
use crate::ids::{Partition, Revision};
use crate::records::{ClaimState, Entry, MemberState};

fn kills(member: &'static str) -> impl Fn(&Command) -> bool {
    move |command| {
        matches!(command, Command::WriteMember(_, other, record, _)
            if *other == id(member) && record.state == MemberState::Dead)
    }
}

/// `a` beside `b`, which holds partitions 2 and 3.
fn beside() -> Rig {
    let mut rig = Rig::new();
    rig.peer("b", 0);
    for partition in [2, 3] {
        rig.server
            .put_claim(Partition(partition), Some(claim("b", "b-1", ClaimState::Held)));
    }
    rig.server.put_assignment(assignment(1, &["a", "a", "b", "b"]));
    rig.step(Event::Start);
    rig.run();
    rig.advance(seconds(2));
    assert_eq!(rig.serving_count(), 2);
    rig
}

#[test]
fn a_member_silent_for_a_session_timeout_is_declared_dead_at_the_revision_last_seen() {
    let mut rig = beside();
    rig.beating.clear();
    let seen = rig.server.member(&id("b")).revision;
    rig.advance(millis(2_900));
    assert_eq!(rig.count(kills("b")), 0);
    rig.advance(millis(1_200));
    assert_eq!(rig.count(kills("b")), 1);
    let at_seen = |command: &Command| matches!(command, Command::WriteMember(_, _, _, at) if *at == seen);
    assert_eq!(rig.count(|command| kills("b")(command) && at_seen(command)), 1);
    assert!(rig.told(|change| matches!(change, Change::DeclaredDead { .. })));
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_stalled_watch_alone_costs_nobody_a_partition() {
    let mut rig = beside();
    rig.watching = false;
    let claims = rig.server.claims.clone();
    rig.advance(seconds(60));
    let tries = rig.count(kills("b"));
    assert!((5..=15).contains(&tries), "{tries}");
    assert_eq!(rig.server.claims, claims);
    assert_eq!(rig.server.member(&id("b")).value.unwrap().state, MemberState::Active);
    // And it tries to get its watch back, in time but not hot.
    let restarts = rig.count(|command| matches!(command, Command::Watch(_)));
    assert!((10..=32).contains(&restarts), "{restarts}");
}

#[test]
fn a_death_write_without_an_answer_is_looked_up_and_not_repeated_hot() {
    let mut rig = beside();
    rig.beating.clear();
    rig.faults = Some(Box::new(|command| {
        kills("b")(command).then(|| Reply::Written(Err(WriteFault::Unknown("no leader".to_owned()))))
    }));
    rig.advance(seconds(60));
    let tries = rig.count(kills("b"));
    assert!((5..=60).contains(&tries), "{tries}");
    rig.faults = None;
    rig.advance(seconds(6));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn a_late_answer_to_a_death_write_does_not_bury_the_next_incarnation() {
    let mut rig = beside();
    rig.beating.clear();
    rig.hold = Some(Box::new(kills("b")));
    rig.advance(seconds(5));
    let kill = rig.take(kills("b"));
    let reply = rig.server.answer(&kill);
    rig.server
        .put_member(&id("b"), Some(record("b-2", 99, MemberState::Active)));
    rig.run();
    rig.beating.insert(id("b"));
    rig.reply(&kill, reply);
    let from = rig.log.len();
    rig.advance(millis(900));
    // The new b is alive: nothing is planned without it.
    assert_eq!(
        rig.count_since(from, |command| matches!(command, Command::WriteAssignment(..))),
        0
    );
}

#[test]
fn the_dead_are_not_declared_dead_again() {
    let mut rig = beside();
    rig.beating.clear();
    rig.advance(seconds(60));
    assert_eq!(rig.count(kills("b")), 1);
}

#[test]
fn old_hints_and_repeated_ones_change_nothing() {
    let mut rig = beside();
    let stale = Entry {
        value: Some(record("b-0", 0, MemberState::Dead)),
        revision: Revision(0),
    };
    rig.step(Event::Seen(Seen::Member(id("b"), stale)));
    let newest = rig.server.member(&id("b"));
    rig.advance(seconds(1));
    rig.step(Event::Seen(Seen::Member(id("b"), newest)));
    let from = rig.log.len();
    rig.advance(seconds(2));
    assert_eq!(rig.count_since(from, kills("b")), 0);
}

#[test]
fn the_three_oldest_watch_everybody_and_everybody_watches_them() {
    let mut rig = Rig::new();
    for (joined, name) in ["b", "c", "d", "e"].into_iter().enumerate() {
        rig.peer(name, joined as u64);
    }
    rig.server.put_assignment(assignment(1, &["b", "c", "d", "e"]));
    rig.step(Event::Start);
    rig.run();
    let scope = |rig: &Rig| {
        rig.log.iter().rev().find_map(|(_, command)| match command {
            Command::Watch(scope) => Some(scope.clone()),
            _ => None,
        })
    };
    let watched = ["a", "b", "c", "d"].map(id).to_vec();
    assert_eq!(scope(&rig), Some(WatchScope::Members(watched)));
    // It does not declare one dead that it does not watch.
    rig.beating.remove(&id("e"));
    rig.advance(seconds(10));
    assert_eq!(rig.count(kills("e")), 0);
    // But the seniors, when all of them fall silent, and the next one then.
    rig.beating.clear();
    rig.advance(seconds(12));
    for name in ["b", "c", "d", "e"] {
        assert_eq!(
            rig.server.member(&id(name)).value.unwrap().state,
            MemberState::Dead,
            "{name}"
        );
    }
    assert_eq!(scope(&rig), Some(WatchScope::AllMembers));
}

#[test]
fn many_that_died_together_are_given_up_together() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..30).map(|number| format!("old-{number:02}")).collect();
    for (name, age) in names.iter().zip(1..) {
        rig.peer(name, age);
    }
    rig.beating.clear();
    rig.step(Event::Start);
    rig.run();
    rig.advance(millis(3_900));
    let dead = |change: &Change| matches!(change, Change::DeclaredDead { .. });
    assert!(!rig.told(dead));
    rig.advance(millis(600));
    let buried = rig.count(|command| matches!(command, Command::Notify(change) if dead(change)));
    assert_eq!(buried, 30);
    rig.advance(seconds(1));
    assert_eq!(rig.serving_count(), 4);
}

#[test]
fn what_is_left_of_members_that_are_gone_is_removed_in_the_end_by_the_oldest() {
    let purges = |command: &Command| matches!(command, Command::PurgeMember(_, member, _) if *member != id("a"));
    for oldest in [true, false] {
        let mut rig = Rig::new();
        if !oldest {
            rig.peer("b", 1);
        }
        rig.server
            .put_member(&id("dead"), Some(record("dead-1", 1, MemberState::Dead)));
        rig.server
            .put_member(&id("left"), Some(record("left-1", 1, MemberState::Leaving)));
        rig.server.put_member(&id("left"), None);
        rig.step(Event::Start);
        rig.run();
        // Ten session timeouts, and the listing after them.
        rig.advance(seconds(39));
        assert_eq!(rig.count(purges), 0);
        rig.advance(seconds(61));
        if oldest {
            // The dead one is written over by a tombstone first, which is kept for as long.
            assert_eq!(rig.count(purges), 3);
            let left: Vec<_> = rig.server.members.keys().cloned().collect();
            assert_eq!(left, [id("a")]);
        } else {
            assert_eq!(rig.count(purges), 0);
        }
        // What it removes is older than its own record, and says nothing about the bucket's age.
        assert!(!rig.told(|change| matches!(change, Change::Fenced { .. })));
    }
}
