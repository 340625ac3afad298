//! Messages that are given up: stored as dead letters first, ended then, and their keys go on.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::RetentionPolicy::{self, Interest, Limits, WorkQueue};
use jetring::config::DeadLetterSettings;
use jetring::{Failure, Group, RetryPolicy, Settings};

use crate::support::members::work;
use crate::support::{Kind, Setup, World, eventually};

/// The group with a stream for dead letters, and two attempts at every message.
fn group(world: &World) -> Group {
    let settings = world.setup.settings();
    let settings = Settings {
        dead_letters: Some(DeadLetterSettings::new(dead(world), dead(world))),
        retry: RetryPolicy {
            max_attempts: NonZeroU32::new(2),
            ..settings.retry.clone()
        },
        ..settings
    };
    world.setup.group().with_settings(settings).unwrap()
}

/// The name of the stream of dead letters, and what their subjects begin with.
fn dead(world: &World) -> String {
    format!("dead-{}", world.setup.name)
}

/// A world whose handler fails for bodies that say so.
async fn world(kind: Kind, retention: RetentionPolicy) -> World {
    let mut world = World::start(Setup::new(kind, retention)).await;
    world.work = work(|delivery| async move {
        match &delivery.payload()[..] {
            b"poison" => Err(Failure::retry("does not work")),
            b"reject" => Err(Failure::reject("never works")),
            _ => Ok(()),
        }
    });
    world
}

async fn join(world: &mut World, id: &str) {
    let (client, group) = (world.client.clone(), group(world));
    world.try_join_group(id, &client, group).await.unwrap();
}

/// Publishes a message that its handler will not take; its sequence.
async fn publish_bad(world: &World, key: &str, body: &'static str) -> u64 {
    let mut headers = HeaderMap::new();
    headers.insert("Trace", "kept");
    let subject = world.setup.subject(key);
    let published = world.jetstream.publish_with_headers(subject, headers, body.into());
    published.await.unwrap().await.unwrap().sequence
}

/// Everything but the messages that were given up went well.
fn judge(world: &World, given_up: &[u64]) {
    world
        .verdict_without(&given_up.iter().copied().collect::<BTreeSet<_>>())
        .exactly_once();
}

