//! Entering a group, sharing the partitions, duplicates of an id.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RetentionPolicy;
use jetring::{Error, MemberPhase};

use crate::support::{Kind, Setup, World};

fn setup() -> Setup {
    Setup::new(Kind::Transformed, RetentionPolicy::Limits)
}

#[tokio::test]
async fn a_first_member_serves_every_partition_without_waiting_for_anybody() {
    let began = Instant::now();
    let session_timeout = Duration::from_secs(20);
    let mut world = World::start(Setup {
        session_timeout,
        ..setup()
    })
    .await;
    world.publish_round(&["x", "y"], 3).await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    let status = world.status("a");
    assert_eq!((status.phase, status.serving()), (MemberPhase::Active, 8));
    assert!(began.elapsed() < session_timeout / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_joiner_takes_its_share_and_nothing_else_moves() {
    let mut world = World::new().await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let mut before = world.tokens().await;
    for (joiner, members, share) in [("b", vec!["a", "b"], 4), ("c", vec!["a", "b", "c"], 2)] {
        world.join(joiner).await;
        world.wait_settled(&members).await;
        let after = world.tokens().await;
        let moved = world.owned_by(joiner).await;
        assert_eq!(moved.len(), share, "{joiner}");
        let stayed = |tokens: &BTreeMap<_, _>| {
            let mut tokens = tokens.clone();
            tokens.retain(|partition, _| !moved.contains(partition));
            tokens
        };
        assert_eq!(stayed(&before), stayed(&after));
        assert!(moved.iter().all(|partition| after[partition] > before[partition]));
        before = after;
    }
}

#[tokio::test]
async fn members_that_join_together_share_with_one_generation_each_knows() {
    let mut world = World::new().await;
    for id in ["a", "b", "c", "d"] {
        world.join(id).await;
    }
    world.wait_settled(&["a", "b", "c", "d"]).await;
    for id in ["a", "b", "c", "d"] {
        assert_eq!(world.owned_by(id).await.len(), 2, "{id}");
        assert_eq!(world.status(id).owners, world.status("a").owners, "{id}");
    }
}

#[tokio::test]
async fn more_members_than_partitions_leave_some_idle_until_they_are_needed() {
    let mut world = World::start(Setup {
        partitions: 2,
        ..setup()
    })
    .await;
    for id in ["a", "b", "c"] {
        world.join(id).await;
    }
    world.wait_settled(&["a", "b", "c"]).await;
    let idle = ["a", "b", "c"].into_iter().find(|id| world.status(id).serving() == 0);
    let idle = idle.unwrap();
    let busy: Vec<&str> = ["a", "b", "c"].into_iter().filter(|id| *id != idle).collect();
    world.leave(busy[0]).await;
    world.wait_settled(&[idle, busy[1]]).await;
    assert_eq!(world.status(idle).serving(), 1);
}

#[tokio::test]
async fn s28_odd_names_are_names() {
    let mut world = World::start(Setup {
        name: format!("w-{}", nuid::next()),
        ..setup()
    })
    .await;
    let group = "pay.ments/eu *>~:$%ü";
    let ids = ["pod 7/~:$%.*>", "pod 7/~:$%.*=3E", "größe"];
    for id in ids {
        let client = async_nats::connect(&world.url).await.unwrap();
        let group = world.setup.group_named(group);
        world.try_join_group(id, &client, group).await.unwrap();
    }
    let keys = ["~:$%", "ü", "a=2E", "a/b", "UPPER"];
    world.publish_round(&keys, 5).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    for id in ids {
        let watch = &mut world.members.here.get_mut(id).unwrap();
        let settled = watch.wait_until(|status| status.is_settled() && status.serving() >= 2);
        assert_eq!(settled.await.unwrap().member.as_str(), id);
    }
}

#[tokio::test]
async fn a_live_duplicate_is_refused_and_the_first_one_is_not_disturbed() {
    let mut world = World::start(setup().mortal()).await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let before = world.tokens().await;
    let incarnation = world.status("a").incarnation;
    let refused = world.try_join("a").await.unwrap_err();
    assert!(
        matches!(&refused, Error::DuplicateMember { member, incarnation: found }
            if member.as_str() == "a" && *found == incarnation),
        "{refused:?}"
    );
    assert!(!refused.is_retryable());
    assert!(
        refused.to_string().contains("give every instance its own id"),
        "{refused}"
    );
    world.publish_round(&["x", "y", "z"], 3).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert_eq!(world.tokens().await, before);
    assert!(!world.has_told("a", "Fenced"));
}

#[tokio::test]
async fn a_successor_of_the_same_id_waits_until_the_dead_one_is_given_up() {
    let mut world = World::start(setup().mortal()).await;
    world.spawn("a");
    world.wait_settled(&["a"]).await;
    world.publish_round(&["x", "y", "z"], 10).await;
    world.await_handled().await;
    let before = world.tokens().await;
    world.kill("a");
    world.publish_round(&["x", "y", "z"], 10).await;
    world.join("a").await;
    assert!(world.has_told("a", "AwaitingPredecessor"));
    world.wait_settled(&["a"]).await;
    world.await_handled().await;
    world.verdict().at_least_once();
    let after = world.tokens().await;
    assert!(before.iter().all(|(partition, token)| after[partition] > *token));
}

#[tokio::test]
async fn a_dropped_member_leaves_in_the_background() {
    let mut world = World::start(Setup {
        session_timeout: Duration::from_secs(20),
        ..setup()
    })
    .await;
    world.join("a").await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    let began = Instant::now();
    drop(world.members.here.remove("a"));
    world.wait_settled(&["b"]).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
