//! Streams and buckets that would let a group begin and then fail it are refused before anything is created.

use std::time::Duration;

use async_nats::jetstream::context::KeyValueErrorKind;
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::RetentionPolicy::{Interest, Limits, WorkQueue};
use async_nats::jetstream::stream::{Config, ConsumerLimits, RetentionPolicy};
use jetring::{Acks, DeadLetterSettings, Error, Group, Settings, StartFrom};

use crate::support::{Kind, Setup, World};

/// A world whose stream is not there.
async fn without_stream(kind: Kind, retention: RetentionPolicy) -> World {
    let world = World::start(Setup::new(kind, retention)).await;
    world.jetstream.delete_stream(&world.setup.name).await.unwrap();
    world
}

fn adjusted(world: &World, adjust: impl FnOnce(&mut Settings)) -> Group {
    let mut settings = world.setup.settings();
    adjust(&mut settings);
    world.setup.group().with_settings(settings).unwrap()
}

async fn refused(world: &mut World, group: Group) -> Error {
    let client = world.client.clone();
    let error = world.try_join_group("m", &client, group).await.unwrap_err();
    assert!(!error.is_retryable(), "{error:?}");
    error
}

async fn has_bucket(world: &World) -> bool {
    let bucket = world.jetstream.get_key_value(&world.setup.name).await;
    bucket
        .map_err(|error| assert_eq!(error.kind(), KeyValueErrorKind::GetBucket))
        .is_ok()
}

#[tokio::test]
async fn what_is_refused_is_not_provisioned_first() {
    let retained = |retention| Config {
        retention,
        ..Config::default()
    };
    let unacked = |settings: &mut Settings| settings.acks = Acks::None;
    for retention in [Interest, WorkQueue] {
        let mut world = World::start(Setup::new(Kind::Transformed, retention)).await;
        let group = adjusted(&world, unacked);
        let error = refused(&mut world, group).await;
        assert!(error.to_string().contains("Acks::None"), "{error}");
        assert!(!has_bucket(&world).await);
        let world = without_stream(Kind::Transformed, Limits).await;
        let error = adjusted(&world, unacked)
            .provision(&world.client, retained(retention))
            .await
            .unwrap_err();
        assert!(matches!(&error, Error::StreamUnsuitable { .. }), "{error:?}");
        assert!(world.jetstream.get_stream(&world.setup.name).await.is_err(), "{error}");
    }
    let limited = |max_consumers| Config {
        max_consumers,
        ..Config::default()
    };
    for (kind, template, start) in [
        (Kind::Token, retained(Interest), StartFrom::First),
        (Kind::Transformed, retained(WorkQueue), StartFrom::New),
        (Kind::Transformed, limited(8), StartFrom::First),
    ] {
        let world = without_stream(kind, Limits).await;
        let group = adjusted(&world, |settings| settings.start = start);
        let error = group.provision(&world.client, template).await.unwrap_err();
        assert!(matches!(&error, Error::StreamUnsuitable { .. }), "{error:?}");
        assert!(world.jetstream.get_stream(&world.setup.name).await.is_err(), "{error}");
    }
}

#[tokio::test]
async fn a_stream_that_allows_too_few_consumers_is_refused_with_both_numbers() {
    for (retention, enough) in [(Limits, 17), (WorkQueue, 8)] {
        let mut world = without_stream(Kind::Transformed, retention).await;
        let group = world.setup.group();
        let mut config = world.setup.stream_template();
        group.provision(&world.client, config.clone()).await.unwrap();
        let mut stream = world.jetstream.get_stream(&world.setup.name).await.unwrap();
        config = stream.info().await.unwrap().config.clone();
        for limit in [enough - 1, enough] {
            world.jetstream.delete_stream(&world.setup.name).await.unwrap();
            config.max_consumers = limit;
            let made = world.jetstream.create_stream(config.clone()).await.unwrap();
            if retention == Limits {
                // Somebody else's; on the work queue it would be in the way.
                let other = async_nats::jetstream::consumer::pull::Config::default();
                made.create_consumer_strict(other).await.unwrap();
            }
            if limit < enough {
                let error = refused(&mut world, group.clone()).await;
                assert!(
                    error.to_string().contains(&format!("allows {limit} consumers")),
                    "{error}"
                );
                assert!(!has_bucket(&world).await);
            }
        }
        world.join("m").await;
        world.wait_settled(&["m"]).await;
    }
}

