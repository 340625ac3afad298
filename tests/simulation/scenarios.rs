//! What was reported of systems of this kind, where a simulation shows it better than a server can: the moment can be chosen.

use jetring::engine::MemberPhase;

use crate::course::{Batches, Course, Kind, Step};
use crate::scenario::{Scenario, assigned_to, claimed_by, is_released};

const KINDS: [Kind; 3] = [Kind::Limits, Kind::WorkQueue, Kind::Interest];

/// A group that has settled and has handled something.
fn settled(kind: Kind, members: usize, partitions: u16) -> Scenario {
    let mut scenario = Scenario::new(kind, members, partitions);
    scenario.join(0..members).await_settled(10);
    scenario.publish(40).await_handled(10);
    scenario
}

#[test]
fn s08_the_planner_steps_down_while_another_is_removed_and_a_third_joins() {
    for kind in KINDS {
        let mut scenario = Scenario::new(kind, 4, 6);
        scenario.join(0..3).await_settled(10).publish(30);
        // The oldest plans. It leaves; the one that would plan next dies in the same moment; a newcomer is not known yet.
        scenario.leave(0).kill(1).join([3]).publish(30);
        scenario.await_settled(20).await_handled(10).end();
    }
}

#[test]
fn s10_the_taker_dies_between_the_release_and_its_claim() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.world.slots[1].weight = 1;
        scenario.kill(1).await_settled(20).publish(20);
        scenario.join([1]);
        scenario.await_that("one is released", 10, |world| {
            assigned_to(world, 1)
                .iter()
                .any(|partition| is_released(world, *partition))
        });
        scenario.kill(1).publish(20).await_settled(20).await_handled(10).end();
    }
}

#[test]
fn s10_the_taker_dies_with_the_claim_in_its_hands() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.kill(1).await_settled(20).publish(20);
        scenario.join([1]);
        scenario.await_that("one is claimed", 10, |world| {
            assigned_to(world, 1)
                .iter()
                .any(|partition| claimed_by(world, *partition, 1))
        });
        assert_eq!(
            scenario.tenures().values().filter(|(slot, _)| *slot == 1).count(),
            0,
            "it serves already"
        );
        scenario.kill(1).publish(20).await_settled(20).await_handled(10).end();
    }
}

#[test]
fn s10_the_owner_dies_between_the_assignment_and_its_release() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.kill(1).await_settled(20).publish(20);
        scenario.join([1]);
        scenario.await_that("some are assigned to the newcomer", 10, |world| {
            !assigned_to(world, 1).is_empty()
        });
        assert!(
            assigned_to(&scenario.world, 1)
                .iter()
                .all(|partition| claimed_by(&scenario.world, *partition, 0))
        );
        scenario.kill(0).publish(20).await_settled(20).await_handled(10).end();
    }
}

#[test]
fn s11_one_that_flaps_moves_only_its_own() {
    let mut scenario = settled(Kind::Limits, 4, 8);
    let before = scenario.tenures();
    for _ in 0..5 {
        scenario.kill(3).pass(3_000).publish(8);
        scenario.join([3]).pass(3_000).publish(8);
    }
    scenario.await_settled(20);
    let after = scenario.tenures();
    // What the others had all along they have still, in the same tenure: nobody paused for the one that flaps.
    let stayed = before.iter().filter(|(_, (slot, _))| *slot != 3);
    for (partition, tenure) in stayed {
        assert_eq!(&after[partition], tenure, "partition {partition}");
    }
    scenario.await_handled(10).end();
}

#[test]
fn s14_old_and_new_members_overlap_in_a_roll() {
    for kind in KINDS {
        let mut scenario = Scenario::new(kind, 6, 6);
        scenario.join(0..3).await_settled(10).publish(40);
        for (old, new) in [(0, 3), (1, 4), (2, 5)] {
            scenario.join([new]).publish(10).pass(250).leave(old).publish(10);
        }
        scenario.await_settled(20).await_handled(10);
        assert_eq!(scenario.repeated(), 0, "nobody died");
        scenario.end();
    }
}

