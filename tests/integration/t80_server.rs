//! A server that restarts, loses replies, stops its watches or is out of reach; and records that somebody deletes.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RetentionPolicy::{self, Limits, WorkQueue};
use futures_util::TryStreamExt;

use crate::support::members::work;
use crate::support::proxy::Link;
use crate::support::{Gate, Kind, Proxy, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// Two members on a server of their own, and messages all the time.
async fn restarted(kind: Kind, retention: RetentionPolicy, crashes: bool) {
    let mut world = World::start_on_own_server(Setup {
        // Longer than a restart takes.
        session_timeout: Duration::from_secs(15),
        ..Setup::new(kind, retention)
    })
    .await;
    world.join("a").await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    let tokens = world.tokens().await;
    let publisher = world.keep_publishing(&KEYS);
    for _ in 0..2 {
        world.publish_round(&KEYS, 2).await;
        if crashes {
            world.server().kill().unwrap();
        }
        world.server().restart().await.unwrap();
        // Everything confirmed before is there, and more comes.
        world.await_handled().await;
    }
    publisher.stop().await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert_eq!(world.tokens().await, tokens, "nobody lost a partition");
}

#[tokio::test]
async fn s22_the_server_restarts() {
    restarted(Kind::Transformed, Limits, false).await;
}

#[tokio::test]
async fn s22_the_server_of_a_work_queue_restarts() {
    restarted(Kind::Transformed, WorkQueue, false).await;
}

#[tokio::test]
async fn s22_the_server_crashes() {
    restarted(Kind::Transformed, WorkQueue, true).await;
}

#[tokio::test]
async fn s22_the_server_crashes_under_a_group_by_token() {
    restarted(Kind::Token, Limits, true).await;
}

#[tokio::test]
async fn s22_a_server_that_is_away_for_longer_than_the_lease_finds_everybody_fenced_and_takes_them_back() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start_on_own_server(Setup::new(Kind::Transformed, retention).mortal()).await;
        world.join("a").await;
        world.join("b").await;
        world.wait_settled(&["a", "b"]).await;
        let publisher = world.keep_publishing(&KEYS);
        world.publish_round(&KEYS, 5).await;
        world.server().stop().await.unwrap();
        for id in ["a", "b"] {
            world.await_change(id, "Fenced { reason: LeaseExpired", 0).await;
        }
        world.server().restart().await.unwrap();
        world.wait_settled(&["a", "b"]).await;
        publisher.stop().await;
        world.await_handled().await;
        world.verdict().at_least_once();
    }
}

#[tokio::test]
async fn a_server_that_freezes_for_longer_than_the_lease_finds_everybody_fenced_and_takes_them_back() {
    let mut world = World::start_on_own_server(Setup::new(Kind::Transformed, WorkQueue).mortal()).await;
    world.join("a").await;
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.server().freeze().unwrap();
    for id in ["a", "b"] {
        world.await_change(id, "Fenced { reason: LeaseExpired", 0).await;
    }
    world.server().thaw().unwrap();
    world.wait_settled(&["a", "b"]).await;
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    world.verdict().at_least_once();
}

#[tokio::test]
async fn a_lost_heartbeat_reply_costs_nothing() {
    let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    let proxy = Proxy::to(&world.url).await.unwrap();
    world
        .try_join_through("a", &proxy.connect().await.unwrap())
        .await
        .unwrap();
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
    let tokens = world.tokens().await;
    for _ in 0..2 {
        proxy.set(Link::LoseReplies);
        let (before, revision) = world.member("a").await.unwrap();
        // These are delivered, and lost on the way.
        world.publish_round(&KEYS, 2).await;
        let (after, _) = eventually("a heartbeat whose reply is lost has landed", async || {
            let found = world.member("a").await.unwrap();
            if found.1 > revision { Ok(found) } else { Err(found) }
        })
        .await;
        assert_eq!(after.incarnation, before.incarnation);
        proxy.cut().await;
        proxy.set(Link::Open);
        // The next one shows that the lost one was found.
        eventually("another heartbeat follows", async || {
            let (found, _) = world.member("a").await.unwrap();
            if found.beat > after.beat { Ok(()) } else { Err(found) }
        })
        .await;
    }
    world.publish_round(&KEYS, 2).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert_eq!(world.tokens().await, tokens);
    assert!(!world.has_told("a", "Fenced"));
}

