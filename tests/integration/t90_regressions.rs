//! Faults that were found by trying to break members: each test says what must follow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy::Limits;
use jetring::testing::NatsServer;
use jetring::{Delivery, Failure};

use crate::support::members::{succeed, work};
use crate::support::{Gate, Kind, Setup, World, eventually};

/// Panics when it is dropped, unless that is because of another panic.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "planted: dropped");
    }
}

/// Notes that it was dropped.
struct Noted(Arc<AtomicBool>);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_leave_ends_also_while_the_member_tries_to_rejoin_a_server_that_is_away() {
    let mut world = World::start_on_own_server(Setup::new(Kind::Transformed, Limits).mortal()).await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    world.server().stop().await.unwrap();
    world.await_change("a", "Fenced", 0).await;
    eventually("the member tries to rejoin", async || {
        let phase = world.status("a").phase;
        let joining = phase == jetring::MemberPhase::Joining;
        if joining { Ok(()) } else { Err(phase) }
    })
    .await;
    let left = tokio::time::timeout(Duration::from_secs(20), world.leave("a")).await;
    assert!(left.is_ok());
}

#[tokio::test]
async fn a_handler_that_panics_when_it_is_dropped_is_tried_again() {
    let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    world.work = work(|delivery| async move {
        if delivery.attempt() == 1 {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let mut settings = world.setup.settings();
    settings.handler_timeout = Some(Duration::from_millis(50));
    let group = world.setup.group().with_settings(settings).unwrap();
    let client = world.client.clone();
    world.try_join_group("a", &client, group).await.unwrap();
    let sequence = world.publish("x").await;
    world.await_done(sequence).await;
    world.leave("a").await;
}

#[tokio::test]
async fn a_listener_that_panics_costs_nothing() {
    let world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    let group = world.setup.group().on_change(|change| panic!("planted: {change:?}"));
    let handled = Gate::closed();
    let handler = {
        let handled = handled.clone();
        move |_: Delivery| {
            handled.open();
            async { Ok(()) }
        }
    };
    let member = group.join(&world.client, "a", handler).await.unwrap();
    world.publish("x").await;
    handled.pass().await;
    member.leave().await.unwrap();
}

/// Partitioning by a strategy of the test's own, which panics when it meets a certain key.
mod brittle {
    use jetring::partitioning::{Partitions, Resolved, Strategy, SubjectPattern, SubjectTransform};
    use jetring::{Partition, Transformed};

    #[derive(Debug)]
    pub(super) struct Brittle(pub(super) Transformed);

    impl Strategy for Brittle {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn pattern(&self) -> &SubjectPattern {
            self.0.pattern()
        }
        fn partitions(&self) -> Partitions {
            self.0.partitions()
        }
        fn partition_of(&self, key: &str) -> Partition {
            self.0.partition_of(key)
        }
        fn resolve(&self, stored: &str) -> Option<Resolved> {
            assert!(!stored.ends_with(".panic"), "planted: {stored}");
            self.0.resolve(stored)
        }
        fn fixed_filter(&self, partition: Partition) -> Option<String> {
            self.0.fixed_filter(partition)
        }
        fn filter_for_key(&self, key: &str) -> Option<String> {
            self.0.filter_for_key(key)
        }
        fn partition_of_filter(&self, filter: &str) -> Option<Partition> {
            self.0.partition_of_filter(filter)
        }
        fn covered_subject(&self, partition: Partition) -> String {
            self.0.covered_subject(partition)
        }
        fn transform(&self) -> Option<SubjectTransform> {
            self.0.transform()
        }
    }
}

#[tokio::test]
async fn handlers_of_a_member_whose_loop_has_panicked_are_ended() {
    let world = World::start(Setup::new(Kind::Transformed, Limits).mortal()).await;
    let partitions = jetring::partitioning::Partitions::new(world.setup.partitions).unwrap();
    let strategy = brittle::Brittle(jetring::Transformed::new(world.setup.pattern(), partitions));
    let group = jetring::Group::new(&world.setup.name, &world.setup.name, strategy).unwrap();
    let group = group.with_settings(world.setup.settings()).unwrap();
    let (started, ended) = (Gate::closed(), Arc::new(AtomicBool::new(false)));
    let handler = {
        let (started, ended) = (started.clone(), ended.clone());
        move |_: Delivery| {
            let (started, noted) = (started.clone(), Noted(ended.clone()));
            async move {
                let _noted = noted;
                started.open();
                std::future::pending::<Result<(), Failure>>().await
            }
        }
    };
    let member = group.join(&world.client, "a", handler).await.unwrap();
    world.publish("x").await;
    started.pass().await;
    world.publish("panic").await;
    eventually("the handler is dropped", async || {
        if ended.load(Ordering::Relaxed) { Ok(()) } else { Err(()) }
    })
    .await;
    let error = member.leave().await.unwrap_err();
    assert!(error.to_string().contains("panic"), "{error}");
}

#[tokio::test]
async fn a_message_that_belongs_to_no_key_holds_nobody_up() {
    let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
    // The stream takes more than the group's pattern, and some of that looks as if it had been partitioned.
    let mut stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.subjects = vec![format!("{}.>", world.setup.name)];
    world.jetstream.update_stream(config).await.unwrap();
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let keys = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"];
    world.publish_round(&keys, 1).await;
    for partition in 0..world.setup.partitions {
        let stray = format!("{}.{partition}.no.key", world.setup.name);
        world
            .jetstream
            .publish(stray, "stray".into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    world.publish_round(&keys, 3).await;
    world.await_handled().await;
    world.verdict().exactly_once();
    assert!(!world.has_told("a", "Reopening"));
    // It is reported, and still there.
    eventually("every stray message is parked", async || {
        let status = world.status("a").lanes;
        let parked: usize = status.partitions.iter().map(|partition| partition.parked.len()).sum();
        if parked == 8 { Ok(()) } else { Err(parked) }
    })
    .await;
}

#[tokio::test]
async fn a_group_whose_members_always_have_new_names_leaves_nothing_behind() {
    let setup = Setup {
        session_timeout: Duration::from_millis(300),
        ..Setup::new(Kind::Transformed, Limits)
    };
    let mut world = World::start(setup).await;
    world.join("stays").await;
    for id in ["left-1", "left-2"] {
        world.join(id).await;
        world.leave(id).await;
    }
    let bucket = world.bucket().await.unwrap();
    let (mut record, _) = world.member("stays").await.unwrap();
    record.state = jetring::records::MemberState::Dead;
    let dead = world.keys().member(&jetring::MemberId::new("dead").unwrap());
    let dead = bucket.create(dead, jetring::records::encode(&record).into()).await;
    dead.unwrap();
    let pattern = format!("{}{}", bucket.prefix, world.keys().members());
    eventually("only the living have records or tombstones", async || {
        let subjects = bucket.stream.info_with_subjects(&pattern).await.unwrap();
        let subjects: Vec<_> = futures_util::TryStreamExt::try_collect(subjects).await.unwrap();
        if subjects.len() == 1 { Ok(()) } else { Err(subjects) }
    })
    .await;
    world.wait_settled(&["stays"]).await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_refuses_a_joiner_and_names_the_key() {
    let mut world = World::new().await;
    world.join("a").await;
    let bucket = world.bucket().await.unwrap();
    for (id, value, text) in [("b", r#"{"v":2}"#, "version 2"), ("c", "{}", "cannot be read")] {
        let key = world.keys().member(&jetring::MemberId::new(id).unwrap());
        bucket.create(&key, value.into()).await.unwrap();
        let error = world.try_join(id).await.unwrap_err();
        assert!(matches!(&error, jetring::Error::Record(_)), "{error:?}");
        assert!(
            error.to_string().contains(&key) && error.to_string().contains(text),
            "{error}"
        );
        bucket.purge(&key).await.unwrap();
    }
    world.join("b").await;
    world.wait_settled(&["a", "b"]).await;
}

#[tokio::test]
async fn a_join_that_the_server_stops_answering_ends_in_time() {
    let mut world = World::start_on_own_server(Setup::new(Kind::Transformed, Limits).mortal()).await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    // The predecessor is observed, and meanwhile the server goes away.
    let (member, _) = world.member("a").await.unwrap();
    let bucket = world.bucket().await.unwrap();
    let key = world.keys().member(&jetring::MemberId::new("b").unwrap());
    bucket
        .create(&key, jetring::records::encode(&member).into())
        .await
        .unwrap();
    let client = async_nats::connect(&world.url).await.unwrap();
    let group = world.setup.group();
    let join = tokio::spawn(async move { group.join(&client, "b", |_: Delivery| async { Ok(()) }).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.server().stop().await.unwrap();
    let joined = tokio::time::timeout(Duration::from_secs(20), join)
        .await
        .unwrap()
        .unwrap();
    assert!(joined.unwrap_err().is_retryable());
}

#[tokio::test]
async fn progress_that_outgrows_a_message_does_not_hold_its_partition() {
    let setup = Setup {
        partitions: 1,
        ..Setup::new(Kind::Transformed, Limits)
    };
    let mut world = World::start_on(NatsServer::builder().config("max_payload: 8KB"), setup).await;
    world.work = work(|delivery| async move {
        match delivery.key() {
            "bad" => Err(Failure::retry_after(Duration::from_secs(600), "planted")),
            _ => Ok(()),
        }
    });
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    // Every other message is finished: some 60 bytes for each.
    world.publish_round(&["bad", "good"], 400).await;
    let last = world.publish("good").await;
    world.await_done(last).await;
    world.work = succeed();
    world.join("b").await;
    let left = tokio::time::timeout(Duration::from_secs(20), world.leave("a")).await;
    assert!(left.is_ok());
    world.await_handled().await;
    world.verdict().at_least_once();
}

#[tokio::test]
async fn a_stream_that_is_made_anew_ends_its_members_at_once() {
    // Long before the next routine look at the stream.
    let mut world = World::new().await;
    let mut settings = world.setup.settings();
    settings.reconcile_interval = Duration::from_secs(600);
    let group = world.setup.group().with_settings(settings).unwrap();
    let client = world.client.clone();
    world.try_join_group("a", &client, group).await.unwrap();
    world.wait_settled(&["a"]).await;
    let mut stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    world.jetstream.delete_stream(&world.setup.name).await.unwrap();
    world.jetstream.create_stream(config).await.unwrap();
    let member = world.members.here.get_mut("a").unwrap();
    let ended = |status: &jetring::Status| status.phase == jetring::MemberPhase::Ended;
    let ended = tokio::time::timeout(Duration::from_secs(20), member.wait_until(ended)).await;
    ended.unwrap().unwrap();
    let member = world.members.here.remove("a").unwrap();
    let error = member.leave().await.unwrap_err();
    assert!(error.to_string().contains("stream_created"), "{error}");
}
