//! Members that are killed: everything of theirs is taken over, in order, with nothing lost.

use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy::{self, Interest, Limits, WorkQueue};

use jetring::testing::{NatsServer, ServerVersion};

use crate::support::members::work;
use crate::support::{Kind, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// How long a handler takes: long enough for many to be queued when their member dies.
const PACE: Duration = Duration::from_millis(3);

/// The two oldest of three members die one after the other, each with messages queued and running.
async fn members_die(kind: Kind, retention: RetentionPolicy) {
    let mut world = World::start(Setup::new(kind, retention).mortal()).await;
    world.work = work(|_| async {
        tokio::time::sleep(PACE).await;
        Ok(())
    });
    world.spawn_with("a", |spec| spec.pace = PACE);
    world.wait_settled(&["a"]).await;
    world.spawn_with("b", |spec| spec.pace = PACE);
    world.wait_settled(&["a", "b"]).await;
    world.join("c").await;
    world.wait_settled(&["a", "b", "c"]).await;
    let publisher = world.keep_publishing(&KEYS);
    for (victim, rest) in [("a", &["b", "c"][..]), ("b", &["c"])] {
        world.publish_round(&KEYS, 10).await;
        starts_of(&world, victim, 30).await;
        world.kill(victim);
        world.wait_settled(rest).await;
    }
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().at_least_once();
}

async fn starts_of(world: &World, id: &str, least: usize) {
    eventually(&format!("{id} has begun {least} handlers"), async || {
        let starts = world.starts_by_member().get(id).copied().unwrap_or_default();
        if starts >= least { Ok(()) } else { Err(starts) }
    })
    .await;
}

/// No server before 2.11 has TTLs, for messages or for the markers of deletions.
#[tokio::test]
async fn s24_members_die_on_a_server_without_ttl_markers() {
    let server = NatsServer::builder().own().version("2.10.26");
    let mut world = World::start_on(server, Setup::new(Kind::Transformed, Limits).mortal()).await;
    assert!(world.server().version() < ServerVersion::new(2, 11, 0));
    for id in ["a", "b"] {
        world.spawn(id);
    }
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.kill("a");
    world.wait_settled(&["b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    world.verdict().at_least_once();
}

#[tokio::test]
async fn members_die_on_a_limits_stream() {
    members_die(Kind::Transformed, Limits).await;
}

#[tokio::test]
async fn members_die_on_a_work_queue() {
    members_die(Kind::Transformed, WorkQueue).await;
}

#[tokio::test]
async fn members_die_on_an_interest_stream() {
    members_die(Kind::Transformed, Interest).await;
}

#[tokio::test]
async fn members_die_by_token_on_a_limits_stream() {
    members_die(Kind::Token, Limits).await;
}

#[tokio::test]
async fn members_die_by_token_on_a_work_queue() {
    members_die(Kind::Token, WorkQueue).await;
}

#[tokio::test]
async fn s01_what_a_dead_member_had_fetched_comes_before_what_is_newer() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start(Setup::new(Kind::Transformed, retention).mortal()).await;
        world.spawn_with("a", |spec| spec.held_key = Some("x".to_owned()));
        world.wait_settled(&["a"]).await;
        // All of them are fetched; the first one runs and the others wait behind it.
        world.publish_round(&["x"], 5).await;
        let first = world.published()[0].sequence;
        world.await_started("a", first).await;
        world.kill("a");
        world.publish_round(&["x"], 5).await;
        world.join("b").await;
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn a_crash_repeats_nothing_that_was_saved() {
    for (kind, retention) in [
        (Kind::Transformed, Limits),
        (Kind::Transformed, WorkQueue),
        (Kind::Token, Limits),
    ] {
        let mut world = World::start(Setup::new(kind, retention).mortal()).await;
        world.spawn("a");
        world.wait_settled(&["a"]).await;
        world.publish_round(&KEYS, 10).await;
        world.await_handled().await;
        let finished = world.published().last().unwrap().sequence;
        eventually("the last message is in a progress record", async || {
            let saved = world.highest_saved().await;
            if saved >= finished { Ok(()) } else { Err(saved) }
        })
        .await;
        // Every partition was due at the same time; those that had nothing to save are behind.
        tokio::time::sleep(world.setup.checkpoint_interval * 2).await;
        world.kill("a");
        world.publish_round(&KEYS, 2).await;
        world.join("b").await;
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn a_group_that_died_as_a_whole_is_taken_over_by_whoever_comes() {
    for kind in [Kind::Transformed, Kind::Token] {
        let mut world = World::start(Setup::new(kind, Limits).mortal()).await;
        for id in ["a", "b", "c", "d"] {
            world.spawn_with(id, |spec| spec.pace = PACE);
        }
        world.wait_settled(&["a", "b", "c", "d"]).await;
        world.publish_round(&KEYS, 20).await;
        starts_of(&world, "a", 5).await;
        for id in ["a", "b", "c", "d"] {
            world.kill(id);
        }
        world.publish_round(&KEYS, 5).await;
        world.join("e").await;
        world.wait_settled(&["e"]).await;
        world.await_handled().await;
        world.verdict().at_least_once();
    }
}

#[tokio::test]
async fn a_member_that_dies_while_it_takes_over_is_taken_over_too() {
    let mut world = World::start(Setup::new(Kind::Transformed, WorkQueue).mortal()).await;
    world.spawn_with("a", |spec| spec.pace = PACE);
    world.wait_settled(&["a"]).await;
    let publisher = world.keep_publishing(&KEYS);
    for (joiner, victim) in [("b", "a"), ("c", "b"), ("d", "c")] {
        world.spawn_with(joiner, |spec| spec.pace = PACE);
        // As soon as it has won anything: the other partitions are on their way.
        eventually(&format!("{joiner} owns something"), async || {
            let owned = world.owned_by(joiner).await.len();
            if owned > 0 { Ok(()) } else { Err(owned) }
        })
        .await;
        world.kill(victim);
    }
    world.wait_settled(&["d"]).await;
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().at_least_once();
}
