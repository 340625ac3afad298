//! Acks that do not reach the server, and acks that are confirmed.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Info};
use async_nats::jetstream::stream::RetentionPolicy::{self, Interest, Limits, WorkQueue};
use futures_util::TryStreamExt;
use jetring::{Acks, Group, Settings};

use crate::support::members::work;
use crate::support::proxy::Link;
use crate::support::{Gate, Kind, Proxy, Setup, World, eventually};

const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];

/// Longer than a test: the server offers nothing again by itself.
const NEVER: Duration = Duration::from_secs(120);

async fn world(retention: RetentionPolicy) -> (World, Proxy) {
    let world = World::start(Setup {
        partitions: 2,
        ack_wait: NEVER,
        ..Setup::new(Kind::Transformed, retention)
    })
    .await;
    let proxy = Proxy::to(&world.url).await.unwrap();
    (world, proxy)
}

/// The group with a watchdog that looks as often as this.
fn group(world: &World, look: Duration, acks: Acks) -> Group {
    let settings = Settings {
        inspect_interval: Some(look),
        reconcile_interval: look,
        request_timeout: Duration::from_millis(500),
        acks,
        ..world.setup.settings()
    };
    world.setup.group().with_settings(settings).unwrap()
}

async fn join(world: &mut World, proxy: &Proxy, look: Duration, acks: Acks) {
    let (client, group) = (proxy.connect().await.unwrap(), group(world, look, acks));
    world.try_join_group("a", &client, group).await.unwrap();
    world.wait_settled(&["a"]).await;
}

async fn left(world: &World) -> u64 {
    let mut stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
    stream.info().await.unwrap().state.messages
}

/// Everything is handled while acks are lost, so that it all stays in the stream.
async fn handle_without_acks(world: &World, proxy: &Proxy) {
    proxy.set(Link::LoseAcks);
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    assert_eq!(left(world).await, 30);
}

#[tokio::test]
async fn lost_acks_are_noticed_and_mended_and_nothing_runs_twice() {
    for retention in [WorkQueue, Interest] {
        let (mut world, proxy) = world(retention).await;
        join(&mut world, &proxy, Duration::from_millis(300), Acks::Plain).await;
        handle_without_acks(&world, &proxy).await;
        proxy.set(Link::Open);
        world.all_acked().await;
        world.publish_round(&KEYS, 5).await;
        world.await_handled().await;
        world.all_acked().await;
        world.verdict().exactly_once();
        let changes = world.journal.changes("a");
        assert!(
            changes.iter().any(|text| text.contains("reason: LostAcks")),
            "{changes:?}"
        );
    }
}

#[tokio::test]
async fn a_key_that_is_held_long_does_not_hide_the_lost_acks_of_others() {
    let (mut world, proxy) = world(WorkQueue).await;
    let gate = Gate::closed();
    let held = gate.clone();
    world.work = work(move |delivery| {
        let held = held.clone();
        async move {
            if delivery.key() == "held" {
                held.pass().await;
            }
            Ok(())
        }
    });
    join(&mut world, &proxy, Duration::from_millis(300), Acks::Plain).await;
    let held = world.publish("held").await;
    world.await_started("a", held).await;
    proxy.set(Link::LoseAcks);
    world.publish_round(&KEYS, 5).await;
    let last = world.published().last().unwrap().sequence;
    world.await_done(last).await;
    proxy.set(Link::Open);
    eventually("only the held message is left", async || match left(&world).await {
        1 => Ok(()),
        left => Err((left, world.journal.changes("a"))),
    })
    .await;
    gate.open();
    world.await_handled().await;
    world.all_acked().await;
    world.verdict().exactly_once();
}

#[tokio::test]
async fn confirmed_acks_are_sent_until_they_arrive() {
    for retention in [WorkQueue, Interest] {
        let (mut world, proxy) = world(retention).await;
        join(&mut world, &proxy, NEVER, Acks::Confirmed).await;
        handle_without_acks(&world, &proxy).await;
        proxy.set(Link::Open);
        world.all_acked().await;
        world.verdict().exactly_once();
        assert!(!world.has_told("a", "Reopening"));
    }
}

#[tokio::test]
async fn the_next_owner_mends_what_a_leaver_could_not_ack() {
    for retention in [WorkQueue, Interest] {
        for acks in [Acks::Plain, Acks::Confirmed] {
            let (mut world, proxy) = world(retention).await;
            join(&mut world, &proxy, NEVER, acks).await;
            handle_without_acks(&world, &proxy).await;
            world.leave("a").await;
            world.join("b").await;
            world.all_acked().await;
            world.publish_round(&KEYS, 2).await;
            world.await_handled().await;
            world.all_acked().await;
            world.verdict().exactly_once();
        }
    }
}

#[tokio::test]
async fn confirmed_acks_are_all_there_when_the_member_has_left() {
    for retention in [Limits, WorkQueue, Interest] {
        let (mut world, proxy) = world(retention).await;
        join(&mut world, &proxy, NEVER, Acks::Confirmed).await;
        world.publish_round(&KEYS, 20).await;
        world.await_handled().await;
        world.leave("a").await;
        if retention != Limits {
            assert_eq!(left(&world).await, 0, "{retention:?}");
        }
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn without_acks_handovers_repeat_nothing_and_a_crash_loses_nothing() {
    let acked = false;
    let mut world = World::start(
        Setup {
            acked,
            ..Setup::new(Kind::Transformed, Limits)
        }
        .mortal(),
    )
    .await;
    let publisher = world.keep_publishing(&KEYS);
    world.join("a").await;
    world.publish_round(&KEYS, 5).await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.leave("a").await;
    world.wait_settled(&["b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    world.spawn("c");
    world.wait_settled(&["b", "c"]).await;
    world.publish_round(&KEYS, 5).await;
    world.kill("c");
    world.wait_settled(&["b"]).await;
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().at_least_once();
    let stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
    let consumers: Vec<Info> = stream.consumers().try_collect().await.unwrap();
    assert!(!consumers.is_empty());
    for info in consumers {
        assert_eq!((info.config.ack_policy, info.num_ack_pending), (AckPolicy::None, 0));
    }
}
