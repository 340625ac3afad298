//! What a handler is given, in which order, and what happens when it fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::RetentionPolicy;
use jetring::Failure;
use tokio::sync::mpsc;

use crate::support::check::Published;
use crate::support::members::work;
use crate::support::{Gate, Kind, Setup, World};

fn setup() -> Setup {
    Setup::new(Kind::Transformed, RetentionPolicy::Limits)
}

/// The attempts at a message, in order.
fn attempts(world: &World, sequence: u64) -> Vec<u32> {
    let starts = world.journal.starts().into_iter();
    starts
        .filter(|(_, start)| start.sequence == sequence)
        .map(|(_, start)| start.attempt)
        .collect()
}

#[tokio::test]
async fn a_handler_sees_the_message_as_it_was_published() {
    for kind in [Kind::Token, Kind::Transformed] {
        let mut world = World::start(Setup { kind, ..setup() }).await;
        let subject = world.setup.subject("x");
        let mut headers = HeaderMap::new();
        headers.insert("Trace", "one");
        headers.append("Trace", "two");
        let published = world
            .jetstream
            .publish_with_headers(subject.clone(), headers.clone(), "payload".into());
        let first = published.await.unwrap().await.unwrap().sequence;
        let empty = world.jetstream.publish(subject.clone(), "".into()).await.unwrap();
        let second = empty.await.unwrap().sequence;
        let (sender, mut seen) = mpsc::unbounded_channel();
        world.work = work(move |delivery| {
            sender.send(delivery).unwrap();
            async { Ok(()) }
        });
        world.join("a").await;
        let delivery = seen.recv().await.unwrap();
        assert_eq!(delivery.subject(), subject, "{kind:?}");
        assert_eq!(
            (delivery.key(), delivery.stream_sequence(), delivery.attempt()),
            ("x", first, 1)
        );
        assert_eq!(delivery.payload(), "payload");
        assert_eq!(delivery.headers(), &headers);
        assert_eq!(delivery.partition(), world.setup.group().partition_of("x"));
        assert_eq!(delivery.fencing_token(), world.tokens().await[&delivery.partition()]);
        assert!(!delivery.cancellation().is_cancelled());
        let age = delivery.published().elapsed().unwrap();
        assert!(age < Duration::from_secs(60), "{age:?}");
        let delivery = seen.recv().await.unwrap();
        assert_eq!((delivery.stream_sequence(), delivery.payload().len()), (second, 0));
        assert!(delivery.headers().is_empty());
    }
}

#[tokio::test]
async fn a_key_may_be_several_tokens_or_some_of_them() {
    for kind in [Kind::Token, Kind::Transformed] {
        let mut world = World::start(Setup {
            kind,
            keys: "*.*".to_owned(),
            ..setup()
        })
        .await;
        world.publish_round(&["eu.1", "eu.2", "us.1"], 5).await;
        world.join("a").await;
        world.await_handled().await;
        world.verdict().exactly_once();

        let mut world = World::start(Setup {
            kind,
            keys: "*.*".to_owned(),
            key_tokens: vec![2],
            ..setup()
        })
        .await;
        for (index, region) in ["eu", "us", "eu", "us"].into_iter().enumerate() {
            let (subject, body) = (world.setup.subject(&format!("{region}.42")), index.to_string());
            let ack = world.jetstream.publish(subject, body.clone().into()).await.unwrap();
            let (sequence, key) = (ack.await.unwrap().sequence, "42".to_owned());
            world.note(Published { sequence, key, body });
        }
        world.join("a").await;
        world.await_handled().await;
        // The order of the key holds across its two subjects.
        world.verdict().exactly_once();
        let subjects: Vec<String> = world
            .journal
            .starts()
            .into_iter()
            .map(|(_, start)| start.subject)
            .collect();
        let expected = ["eu", "us", "eu", "us"].map(|region| world.setup.subject(&format!("{region}.42")));
        assert_eq!(subjects, expected);
    }
}

#[tokio::test]
async fn keys_of_one_partition_run_in_parallel_and_each_in_order() {
    let mut world = World::start(Setup {
        partitions: 1,
        ..setup()
    })
    .await;
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
    world.join("a").await;
    let first = world.publish("held").await;
    world.publish_round(&["held"], 3).await;
    world.publish_round(&["x", "y"], 20).await;
    let last = world.published().last().unwrap().sequence;
    world.await_done(last).await;
    // Everything but the held key went on; of that key one handler runs, and no other has begun.
    let begun = world
        .journal
        .starts()
        .into_iter()
        .filter(|(_, start)| start.key == "held");
    assert_eq!(begun.map(|(_, start)| start.sequence).collect::<Vec<_>>(), [first]);
    gate.open();
    world.await_handled().await;
    world.verdict().exactly_once();
}

