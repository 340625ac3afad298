//! A stream that loses messages behind the group's back, messages of a size, and handlers that block.

use async_nats::jetstream::stream::RetentionPolicy;
use jetring::Settings;

use crate::support::members::work;
use crate::support::{Gate, Kind, Setup, World};

const RETENTIONS: [RetentionPolicy; 2] = [RetentionPolicy::Limits, RetentionPolicy::WorkQueue];

#[tokio::test]
async fn s35_a_purge_while_messages_are_in_flight_ends_them_and_lets_new_ones_flow() {
    for retention in RETENTIONS {
        let gate = Gate::closed();
        let held = gate.clone();
        let mut world = World::start(Setup::new(Kind::Transformed, retention)).await;
        world.work = work(move |_| {
            let gate = held.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        });
        let first = world.publish("x").await;
        world.join("a").await;
        world.await_started("a", first).await;
        let stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
        stream.purge().await.unwrap();
        gate.open();
        world.await_done(first).await;
        let next = world.publish("x").await;
        world.await_done(next).await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn messages_of_nearly_a_megabyte_are_delivered_within_little_room() {
    let setup = Setup::new(Kind::Transformed, RetentionPolicy::WorkQueue);
    let world = World::start(setup).await;
    let settings = Settings {
        // Room for two of them per partition.
        max_bytes_per_partition: 2_500_000.try_into().unwrap(),
        max_bytes: 5_000_000.try_into().unwrap(),
        ..world.setup.settings()
    };
    let group = world.setup.group().with_settings(settings).unwrap();
    let (sender, mut sizes) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |delivery: jetring::Delivery| {
        sender.send(delivery.payload().len()).unwrap();
        async { Ok(()) }
    };
    let size = 1_000_000;
    for number in 0..12 {
        let subject = world.setup.subject(&format!("k{}", number % 3));
        let stored = world.jetstream.publish(subject, vec![b'x'; size].into()).await;
        stored.unwrap().await.unwrap();
    }
    let client = world.client.clone();
    let member = group.join(&client, "a", handler).await.unwrap();
    for _ in 0..12 {
        assert_eq!(sizes.recv().await, Some(size));
    }
    member.leave().await.unwrap();
}

#[tokio::test]
async fn s40_a_hundred_thousand_keys_need_no_more_consumers_than_partitions() {
    const KEYS: usize = 100_000;
    let world = World::start(Setup::new(Kind::Transformed, RetentionPolicy::Limits)).await;
    let mut stored = Vec::new();
    for key in 0..KEYS {
        let subject = world.setup.subject(&format!("k{key}"));
        stored.push(world.jetstream.publish(subject, "x".into()).await.unwrap());
        if stored.len() == 1_000 {
            for stored in stored.drain(..) {
                stored.await.unwrap();
            }
        }
    }
    let (sender, mut handled) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |delivery: jetring::Delivery| {
        sender.send(delivery.key().to_owned()).unwrap();
        async { Ok(()) }
    };
    let client = world.client.clone();
    let mut member = world.setup.group().join(&client, "a", handler).await.unwrap();
    let mut keys = std::collections::HashSet::new();
    while keys.len() < KEYS {
        keys.insert(handled.recv().await.unwrap());
    }
    assert_eq!(world.consumers().await.len() as u64, world.setup.partitions);
    // And a key of which nothing is left costs nothing here either.
    let status = member
        .wait_until(|status| status.lanes.partitions.iter().all(|partition| partition.keys == 0))
        .await
        .unwrap();
    assert_eq!(status.serving() as u64, world.setup.partitions);
    member.leave().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s16_a_handler_that_blocks_its_thread_stops_neither_heartbeats_nor_other_keys() {
    let mut world = World::start(Setup::new(Kind::Transformed, RetentionPolicy::Limits)).await;
    let blocked_for = world.setup.settings().session_timeout * 2;
    world.work = work(move |delivery| {
        if delivery.key() == "blocks" {
            std::thread::sleep(blocked_for);
        }
        async { Ok(()) }
    });
    let blocks = world.publish("blocks").await;
    world.join("a").await;
    world.await_started("a", blocks).await;
    let tokens = world.tokens().await;
    let other = world.publish("other").await;
    world.await_done(other).await;
    world.await_done(blocks).await;
    assert!(!world.has_told("a", "Fenced"), "its heartbeats went on");
    for (partition, token) in world.tokens().await {
        assert!(
            tokens.get(&partition).is_none_or(|before| *before == token),
            "{partition} changed hands"
        );
    }
    world.verdict().exactly_once();
}