#[test]
fn s14_an_owner_that_sleeps_through_its_replacement_learns_that_it_has_lost() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        let theirs = scenario.tenures();
        scenario.freeze(0).publish(20).pass(15_000);
        let taken = scenario.tenures();
        assert!(theirs.keys().all(|partition| taken[partition].1 >= theirs[partition].1));
        scenario.await_handled(10).thaw(0);
        scenario.await_that("it has rejoined", 20, |world| {
            let member = world.slots[0].member.as_ref();
            member.is_some_and(|member| member.junction.engine().phase() == MemberPhase::Active)
        });
        scenario.publish(20).await_settled(20).await_handled(10).end();
    }
}

#[test]
fn s19_dates_that_jump_have_no_effect() {
    for kind in KINDS {
        let mut scenario = settled(kind, 3, 6);
        let before = scenario.tenures();
        for seconds in [300, -600, 3_600, -20, 86_400] {
            scenario.step(Step::JumpDate(seconds)).publish(20).pass(5_000);
        }
        assert_eq!(scenario.tenures(), before, "nobody lost anything");
        assert_eq!((scenario.repeated(), scenario.world.check.unfinished()), (0, 0));
        // Nor while partitions change hands.
        scenario.step(Step::JumpDate(-90_000)).leave(0).publish(20);
        scenario.await_settled(20).await_handled(10);
        assert_eq!(scenario.repeated(), 0);
        scenario.end();
    }
}

#[test]
fn s30_a_leader_change_in_the_middle_of_a_move_leaves_every_filter_what_it_was() {
    for kind in KINDS {
        let mut scenario = Scenario::new(kind, 3, 6);
        scenario.join(0..2).await_settled(10).publish(30);
        scenario.join([2]);
        scenario.await_that("one is claimed", 10, |world| {
            assigned_to(world, 2)
                .iter()
                .any(|partition| claimed_by(world, *partition, 2))
        });
        scenario.step(Step::ChangeLeader { stuck: None }).publish(30);
        scenario.await_settled(30).await_handled(30);
        for (name, consumer) in &scenario.world.server.stream.consumers {
            assert_eq!(consumer.filter, format!("t.{}.>", name.partition));
        }
        scenario.end();
    }
}

#[test]
fn s32_an_interest_stream_keeps_what_is_unfinished_over_every_swap() {
    let mut scenario = Scenario::new(Kind::Interest, 3, 4);
    scenario.join([0]).await_settled(10).publish(20);
    // Every change of hands comes while messages wait.
    scenario.join([1]).publish(20).pass(150).kill(0).publish(20);
    scenario.join([2]).publish(20).pass(4_500).leave(1).publish(20);
    scenario.await_settled(20).await_handled(10).end();
}

#[test]
fn s33_consumers_deleted_behind_their_owners_are_opened_again() {
    for kind in [Kind::Limits, Kind::WorkQueue] {
        let mut scenario = settled(kind, 2, 4);
        for number in 0..4 {
            scenario.step(Step::DeleteConsumer { number, quietly: true }).publish(8);
        }
        scenario.await_handled(40);
        assert_eq!(scenario.repeated(), 0, "the owner knows what is finished");
        scenario.end();
    }
}

#[test]
fn s35_a_purge_lets_new_messages_flow() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.publish(40).step(Step::Purge { of: None }).publish(20);
        scenario.await_handled(20);
        scenario.publish(40).step(Step::Purge { of: Some(1) }).publish(20);
        scenario.await_handled(20).end();
    }
}

#[test]
fn s36_consumers_that_a_leader_change_leaves_stuck_are_replaced() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.step(Step::ChangeLeader { stuck: Some(1) }).publish(20);
        scenario.await_handled(30);
        assert_eq!(scenario.repeated(), 0);
        scenario.end();
    }
}

#[test]
fn s38_a_consumer_that_nobody_asks_is_asked_again() {
    for kind in KINDS {
        let mut scenario = settled(kind, 2, 4);
        scenario.lose_pulls(0).lose_pulls(1).publish(20);
        scenario.await_handled(20).end();
    }
}