#[tokio::test]
async fn s05_s07_what_is_given_up_is_stored_ended_and_its_key_goes_on() {
    for (kind, retention) in [
        (Kind::Transformed, Limits),
        (Kind::Transformed, WorkQueue),
        (Kind::Transformed, Interest),
        (Kind::Token, WorkQueue),
    ] {
        let mut world = world(kind, retention).await;
        join(&mut world, "a").await;
        world.wait_settled(&["a"]).await;
        world.publish("x").await;
        let exhausted = publish_bad(&world, "x", "poison").await;
        world.publish_round(&["x", "y"], 3).await;
        let rejected = publish_bad(&world, "x", "reject").await;
        world.publish_round(&["x", "y"], 3).await;
        world.await_handled().await;
        judge(&world, &[exhausted, rejected]);
        let letters = group(&world).dead_letters(&world.client).unwrap();
        let found = letters.list(1, 10).await.unwrap();
        let facts = found
            .iter()
            .map(|letter| (letter.origin.sequence, letter.origin.attempts));
        assert_eq!(facts.collect::<Vec<_>>(), [(exhausted, 2), (rejected, 1)]);
        let letter = &found[0];
        assert_eq!(letter.payload, "poison");
        assert_eq!(letter.headers.get("Trace").map(|value| value.as_str()), Some("kept"));
        assert_eq!(letter.origin.subject, world.setup.subject("x"));
        assert_eq!((letter.origin.key.as_str(), letter.origin.member.as_str()), ("x", "a"));
        assert_eq!(letter.origin.stream, world.setup.name);
        assert_eq!(letter.origin.group, world.setup.name);
        assert!(letter.origin.error.contains("does not work"), "{:?}", letter.origin);
        if retention != Limits {
            world.all_acked().await;
        }
        // Nothing of it comes again for the next owner.
        join(&mut world, "b").await;
        world.leave("a").await;
        world.publish_round(&["x", "y"], 3).await;
        world.await_handled().await;
        judge(&world, &[exhausted, rejected]);
        assert_eq!(letters.list(1, 10).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_stored_holds_its_key_and_no_other_until_it_can() {
    for retention in [Limits, WorkQueue] {
        let mut world = world(Kind::Transformed, retention).await;
        join(&mut world, "a").await;
        world.wait_settled(&["a"]).await;
        world.jetstream.delete_stream(dead(&world)).await.unwrap();
        let rejected = publish_bad(&world, "x", "reject").await;
        let behind = world.publish("x").await;
        world.publish_round(&["y", "z"], 5).await;
        let parked = |status: &jetring::Status| {
            let parked = status.lanes.partitions.iter().flat_map(|partition| &partition.parked);
            parked
                .map(|parked| (parked.key.to_string(), parked.stream_sequence))
                .collect::<Vec<_>>()
        };
        let member = world.members.here.get_mut("a").unwrap();
        let status = member.wait_until(|status| !parked(status).is_empty()).await.unwrap();
        assert_eq!(parked(&status), [("x".to_owned(), rejected)]);
        let last = world.published().last().unwrap().sequence;
        world.await_done(last).await;
        assert!(!world.journal.is_done(behind));
        // The next member to join makes the stream anew; until then nobody could.
        join(&mut world, "b").await;
        world.await_handled().await;
        judge(&world, &[rejected]);
        let letters = group(&world).dead_letters(&world.client).unwrap();
        let found = letters.list(1, 10).await.unwrap();
        assert_eq!(
            found.iter().map(|letter| letter.origin.sequence).collect::<Vec<_>>(),
            [rejected]
        );
    }
}

#[tokio::test]
async fn a_replayed_dead_letter_is_a_new_message_of_its_key() {
    let mut world = world(Kind::Transformed, WorkQueue).await;
    join(&mut world, "a").await;
    let rejected = publish_bad(&world, "x", "reject").await;
    world.publish("x").await;
    world.await_handled().await;
    world.leave("a").await;
    // Somebody has mended the handler.
    world.work = crate::support::members::succeed();
    join(&mut world, "b").await;
    let letters = group(&world).dead_letters(&world.client).unwrap();
    let found = letters.list(1, 10).await.unwrap();
    assert_eq!(letters.replay_all(Some("x")).await.unwrap(), 1);
    assert_eq!(found[0].origin.sequence, rejected);
    assert!(letters.list(1, 10).await.unwrap().is_empty());
    eventually("the replayed message is handled", async || {
        let starts = world.journal.starts();
        let last = starts.last().map(|(life, start)| (life.id.clone(), start.body.clone()));
        if last == Some(("b".to_owned(), "reject".to_owned())) {
            Ok(())
        } else {
            Err(last)
        }
    })
    .await;
    world.all_acked().await;
}

#[tokio::test]
async fn a_group_lists_and_replays_its_own_dead_letters_whatever_else_is_stored_beside_them() {
    let mut world = world(Kind::Transformed, Limits).await;
    let other = world.setup.group_named(&format!("{}-other", world.setup.name));
    let other = other.with_settings(group(&world).settings().clone()).unwrap();
    let client = world.client.clone();
    join(&mut world, "a").await;
    let handler = |_: jetring::Delivery| async { Err(Failure::reject("not here")) };
    let member = other.join(&client, "a", handler).await.unwrap();
    let foreign = format!("{}.anything", dead(&world));
    let stored = world.jetstream.publish(foreign, "foreign".into()).await.unwrap();
    stored.await.unwrap();
    world.publish("good").await;
    let bad = publish_bad(&world, "k", "reject").await;
    let letters = other.dead_letters(&client).unwrap();
    eventually("the other group has given up both", async || {
        let found = letters.list(1, usize::MAX).await.unwrap();
        if found.len() == 2 { Ok(()) } else { Err(found.len()) }
    })
    .await;
    let own = group(&world).dead_letters(&client).unwrap();
    eventually("this group lists its only one", async || {
        let found = own.list(1, usize::MAX).await.unwrap();
        let sequences: Vec<u64> = found.iter().map(|letter| letter.origin.sequence).collect();
        if sequences == [bad] { Ok(()) } else { Err(sequences) }
    })
    .await;
    member.leave().await.unwrap();
    assert_eq!(own.replay_all(None).await.unwrap(), 1);
    assert_eq!(letters.list(1, usize::MAX).await.unwrap().len(), 2);
}
