//! Consumers that lose deliveries, vanish behind their owner's back, or are contested by others.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::RetentionPolicy::{self, Limits, WorkQueue};
use futures_util::StreamExt;
use jetring::names::ConsumerName;
use jetring::{Error, Partition, Settings};

use crate::support::members::work;
use crate::support::{Gate, Kind, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// A waiting pull request of a stranger on the consumer: it takes messages that are then delivered to nobody else.
async fn steal(world: &World, consumer: &ConsumerName, messages: usize) -> async_nats::Subscriber {
    let inbox = world.client.new_inbox();
    let stolen = world.client.subscribe(inbox.clone()).await.unwrap();
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", world.setup.name);
    let request = format!(r#"{{"batch":{messages},"expires":5000000000}}"#);
    world
        .client
        .publish_with_reply(subject, inbox, request.into())
        .await
        .unwrap();
    world.client.flush().await.unwrap();
    stolen
}

/// One partition whose owner is settled.
async fn one_partition(retention: RetentionPolicy) -> World {
    let mut world = World::start(Setup {
        partitions: 1,
        ack_wait: Duration::from_secs(1),
        ..Setup::new(Kind::Transformed, retention)
    })
    .await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    world
}

#[tokio::test]
async fn a_gap_in_the_deliveries_is_noticed_and_repeats_nothing() {
    for retention in [Limits, WorkQueue] {
        let world = one_partition(retention).await;
        world.publish_round(&KEYS, 2).await;
        world.await_handled().await;
        for round in 1..=3 {
            let consumer = world.consumer_of(Partition(0)).await;
            let mut stolen = steal(&world, &consumer, 3).await;
            // The request is served in turn with the member's own, from some moment on.
            let taken = loop {
                world.publish_round(&KEYS, 1).await;
                tokio::select! {
                    taken = stolen.next() => break taken.unwrap(),
                    () = world.await_handled() => {}
                }
            };
            assert!(taken.reply.is_some(), "{taken:?}");
            world.publish_round(&KEYS, 3).await;
            world.await_handled().await;
            let gaps = world
                .journal
                .changes("a")
                .into_iter()
                .filter(|text| text.contains("reason: Gap"));
            assert!(gaps.count() >= round);
        }
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn a_swallowed_last_message_comes_back() {
    for retention in [Limits, WorkQueue] {
        let world = one_partition(retention).await;
        let consumer = world.consumer_of(Partition(0)).await;
        let mut stolen = steal(&world, &consumer, 1).await;
        let mut taken = None;
        // The server serves waiting requests in turn, so one of the next few messages goes to the stranger; nothing follows it.
        while taken.is_none() {
            let message = world.publish("x").await;
            tokio::select! {
                found = stolen.next() => taken = found,
                () = world.await_done(message) => {}
            }
        }
        let taken = taken.unwrap();
        assert!(taken.reply.is_some(), "{taken:?}");
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

/// One partition, and a server that offers nothing again within the time of a test: only the watchdog can help.
async fn watched(retention: RetentionPolicy) -> World {
    watched_as(retention, true).await
}

async fn watched_as(retention: RetentionPolicy, acked: bool) -> World {
    let mut world = World::start(Setup {
        acked,
        partitions: 1,
        ack_wait: Duration::from_secs(120),
        ..Setup::new(Kind::Transformed, retention)
    })
    .await;
    let settings = Settings {
        inspect_interval: Some(Duration::from_millis(300)),
        ..world.setup.settings()
    };
    let group = world.setup.group().with_settings(settings).unwrap();
    world.try_join_group("a", &world.client.clone(), group).await.unwrap();
    world.wait_settled(&["a"]).await;
    world
}

#[tokio::test]
async fn a_swallowed_last_message_comes_back_long_before_the_ack_wait() {
    for (retention, acked) in [(Limits, true), (WorkQueue, true), (Limits, false)] {
        let world = watched_as(retention, acked).await;
        let consumer = world.consumer_of(Partition(0)).await;
        let mut stolen = steal(&world, &consumer, 1).await;
        let mut taken = None;
        while taken.is_none() {
            let message = world.publish("x").await;
            tokio::select! {
                found = stolen.next() => taken = found,
                () = world.await_done(message) => {}
            }
        }
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn s36_a_consumer_that_delivers_nothing_is_replaced() {
    for retention in [Limits, WorkQueue] {
        let world = watched(retention).await;
        if world.client.server_info().version.starts_with("2.10.") {
            // Consumers can be paused since 2.11.
            return;
        }
        world.publish_round(&KEYS, 2).await;
        world.await_handled().await;
        // A consumer that is paused looks as one does that is stuck: it has messages, is asked for them, and delivers none.
        let consumer = world.consumer_of(Partition(0)).await;
        let subject = format!("CONSUMER.PAUSE.{}.{consumer}", world.setup.name);
        let pause = serde_json::json!({ "pause_until": "2100-01-01T00:00:00Z" });
        let answer: serde_json::Value = world.jetstream.request(subject, &pause).await.unwrap();
        assert_eq!(answer["paused"], true, "{answer}");
        world.publish_round(&KEYS, 2).await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let stuck = |text: &String| text.contains("reason: Stuck");
        assert!(world.journal.changes("a").iter().any(stuck));
    }
}

#[tokio::test]
async fn an_idle_group_and_one_with_a_full_room_replace_no_consumer() {
    let mut world = watched(Limits).await;
    let gate = Gate::closed();
    let held = gate.clone();
    world.leave("a").await;
    world.work = work(move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(())
        }
    });
    let settings = Settings {
        // An ack that is under way for longer than this looks lost: no less than a busy machine needs.
        inspect_interval: Some(Duration::from_millis(500)),
        reconcile_interval: Duration::from_millis(500),
        ..world.setup.settings()
    };
    let group = world.setup.group().with_settings(settings).unwrap();
    let client = world.client.clone();
    world.try_join_group("b", &client, group).await.unwrap();
    // As long as it takes to be wrong several times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.publish_round(&KEYS, 40).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!world.has_told("b", "Reopening"), "{:?}", world.journal.changes("b"));
    gate.open();
    world.await_handled().await;
    assert!(!world.has_told("b", "Reopening"), "{:?}", world.journal.changes("b"));
    world.verdict().exactly_once();
}

#[tokio::test]
async fn s33_a_consumer_deleted_behind_its_owner_is_opened_again_where_it_was() {
    for (kind, retention) in [
        (Kind::Transformed, Limits),
        (Kind::Transformed, WorkQueue),
        (Kind::Token, Limits),
    ] {
        let mut world = World::start(Setup::new(kind, retention)).await;
        world.work = work(|_| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok(())
        });
        world.join("a").await;
        world.publish_round(&KEYS, 1).await;
        world.await_handled().await;
        let tokens = world.tokens().await;
        let publisher = world.keep_publishing(&KEYS);
        let stream = world.jetstream.get_stream_no_info(&world.setup.name).await.unwrap();
        for _ in 0..3 {
            let consumers = world.consumers().await;
            for name in consumers.keys() {
                stream.delete_consumer(&name.to_string()).await.unwrap();
            }
            eventually("every filter has a new consumer", async || {
                let found = world.consumers().await;
                let fresh = found.keys().all(|name| !consumers.contains_key(name));
                if fresh && found.len() == consumers.len() {
                    Ok(())
                } else {
                    Err(found)
                }
            })
            .await;
        }
        publisher.stop().await;
        world.await_handled().await;
        world.verdict().exactly_once();
        assert_eq!(world.tokens().await, tokens, "the tenures go on");
    }
}

#[tokio::test]
async fn consumers_that_nobody_answers_for_are_swept() {
    let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    // Left over from an older tenure that died between two steps.
    let own = world.consumer_of(Partition(0)).await;
    let mut stale = own.clone();
    stale.epoch.token.0 -= 1;
    let stream = world.jetstream.get_stream_no_info(&world.setup.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some(stale.to_string()),
        filter_subject: format!("{}.0.>", world.setup.name),
        ..pull::Config::default()
    };
    stream.create_consumer_strict(config).await.unwrap();
    eventually("the stale consumer is deleted", async || {
        let found = world.consumers().await;
        if found.contains_key(&stale) { Err(found) } else { Ok(()) }
    })
    .await;
    assert_eq!(world.consumer_of(Partition(0)).await, own);
}

#[tokio::test]
async fn s39_a_second_group_on_a_work_queue_is_told_whose_the_messages_are() {
    for kind in [Kind::Transformed, Kind::Token] {
        let mut world = World::start(Setup::new(kind, WorkQueue)).await;
        world.publish("x").await;
        world.join("a").await;
        world.await_handled().await;
        let second = world.setup.group_named("second");
        let refused = world
            .try_join_group("b", &world.client.clone(), second)
            .await
            .unwrap_err();
        assert!(matches!(refused, Error::StreamUnsuitable { .. }), "{refused:?}");
        let names: Vec<String> = world
            .consumers()
            .await
            .into_keys()
            .map(|name| name.to_string())
            .collect();
        assert!(names.iter().any(|name| refused.to_string().contains(name)), "{refused}");
        assert!(refused.to_string().contains("belongs to one consumer"), "{refused}");
    }
}

#[tokio::test]
async fn s39_several_groups_on_one_stream_each_get_everything() {
    for retention in [Limits, RetentionPolicy::Interest] {
        let mut first = World::start(Setup::new(Kind::Transformed, retention)).await;
        first.join("a").await;
        first.wait_settled(&["a"]).await;
        let second = first.setup.group_named("second");
        first.try_join_group("b", &first.client.clone(), second).await.unwrap();
        let b = first.members.here.get_mut("b").unwrap();
        b.wait_until(|status| status.serving() == 8).await.unwrap();
        first.publish_round(&KEYS, 5).await;
        eventually("each group has handled everything", async || {
            let starts = first.starts_by_member();
            let all = Some(&(KEYS.len() * 5));
            if starts.get("a") == all && starts.get("b") == all {
                Ok(())
            } else {
                Err(starts)
            }
        })
        .await;
    }
}