/// A member that is cut off in the middle of a handler, until the other one has taken over.
async fn isolated(link: Link, retention: RetentionPolicy) {
    let mut world = World::start(Setup::new(Kind::Transformed, retention).mortal()).await;
    let proxy = Proxy::to(&world.url).await.unwrap();
    let never = Gate::closed();
    let held = never.clone();
    world.work = work(move |delivery| {
        let held = held.clone();
        async move {
            if delivery.key() == "k0" {
                held.pass().await;
            }
            Ok(())
        }
    });
    world
        .try_join_through("a", &proxy.connect().await.unwrap())
        .await
        .unwrap();
    world.wait_settled(&["a"]).await;
    world.work = crate::support::members::succeed();
    world.publish_round(&KEYS, 3).await;
    let first = world.published()[0].sequence;
    world.await_started("a", first).await;
    if link == Link::Cut {
        proxy.cut().await;
    } else {
        proxy.set(link);
    }
    world.publish_round(&KEYS, 3).await;
    world.join("b").await;
    world.await_change("a", "Fenced { reason: LeaseExpired", 0).await;
    world.wait_settled(&["b"]).await;
    world.await_handled().await;
    let tokens = world.tokens().await;
    // What was on its way for so long arrives now, and changes nothing.
    never.open();
    proxy.set(Link::Open);
    world.await_change("a", "Joined", 1).await;
    world.wait_settled(&["a", "b"]).await;
    let kept = world.owned_by("b").await;
    let after = world.tokens().await;
    assert!(kept.iter().all(|partition| after[partition] == tokens[partition]));
    world.publish_round(&KEYS, 3).await;
    world.await_handled().await;
    // Strictly one owner at a time: the handler that was cut off had ended before the next owner began.
    world.verdict().at_least_once();
}

#[tokio::test]
async fn a_member_that_is_cut_off_ends_its_handlers_before_others_begin() {
    isolated(Link::Cut, Limits).await;
}

#[tokio::test]
async fn a_member_behind_a_silent_connection_ends_its_handlers_before_others_begin() {
    isolated(Link::Silent, WorkQueue).await;
}

#[tokio::test]
async fn a_member_that_hears_nothing_ends_its_handlers_before_others_begin() {
    isolated(Link::HoldReplies, Limits).await;
}

#[tokio::test]
async fn a_stalled_watch_costs_no_owner_its_partitions() {
    let mut world = World::start(Setup {
        session_timeout: Duration::from_secs(2),
        ..Setup::new(Kind::Transformed, Limits)
    })
    .await;
    for id in ["a", "b", "c"] {
        world.join(id).await;
    }
    world.wait_settled(&["a", "b", "c"]).await;
    let tokens = world.tokens().await;
    let bucket = world.bucket().await.unwrap();
    let began = Instant::now();
    let mut deleted = 0;
    // Whatever watches is deleted as soon as it is there, for several session timeouts: nobody sees a heartbeat.
    while began.elapsed() < world.setup.session_timeout * 3 {
        let watches: Vec<String> = bucket.stream.consumer_names().try_collect().await.unwrap();
        for name in watches {
            deleted += usize::from(bucket.stream.delete_consumer(&name).await.is_ok());
        }
    }
    assert!(deleted >= 9, "every member has tried to watch again, {deleted}");
    assert_eq!(world.tokens().await, tokens);
    for id in ["a", "b", "c"] {
        assert!(!world.has_told(id, "Fenced"), "{:#?}", world.journal.changes(id));
        assert!(!world.has_told(id, "DeclaredDead"));
    }
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    // The watches come back: changes are seen at once again.
    world.leave("a").await;
    world.wait_settled(&["b", "c"]).await;
    world.publish_round(&KEYS, 5).await;
    world.await_handled().await;
    world.verdict().exactly_once();
}

/// The ways in which a record can go.
#[derive(Debug, Clone, Copy)]
enum Deletion {
    Marker,
    Purge,
    EmptyPut,
}

async fn delete_member(world: &World, id: &str, deletion: Deletion) {
    let bucket = world.bucket().await.unwrap();
    let key = world.keys().member(&jetring::MemberId::new(id).unwrap());
    match deletion {
        Deletion::Marker => bucket.delete(&key).await.unwrap(),
        Deletion::Purge => bucket.purge(&key).await.unwrap(),
        Deletion::EmptyPut => {
            let subject = format!("{}{key}", bucket.prefix);
            let put = world.jetstream.publish(subject, "".into()).await.unwrap();
            put.await.unwrap();
        }
    }
}

#[tokio::test]
async fn s25_a_record_that_somebody_deletes_is_a_leave_however_it_is_deleted() {
    for deletion in [Deletion::Marker, Deletion::Purge, Deletion::EmptyPut] {
        let mut world = World::start(Setup::new(Kind::Transformed, Limits).mortal()).await;
        world.spawn("dead");
        world.wait_settled(&["dead"]).await;
        for id in ["a", "b"] {
            world.join(id).await;
        }
        world.wait_settled(&["a", "b", "dead"]).await;
        let publisher = world.keep_publishing(&KEYS);
        world.kill("dead");
        delete_member(&world, "dead", deletion).await;
        world.wait_settled(&["a", "b"]).await;
        // A live one notices, ends its handlers, and comes again.
        delete_member(&world, "a", deletion).await;
        world.await_change("a", "Fenced { reason: Replaced", 0).await;
        world.await_change("a", "Joined", 1).await;
        world.wait_settled(&["a", "b"]).await;
        publisher.stop().await;
        world.await_handled().await;
        world.verdict().at_least_once();
    }
}
