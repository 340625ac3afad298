//! Members that are frozen (SIGSTOP), as by a paused virtual machine: what happens meanwhile, and what they can do when they wake.

use std::time::Duration;

use async_nats::RequestErrorKind;
use async_nats::jetstream::stream::RetentionPolicy::{Limits, WorkQueue};

use crate::support::journal::What;
use crate::support::{Kind, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

#[tokio::test]
async fn a_freeze_shorter_than_the_lease_costs_nothing() {
    let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    world.spawn("a");
    world.wait_settled(&["a"]).await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    let before = world.tokens().await;
    world.publish_round(&KEYS, 5).await;
    world.process("a").freeze();
    world.publish_round(&KEYS, 5).await;
    // The length of the freeze is the fault itself.
    tokio::time::sleep(world.setup.session_timeout / 4).await;
    world.process("a").thaw();
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert_eq!(world.tokens().await, before);
}

#[tokio::test]
async fn s17_a_member_that_wakes_late_starts_nothing_before_it_has_rejoined() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start(Setup::new(Kind::Transformed, retention).mortal()).await;
        world.spawn_with("a", |spec| spec.held_key = Some("k0".to_owned()));
        world.wait_settled(&["a"]).await;
        world.publish_round(&KEYS, 5).await;
        let held = world.published()[0].sequence;
        world.await_started("a", held).await;
        eventually("a handles everything but the held key", async || {
            let mut missing = world.journal.missing(&world.published());
            missing.retain(|message| message.key != "k0");
            if missing.is_empty() { Ok(()) } else { Err(missing) }
        })
        .await;
        world.process("a").freeze();
        let frozen_at = world.journal.lines().len();
        // These are on their way to `a`, whose requests still wait for them.
        world.publish_round(&KEYS, 5).await;
        world.join("b").await;
        world.wait_settled(&["b"]).await;
        world.publish_round(&KEYS, 5).await;
        world.await_handled().await;
        world.process("a").thaw();
        world.process("a").open_gate();
        world.await_change("a", "Fenced", 0).await;
        world.wait_settled(&["a", "b"]).await;
        world.publish_round(&KEYS, 5).await;
        world.await_handled().await;
        world.verdict().at_least_once_with_overrun(&["a"]);
        let of_a = world
            .journal
            .lines()
            .into_iter()
            .skip(frozen_at)
            .filter(|line| line.life.id == "a");
        let rejoined = of_a.take_while(|line| !matches!(&line.what, What::Changed(text) if text.starts_with("Joined")));
        let started = rejoined.filter(|line| matches!(line.what, What::Started(_))).count();
        assert_eq!(started, 0, "handlers began between waking and rejoining");
        // The stale write of its handler bore a lower token than the one that its successor's had.
        let starts = world
            .journal
            .starts()
            .into_iter()
            .filter(|(_, start)| start.sequence == held);
        let tokens: Vec<(String, u64)> = starts.map(|(life, start)| (life.id, start.token)).collect();
        assert_eq!((tokens[0].0.as_str(), tokens[1].0.as_str()), ("a", "b"));
        assert!(tokens[0].1 < tokens[1].1, "{tokens:?}");
    }
}

#[tokio::test]
async fn s18_a_late_ack_does_not_finish_the_work_of_the_next_owner() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start(Setup::new(Kind::Transformed, retention).mortal()).await;
        let hold = |spec: &mut crate::support::process::Spec| spec.held_key = Some("x".to_owned());
        world.spawn_with("a", hold);
        world.wait_settled(&["a"]).await;
        let message = world.publish("x").await;
        world.await_started("a", message).await;
        let consumer = world.consumer_of(world.setup.group().partition_of("x")).await;
        world.process("a").freeze();
        world.spawn_with("b", hold);
        world.await_started("b", message).await;
        // `a` wakes, its handler succeeds, and whatever it acks is acked to a consumer that is not there any more.
        world.process("a").open_gate();
        world.process("a").thaw();
        world.await_change("a", "Fenced", 0).await;
        let ack = format!("$JS.ACK.{}.{consumer}.1.{message}.1.1.0", world.setup.name);
        let answer = world.client.request(ack, "+ACK".into()).await;
        assert_eq!(answer.unwrap_err().kind(), RequestErrorKind::NoResponders);
        world.await_change("a", "Joined", 1).await;
        // `b` dies before it is done: the message is still there for whoever comes, which is `a` again.
        world.kill("b");
        eventually("the message begins a third time", async || {
            let starts = world.journal.starts().into_iter();
            let of_it = starts.filter(|(_, start)| start.sequence == message);
            let tokens: Vec<u64> = of_it.map(|(_, start)| start.token).collect();
            if tokens.len() >= 3 && tokens.is_sorted() {
                Ok(())
            } else {
                Err(tokens)
            }
        })
        .await;
        world.await_handled().await;
        world.wait_settled(&["a"]).await;
        world.publish("x").await;
        world.await_handled().await;
        world.verdict().at_least_once_with_overrun(&["a"]);
    }
}

#[tokio::test]
async fn a_late_loser_deletes_nothing() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start(Setup {
            // Time to look at the consumers between its waking and the next move of partitions.
            rebalance_delay: Duration::from_secs(1),
            ..Setup::new(Kind::Transformed, retention).mortal()
        })
        .await;
        world.spawn("a");
        world.wait_settled(&["a"]).await;
        world.publish_round(&KEYS, 5).await;
        world.await_handled().await;
        world.process("a").freeze();
        world.join("b").await;
        world.wait_settled(&["b"]).await;
        world.publish_round(&KEYS, 5).await;
        world.await_handled().await;
        let before = world.consumers().await;
        assert_eq!(before.len(), 8);
        world.process("a").thaw();
        world.await_change("a", "Joined", 1).await;
        let after = world.consumers().await;
        if world.owned_by("b").await.len() == 8 {
            assert_eq!(after, before);
        }
        world.publish_round(&KEYS, 5).await;
        world.wait_settled(&["a", "b"]).await;
        world.await_handled().await;
        world.verdict().at_least_once();
        // What did not move is served by the very consumers that were there.
        let kept = world.owned_by("b").await;
        assert_eq!(kept.len(), 4);
        let last = eventually("a has opened its consumers", async || {
            let found = world.consumers().await;
            if found.len() == 8 { Ok(found) } else { Err(found) }
        })
        .await;
        for (name, created) in before.iter().filter(|(name, _)| kept.contains(&name.partition)) {
            assert_eq!(last.get(name), Some(created), "{name}");
        }
    }
}

#[tokio::test]
async fn members_that_freeze_in_turns_lose_nothing() {
    let mut world = World::start(Setup::new(Kind::Transformed, WorkQueue).mortal()).await;
    for id in ["a", "b"] {
        world.spawn_with(id, |spec| spec.pace = Duration::from_millis(2));
        world.await_change(id, "Joined", 0).await;
    }
    world.join("c").await;
    world.wait_settled(&["a", "b", "c"]).await;
    let publisher = world.keep_publishing(&KEYS);
    for (frozen, awake) in [("a", &["b", "c"]), ("b", &["a", "c"])] {
        world.process(frozen).freeze();
        world.wait_settled(awake).await;
        world.process(frozen).thaw();
        world.await_change(frozen, "Fenced", 0).await;
        world.wait_settled(&["a", "b", "c"]).await;
    }
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().at_least_once_with_overrun(&["a", "b"]);
}