#[tokio::test]
async fn s02_a_handler_longer_than_the_ack_wait_runs_once() {
    let ack_wait = Duration::from_secs(1);
    let mut world = World::start(Setup { ack_wait, ..setup() }).await;
    // Slow is the point here: twice the time after which the server would deliver it again.
    world.work = work(move |delivery| async move {
        if delivery.key() == "slow" {
            tokio::time::sleep(ack_wait * 2 + ack_wait / 2).await;
        }
        Ok(())
    });
    world.join("a").await;
    world.publish_round(&["slow", "x"], 1).await;
    world.publish_round(&["slow", "x"], 1).await;
    world.await_handled().await;
    world.verdict().exactly_once();
}

#[tokio::test]
async fn s03_a_failing_message_holds_its_key_and_no_other() {
    let mut world = World::start(Setup {
        partitions: 1,
        ..setup()
    })
    .await;
    let healed = Arc::new(AtomicBool::new(false));
    let heals = healed.clone();
    world.work = work(move |delivery| {
        let fails = delivery.key() == "poison" && !heals.load(Ordering::Acquire);
        async move { if fails { Err(Failure::retry("poisoned")) } else { Ok(()) } }
    });
    world.join("a").await;
    let poison = world.publish("poison").await;
    world.publish_round(&["poison", "x", "y"], 10).await;
    let last = world.published().last().unwrap().sequence;
    world.await_done(last).await;
    assert!(!world.journal.is_done(poison));
    healed.store(true, Ordering::Release);
    world.await_handled().await;
    world.verdict().exactly_once();
    let counted = attempts(&world, poison);
    assert_eq!(counted, (1..=u32::try_from(counted.len()).unwrap()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_message_that_fails_twice_and_panics_once_succeeds_at_the_fourth_attempt() {
    let mut world = World::new().await;
    world.work = work(|delivery| async move {
        match (delivery.key(), delivery.attempt()) {
            ("x", 1) => Err(Failure::retry("first")),
            ("x", 2) => panic!("second"),
            ("x", 3) => Err(Failure::retry_after(Duration::from_millis(30), "third")),
            _ => Ok(()),
        }
    });
    world.join("a").await;
    world.publish_round(&["x", "y"], 3).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    for message in world.published() {
        let expected = if message.key == "x" { vec![1, 2, 3, 4] } else { vec![1] };
        assert_eq!(attempts(&world, message.sequence), expected);
    }
}

#[tokio::test]
async fn s04_a_dependency_that_blinks_costs_nothing() {
    let mut world = World::new().await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    world.work = work(move |_| {
        let fails = is_down.load(Ordering::Acquire);
        async move {
            if fails {
                Err(Failure::retry("connection refused"))
            } else {
                Ok(())
            }
        }
    });
    world.join("a").await;
    world.publish_round(&["x", "y", "z"], 5).await;
    // The time that it is down for is the fault itself.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.journal.missing(&world.published()).len(), 15);
    down.store(false, Ordering::Release);
    world.await_handled().await;
    world.verdict().exactly_once();
}

#[tokio::test]
async fn s29_a_key_that_appears_with_a_backlog_is_delivered_from_its_first_message() {
    for retention in [RetentionPolicy::Limits, RetentionPolicy::WorkQueue] {
        let mut world = World::start(Setup::new(Kind::Token, retention)).await;
        world.join("a").await;
        world.join("b").await;
        world.wait_settled(&["a", "b"]).await;
        // Far ahead of the new key's first message in the stream.
        world.publish_round(&["old"], 20).await;
        world.await_handled().await;
        world.publish_round(&["new-1", "new-2", "old"], 30).await;
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn a_group_that_starts_with_what_is_new_skips_what_was_there_and_nothing_else() {
    for kind in [Kind::Token, Kind::Transformed] {
        let mut world = World::start(Setup {
            kind,
            start_new: true,
            ..setup()
        })
        .await;
        let subject = world.setup.subject("x");
        let ack = world.jetstream.publish(subject, "old".into()).await.unwrap();
        ack.await.unwrap();
        world.join("a").await;
        // The start is the group's: members that come later have the same.
        world.publish_round(&["x", "late"], 5).await;
        world.join("b").await;
        world.wait_settled(&["a", "b"]).await;
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn many_keys_at_once_are_each_in_order_with_little_room() {
    let mut world = World::start(Setup {
        max_held_per_partition: 8,
        concurrency: 4,
        ..setup()
    })
    .await;
    let keys: Vec<String> = (0..50).map(|key| format!("k{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    world.publish_round(&keys, 10).await;
    world.join("a").await;
    world.join("b").await;
    world.await_handled().await;
    world.verdict().exactly_once();
    let by_key = world
        .journal
        .starts()
        .into_iter()
        .fold(BTreeMap::new(), |mut counts, (_, start)| {
            *counts.entry(start.key).or_insert(0) += 1;
            counts
        });
    assert_eq!(by_key.len(), 50);
}
