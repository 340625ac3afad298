//! Graceful moves: partitions change hands under load, and nothing is lost, repeated or out of order.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RetentionPolicy::{self, Interest, Limits, WorkQueue};
use futures_util::StreamExt;
use jetring::Failure;

use crate::support::members::work;
use crate::support::{Gate, Kind, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// Members come and go while messages come all the time.
async fn joins_and_leaves(kind: Kind, retention: RetentionPolicy) {
    let mut world = World::start(Setup::new(kind, retention)).await;
    world.work = work(|_| async {
        tokio::time::sleep(Duration::from_millis(3)).await;
        Ok(())
    });
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let publisher = world.keep_publishing(&KEYS);
    for (joins, leaves, members) in [
        (Some("b"), None, &["a", "b"][..]),
        (Some("c"), None, &["a", "b", "c"]),
        (None, Some("a"), &["b", "c"]),
        (Some("a"), Some("b"), &["a", "c"]),
    ] {
        if let Some(id) = joins {
            world.join(id).await;
        }
        if let Some(id) = leaves {
            world.leave(id).await;
        }
        world.wait_settled(members).await;
    }
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert_eq!(world.starts_by_member().len(), 3);
    if retention != Limits {
        world.all_acked().await;
    }
}

#[tokio::test]
async fn joins_and_leaves_on_a_limits_stream() {
    joins_and_leaves(Kind::Transformed, Limits).await;
}

#[tokio::test]
async fn joins_and_leaves_on_a_work_queue() {
    joins_and_leaves(Kind::Transformed, WorkQueue).await;
}

#[tokio::test]
async fn joins_and_leaves_on_an_interest_stream() {
    joins_and_leaves(Kind::Transformed, Interest).await;
}

#[tokio::test]
async fn joins_and_leaves_by_token_on_a_limits_stream() {
    joins_and_leaves(Kind::Token, Limits).await;
}

#[tokio::test]
async fn joins_and_leaves_by_token_on_a_work_queue() {
    joins_and_leaves(Kind::Token, WorkQueue).await;
}

#[tokio::test]
async fn s08_a_rolling_deploy_repeats_nothing() {
    let mut world = World::start(Setup::new(Kind::Transformed, WorkQueue)).await;
    for id in ["old-1", "old-2", "old-3"] {
        world.join(id).await;
    }
    let publisher = world.keep_publishing(&KEYS);
    for number in 1..=3 {
        // Its removal and its replacement's arrival collide.
        let leaving = world.members.here.remove(&format!("old-{number}")).unwrap();
        let leaves = tokio::spawn(leaving.leave());
        world.join(&format!("new-{number}")).await;
        leaves.await.unwrap().unwrap();
    }
    world.wait_settled(&["new-1", "new-2", "new-3"]).await;
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().exactly_once();
}

#[tokio::test]
async fn s09_a_graceful_leave_takes_effect_at_once() {
    let session_timeout = Duration::from_secs(20);
    let mut world = World::start(Setup {
        session_timeout,
        ..Setup::new(Kind::Transformed, Limits)
    })
    .await;
    world.join("a").await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    let began = Instant::now();
    world.leave("a").await;
    world.wait_settled(&["b"]).await;
    world.publish_round(&KEYS, 2).await;
    world.await_handled().await;
    assert!(began.elapsed() < session_timeout / 2, "{:?}", began.elapsed());
    world.verdict().exactly_once();
    assert_eq!(world.member("a").await, None);
}

#[tokio::test]
async fn a_group_goes_on_where_it_was_when_everybody_had_left() {
    for (kind, retention) in [
        (Kind::Transformed, Limits),
        (Kind::Transformed, WorkQueue),
        (Kind::Token, Limits),
    ] {
        let session_timeout = Duration::from_secs(20);
        let mut world = World::start(Setup {
            session_timeout,
            ..Setup::new(kind, retention)
        })
        .await;
        world.publish_round(&KEYS, 5).await;
        world.join("a").await;
        world.await_handled().await;
        world.leave("a").await;
        world.publish_round(&KEYS, 5).await;
        let began = Instant::now();
        world.join("b").await;
        world.await_handled().await;
        world.verdict().exactly_once();
        assert!(began.elapsed() < session_timeout / 2, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_leaving_member_lets_its_handlers_end_and_hands_the_rest_over_unrun() {
    for retention in [Limits, WorkQueue, Interest] {
        let mut world = World::start(Setup::new(Kind::Transformed, retention)).await;
        let gate = Gate::closed();
        let held = gate.clone();
        world.work = work(move |_| {
            let held = held.clone();
            async move {
                held.pass().await;
                Ok(())
            }
        });
        world.join("a").await;
        world.wait_settled(&["a"]).await;
        let running = world.publish("x").await;
        let queued = world.publish("x").await;
        world.await_started("a", running).await;
        world.work = crate::support::members::succeed();
        world.join("b").await;
        let leaving = world.members.here.remove("a").unwrap();
        let leaves = tokio::spawn(leaving.leave());
        // The partition stays where its handler runs; everything else goes over.
        eventually("everything but one partition is b's", async || {
            let owned = world.owned_by("b").await.len();
            if owned == 7 { Ok(()) } else { Err(owned) }
        })
        .await;
        assert!(!leaves.is_finished());
        gate.open();
        leaves.await.unwrap().unwrap();
        world.wait_settled(&["b"]).await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let by = |sequence| {
            let starts = world.journal.starts().into_iter();
            let of_it = starts.filter(move |(_, start)| start.sequence == sequence);
            of_it.map(|(life, _)| life.id).collect::<Vec<_>>()
        };
        assert_eq!((by(running), by(queued)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    }
}

#[tokio::test]
async fn a_handler_that_outlives_the_drain_is_cancelled_and_its_message_handled_by_the_next_owner() {
    let mut world = World::start(Setup {
        drain_timeout: Duration::from_millis(200),
        ..Setup::new(Kind::Transformed, Limits)
    })
    .await;
    let never = Gate::closed();
    world.work = work(move |_| {
        let never = never.clone();
        async move {
            never.pass().await;
            Ok(())
        }
    });
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let stuck = world.publish("x").await;
    world.await_started("a", stuck).await;
    world.work = crate::support::members::succeed();
    world.join("b").await;
    world.leave("a").await;
    assert!(world.has_told("a", "DrainOverdue"));
    world.await_handled().await;
    // It was given up by `a` before `b` began, and a cancelled attempt is no failed one.
    world.verdict().exactly_once();
    let attempts: Vec<u32> = world
        .journal
        .starts()
        .into_iter()
        .map(|(_, start)| start.attempt)
        .collect();
    assert_eq!(attempts, [1, 1]);
}

#[tokio::test]
async fn attempts_are_counted_on_by_the_next_owner() {
    for (kind, retention) in [(Kind::Transformed, Limits), (Kind::Token, WorkQueue)] {
        let mut world = World::start(Setup::new(kind, retention)).await;
        world.work = work(|_| async { Err(Failure::retry("not here")) });
        world.join("a").await;
        let message = world.publish("x").await;
        world.await_started("a", message).await;
        eventually("a has tried three times", async || {
            let tried = world.journal.starts().len();
            if tried >= 3 { Ok(()) } else { Err(tried) }
        })
        .await;
        world.work = crate::support::members::succeed();
        world.join("b").await;
        world.leave("a").await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let attempts: Vec<u32> = world
            .journal
            .starts()
            .into_iter()
            .map(|(_, start)| start.attempt)
            .collect();
        assert_eq!(
            attempts,
            (1..=u32::try_from(attempts.len()).unwrap()).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn s32_what_is_unfinished_on_an_interest_stream_survives_every_swap() {
    let mut world = World::start(Setup::new(Kind::Transformed, Interest)).await;
    let gate = Gate::closed();
    let held = gate.clone();
    // Nothing of an odd key is finished before the end: every owner in between hands it on.
    world.work = work(move |delivery| {
        let held = held.clone();
        let odd = delivery.key().ends_with(['1', '3', '5', '7', '9']);
        async move {
            if odd {
                tokio::select! {
                    () = held.pass() => Ok(()),
                    () = delivery.cancellation().cancelled() => Err(Failure::retry("cancelled")),
                }
            } else {
                Ok(())
            }
        }
    });
    world.setup.drain_timeout = Duration::from_millis(100);
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    world.publish_round(&KEYS, 5).await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.leave("a").await;
    world.wait_settled(&["b"]).await;
    world.join("c").await;
    world.leave("b").await;
    world.wait_settled(&["c"]).await;
    gate.open();
    world.await_handled().await;
    world.verdict().exactly_once();
    world.all_acked().await;
}

#[tokio::test]
async fn s30_consumers_are_made_once_with_one_filter_and_never_edited() {
    let mut world = World::start(Setup::new(Kind::Token, Limits)).await;
    let subject = format!("$JS.API.CONSUMER.CREATE.{}.>", world.setup.name);
    let mut requests = world.client.subscribe(subject).await.unwrap();
    world.client.flush().await.unwrap();
    world.publish_round(&KEYS, 2).await;
    world.join("a").await;
    world.await_handled().await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 2).await;
    world.await_handled().await;
    world.leave("a").await;
    world.wait_settled(&["b"]).await;
    world.verdict().exactly_once();
    requests.unsubscribe().await.unwrap();
    let mut seen = BTreeSet::new();
    while let Some(request) = requests.next().await {
        let body: serde_json::Value = serde_json::from_slice(&request.payload).unwrap();
        assert_eq!(body["action"], "create", "{body}");
        assert_eq!(body["config"]["filter_subjects"], serde_json::Value::Null, "{body}");
        let subject = request.subject.to_string();
        assert!(seen.insert(subject.clone()), "{subject} was asked for twice");
    }
    // One per key at first, and one more when it changed hands, as each of them did once.
    assert!(seen.len() >= 2 * KEYS.len(), "{seen:#?}");
}