#[test]
fn one_that_is_cut_off_is_replaced_and_comes_back() {
    for kind in KINDS {
        let mut scenario = settled(kind, 3, 6);
        scenario.cut(1).publish(30);
        scenario.await_that("the others have its partitions", 20, |world| {
            assigned_to(world, 1).is_empty()
        });
        scenario.await_handled(20).heal(1);
        scenario.await_settled(30).publish(30).await_handled(10).end();
    }
}

#[test]
fn all_observers_die_at_once() {
    for kind in KINDS {
        let mut scenario = settled(kind, 5, 8);
        // The three oldest watch everybody; the others step in.
        scenario.kill(0).kill(1).kill(2).publish(40);
        scenario.await_settled(30).await_handled(10).end();
    }
}

#[test]
fn s29_a_key_that_appears_with_a_backlog_is_handled_from_its_first_message() {
    let course = Course {
        by_key: true,
        ..Course::quiet(Kind::Limits, 2, 4)
    };
    let mut scenario = Scenario::of(course);
    scenario.publish(40).join(0..2).await_handled(20);
    // A new key, and one that went with its messages and is back.
    for _ in 0..10 {
        scenario.step(Step::Publish(77));
    }
    scenario.await_handled(10).step(Step::Purge { of: Some(1) });
    scenario.leave(0).await_settled(20).publish(40).await_handled(10).end();
}

#[test]
fn messages_that_are_given_up_let_their_keys_go_on() {
    for kind in KINDS {
        let course = Course {
            attempts: 3,
            rejects: 10,
            failures: 30,
            batches: Some(Batches::OfPartitions),
            ..Course::quiet(kind, 2, 4)
        };
        let mut scenario = Scenario::of(course);
        scenario.join(0..2).await_settled(10);
        scenario.step(Step::RefuseDeadLetters(5_000)).publish(60).pass(2_000);
        assert!(scenario.world.check.unfinished() > 0, "a key waits for its dead letter");
        scenario.kill(0).await_handled(60);
        assert!(scenario.world.check.dead_letters > 0);
        scenario.end();
    }
}

#[test]
fn the_next_messages_of_a_stream_that_has_lost_its_newest_are_handled() {
    for kind in [Kind::Limits, Kind::WorkQueue] {
        let mut scenario = settled(kind, 2, 4);
        let (messages, away) = (10, 500);
        scenario.step(Step::LoseTail { messages, away }).publish(5).pass(10_000);
        scenario.publish(20).await_handled(20);
        // And again, when its owner is another one than before.
        scenario.leave(0).await_settled(20);
        scenario
            .step(Step::LoseTail { messages, away })
            .publish(20)
            .await_handled(20);
        scenario.kill(1).step(Step::LoseTail { messages, away }).publish(20);
        scenario.join([0]).await_handled(30).end();
    }
}

#[test]
fn a_stream_made_anew_ends_every_member() {
    for kind in KINDS {
        let mut scenario = settled(kind, 3, 4);
        let handled = scenario.world.check.handled;
        scenario.step(Step::ReplaceStream);
        if kind != Kind::Interest {
            scenario.publish(20);
        }
        scenario.await_that("everybody has ended", 30, |world| {
            world.slots.iter().all(|slot| slot.member.is_none())
        });
        assert_eq!(
            scenario.world.check.handled, handled,
            "whose messages they are is for people to say"
        );
    }
}

#[test]
fn the_bucket_is_made_anew_by_those_that_used_it() {
    for kind in KINDS {
        let mut scenario = settled(kind, 3, 6);
        let before = scenario.tenures();
        scenario.publish(20).step(Step::DeleteBucket).publish(20);
        // Fencing tokens grow over a bucket's end.
        let partitions = before.keys().copied().collect::<Vec<_>>();
        for partition in partitions {
            let former = before[&partition].1;
            scenario.await_that("its next tenure begins", 40, move |world| {
                let token = world.bucket.progress(partition).value.map(|record| record.token);
                token.is_some_and(|token| token > former)
            });
        }
        scenario.await_settled(10).await_handled(20);
        scenario.end();
    }
}