#[tokio::test]
async fn a_stream_that_allows_too_few_unacked_messages_is_refused_until_the_settings_fit() {
    let mut world = without_stream(Kind::Transformed, Limits).await;
    let template = Config {
        consumer_limits: Some(ConsumerLimits {
            inactive_threshold: Duration::ZERO,
            max_ack_pending: 20,
        }),
        ..Config::default()
    };
    let few = |settings: &mut Settings| {
        settings.max_held_per_partition = 5.try_into().unwrap();
        settings.max_parked = 10.try_into().unwrap();
    };
    let fitting = adjusted(&world, few);
    let error = world
        .setup
        .group()
        .provision(&world.client, template.clone())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("20 unacked messages"), "{error}");
    fitting.provision(&world.client, template).await.unwrap();
    let too_many = world.setup.group();
    let error = refused(&mut world, too_many).await;
    assert!(error.to_string().contains("20 unacked messages"), "{error}");
    assert!(!has_bucket(&world).await);
    let client = world.client.clone();
    world.try_join_group("m", &client, fitting).await.unwrap();
    world.wait_settled(&["m"]).await;
}

#[tokio::test]
async fn a_bucket_that_forgets_is_refused() {
    let mut world = World::new().await;
    let bucket = kv::Config {
        bucket: world.setup.name.clone(),
        max_age: Duration::from_secs(60),
        ..kv::Config::default()
    };
    world.jetstream.create_key_value(bucket).await.unwrap();
    let group = world.setup.group();
    let error = refused(&mut world, group).await;
    assert!(matches!(&error, Error::BucketUnsuitable { .. }), "{error:?}");
    assert!(error.to_string().contains("after 60s"), "{error}");
}

#[tokio::test]
async fn a_member_that_looks_for_the_others_in_another_bucket_is_refused() {
    let mut world = World::new().await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let elsewhere = adjusted(&world, |settings| settings.bucket.push_str("-other"));
    let error = refused(&mut world, elsewhere).await;
    let Error::ConfigMismatch {
        field, wanted, found, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((*field, found), ("bucket", &world.setup.name));
    assert!(world.jetstream.get_key_value(wanted.as_str()).await.is_err());
}

#[tokio::test]
async fn dead_letters_without_a_place_to_stay_are_refused() {
    let mut world = World::new().await;
    let prefix = format!("dead-{}", world.setup.name);
    let taken = Config {
        name: format!("{prefix}-taken"),
        subjects: vec![format!("{prefix}.>")],
        retention: Interest,
        ..Config::default()
    };
    world.jetstream.create_stream(taken.clone()).await.unwrap();
    for (stream, text) in [
        (format!("{prefix}-new"), taken.name.as_str()),
        (taken.name.clone(), "interest"),
    ] {
        let letters = DeadLetterSettings::new(stream, prefix.clone());
        let group = adjusted(&world, |settings| settings.dead_letters = Some(letters));
        let error = refused(&mut world, group).await;
        assert!(error.to_string().contains(text), "{error}");
        assert!(!has_bucket(&world).await);
    }
}

#[tokio::test]
async fn a_server_without_jetstream_is_told() {
    let server = jetring::testing::NatsServer::builder().own().start().await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    // Nobody listens to the requests of a domain that is not there, as where JetStream is not enabled.
    let strategy = jetring::Transformed::of("t.*", 4).unwrap();
    let settings = Settings {
        domain: Some("elsewhere".to_owned()),
        ..Settings::default()
    };
    let group = Group::new("g", "S", strategy).unwrap().with_settings(settings).unwrap();
    let error = group.join(&client, "m", |_: jetring::Delivery| async { Ok(()) }).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("is JetStream enabled"), "{text}");
}

#[tokio::test]
async fn more_partitions_than_a_server_allows_consumers_are_refused_where_it_has_such_a_limit() {
    let world = World::new().await;
    let version = world.client.server_info().version;
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    let name = format!("{}-many", world.setup.name);
    let strategy = jetring::Transformed::of(&format!("{name}.*"), 1000).unwrap();
    let group = Group::new(&name, &name, strategy).unwrap();
    let provisioned = group.provision(&world.client, Config::default()).await;
    if minor < 15 {
        return provisioned.unwrap();
    }
    let text = provisioned.unwrap_err().to_string();
    assert!(
        text.contains("1000 consumers") && text.contains("max_consumers"),
        "{text}"
    );
    let raised = Config {
        max_consumers: 1100,
        ..Config::default()
    };
    group.provision(&world.client, raised).await.unwrap();
}

#[tokio::test]
async fn a_limit_of_unacked_messages_does_not_matter_where_nothing_is_acked() {
    let mut world = without_stream(Kind::Transformed, Limits).await;
    let template = Config {
        consumer_limits: Some(ConsumerLimits {
            inactive_threshold: Duration::ZERO,
            max_ack_pending: 20,
        }),
        ..Config::default()
    };
    let group = adjusted(&world, |settings| settings.acks = Acks::None);
    group.provision(&world.client, template).await.unwrap();
    let client = world.client.clone();
    world.try_join_group("m", &client, group).await.unwrap();
    world.wait_settled(&["m"]).await;
    world.publish_round(&["k0", "k1", "k2"], 10).await;
    world.await_handled().await;
    world.verdict().exactly_once();
}
