//! What does not fit is refused with an error of its own kind, before anything is created.

use std::time::Duration;

use async_nats::jetstream::context::KeyValueErrorKind;
use async_nats::jetstream::stream::RetentionPolicy::{Interest, Limits, WorkQueue};
use async_nats::jetstream::stream::{Config, Source};
use jetring::ids::NameError;
use jetring::partitioning::{PartitionsError, PatternError, SubjectPattern};
use jetring::{Delivery, Error, Group, Settings, StartFrom, Token, Transformed};

use crate::support::{Kind, Setup, World};

/// The error of a join that must not succeed.
async fn refused(world: &World, group: &Group) -> Error {
    refused_as(world, group, "m").await
}

async fn refused_as(world: &World, group: &Group, id: &str) -> Error {
    let handler = |_: Delivery| async { Ok(()) };
    let error = group.join(&world.client, id, handler).await.unwrap_err();
    assert!(!error.is_retryable(), "{error:?}");
    error
}

/// Neither a bucket nor a consumer is there.
async fn nothing_was_created(world: &World) {
    let bucket = world.jetstream.get_key_value(&world.setup.name).await;
    assert_eq!(bucket.unwrap_err().kind(), KeyValueErrorKind::GetBucket);
    assert_eq!(world.consumers().await.len(), 0);
}

fn adjusted(world: &World, group: Group, adjust: impl FnOnce(&mut Settings)) -> Group {
    let mut settings = world.setup.settings();
    adjust(&mut settings);
    group.with_settings(settings).unwrap()
}

#[tokio::test]
async fn names_that_cannot_be_are_named() {
    let world = World::new().await;
    let partitioning = || Transformed::of("orders.*", 8).unwrap();
    let empty = Group::new("", "ORDERS", partitioning()).unwrap_err();
    assert!(
        matches!(&empty, Error::Name(NameError::Empty { what: "group name" })),
        "{empty:?}"
    );
    let long = Group::new("ü".repeat(50), "ORDERS", partitioning()).unwrap_err();
    assert!(
        matches!(&long, Error::Name(NameError::TooLong { found: 300, .. })),
        "{long:?}"
    );
    for stream in ["", "a b", "a.b", "a*", "a>", "a/b", "a\\b", "a\n"] {
        let odd = Group::new("g", stream, partitioning()).unwrap_err();
        assert!(
            matches!(&odd, Error::StreamName { stream: found } if found == stream),
            "{odd:?}"
        );
    }
    let group = world.setup.group();
    let empty = refused_as(&world, &group, "").await;
    assert!(
        matches!(&empty, Error::Name(NameError::Empty { what: "member id" })),
        "{empty:?}"
    );
    let long = refused_as(&world, &group, &"m".repeat(129)).await;
    assert!(
        matches!(&long, Error::Name(NameError::TooLong { found: 129, .. })),
        "{long:?}"
    );
    nothing_was_created(&world).await;
}

#[test]
fn partitionings_that_cannot_be_are_named() {
    let none = Transformed::of("orders.*", 0).unwrap_err();
    assert!(matches!(none, Error::Partitions(PartitionsError::Zero)), "{none:?}");
    let many = Transformed::of("orders.*", 100_000).unwrap_err();
    assert!(
        matches!(many, Error::Partitions(PartitionsError::TooMany { found: 100_000 })),
        "{many:?}"
    );
    for (pattern, expected) in [
        ("", "empty"),
        ("orders", "no '*'"),
        ("orders.>", "no '*'"),
        ("orders..*", "nothing in token 2"),
        ("orders.a*", "wildcard inside token"),
        ("orders.>.*", "goes on behind '>'"),
        ("or ders.*", "white space"),
        ("$JS.*", "begins with '$'"),
    ] {
        let error = Token::of(pattern).unwrap_err();
        assert!(error.to_string().contains(expected), "{pattern}: {error}");
        assert_eq!(
            SubjectPattern::parse(pattern),
            Err::<SubjectPattern, PatternError>(error)
        );
    }
}

#[tokio::test]
async fn settings_that_cannot_be_are_named() {
    let world = World::new().await;
    let with = |settings| world.setup.group().with_settings(settings).unwrap_err();
    let short = with(Settings {
        session_timeout: Duration::from_secs(2),
        heartbeat_interval: Some(Duration::from_secs(1)),
        ..world.setup.settings()
    });
    assert!(
        matches!(&short, Error::Settings(error) if error.field == "session_timeout"),
        "{short:?}"
    );
    assert!(short.to_string().contains("three heartbeats of 1s"), "{short}");
    let tiny = with(Settings {
        session_timeout: Duration::from_millis(50),
        ..world.setup.settings()
    });
    assert!(tiny.to_string().contains("50ms"), "{tiny}");
    nothing_was_created(&world).await;
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_named() {
    let world = World::new().await;
    let missing = Group::new("g", "NOT_THERE", Token::of("orders.*").unwrap()).unwrap();
    let missing = adjusted(&world, missing, |_| ());
    let error = refused(&world, &missing).await;
    assert!(
        matches!(&error, Error::StreamMissing { stream } if stream == "NOT_THERE"),
        "{error:?}"
    );
    nothing_was_created(&world).await;
}

#[tokio::test]
async fn a_stream_that_does_not_cover_the_subject_is_named_with_what_it_takes() {
    let world = World::start(Setup::new(Kind::Token, Limits)).await;
    for pattern in ["orders.*".to_owned(), world.setup.subject("*.*"), "*.*".to_owned()] {
        let group = Group::new("g", &world.setup.name, Token::of(&pattern).unwrap()).unwrap();
        let error = refused(&world, &adjusted(&world, group, |_| ())).await;
        assert!(
            matches!(&error, Error::StreamDoesNotCover { subject, found, .. }
                if *subject == pattern && *found == [world.setup.subject("*")]),
            "{error:?}"
        );
    }
    nothing_was_created(&world).await;
}

#[tokio::test]
async fn s43_another_number_of_partitions_or_no_transform_is_refused_with_both_values() {
    // Transformed: the stream itself says how many partitions there are.
    let world = World::new().await;
    let other = Setup {
        partitions: 16,
        ..world.setup.clone()
    };
    let error = refused(&world, &other.group()).await;
    assert!(matches!(error, Error::StreamUnsuitable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("16") && text.contains('8'), "{text}");
    nothing_was_created(&world).await;
    // The other way round: a stream that stores partitions for a group that knows none.
    let plain = Setup {
        kind: Kind::Token,
        ..world.setup.clone()
    };
    let error = refused(&world, &plain.group()).await;
    assert!(error.to_string().contains("use transformed partitioning"), "{error}");
    // A stream without a transform.
    let world = World::start(Setup::new(Kind::Token, Limits)).await;
    let transformed = Setup {
        kind: Kind::Transformed,
        ..world.setup.clone()
    };
    let error = refused(&world, &transformed.group()).await;
    assert!(matches!(error, Error::StreamUnsuitable { .. }), "{error:?}");
    assert!(error.to_string().contains("partition(8,1)"), "{error}");
    nothing_was_created(&world).await;
}

#[tokio::test]
async fn a_config_that_differs_from_the_groups_is_named_with_both_values() {
    let mut world = World::start(Setup {
        keys: "*.*".to_owned(),
        ..Setup::new(Kind::Token, Limits)
    })
    .await;
    world.join("a").await;
    world.wait_settled(&["a"]).await;
    let setup = world.setup.clone();
    let partitions = Setup {
        partitions: 16,
        ..setup.clone()
    };
    let key_tokens = Setup {
        key_tokens: vec![2],
        ..setup.clone()
    };
    let subject = Setup {
        keys: "eu.*".to_owned(),
        ..setup.clone()
    };
    let session_timeout = Setup {
        session_timeout: Duration::from_secs(8),
        ..setup.clone()
    };
    let ring_seed = adjusted(&world, setup.group(), |settings| settings.ring_seed = 7);
    let virtual_nodes = adjusted(&world, setup.group(), |settings| {
        settings.virtual_nodes = 16.try_into().unwrap()
    });
    for (group, field, wanted, found) in [
        (partitions.group(), "partitions", "16".to_owned(), "8".to_owned()),
        (key_tokens.group(), "key_tokens", "[2]".to_owned(), "[1, 2]".to_owned()),
        (subject.group(), "subject", setup.subject("eu.*"), setup.subject("*.*")),
        (
            session_timeout.group(),
            "session_timeout_ms",
            "8000".to_owned(),
            "4000".to_owned(),
        ),
        (ring_seed, "ring_seed", "7".to_owned(), "0".to_owned()),
        (virtual_nodes, "virtual_nodes", "16".to_owned(), "64".to_owned()),
    ] {
        let error = refused(&world, &group).await;
        assert!(
            matches!(&error, Error::ConfigMismatch { group, field: named, wanted: w, found: f }
                if group.as_str() == setup.name && *named == field && *w == wanted && *f == found),
            "{field}: {error:?}"
        );
    }
    // The one that is there is not disturbed.
    assert_eq!(
        world
            .journal
            .changes("a")
            .iter()
            .filter(|text| text.starts_with("Assigned"))
            .count(),
        1
    );
    // Settings that are a member's own may differ.
    let own = adjusted(&world, setup.group(), |settings| {
        settings.weight = 3;
        settings.concurrency = 1.try_into().unwrap();
        settings.checkpoint_interval = Duration::from_secs(3);
    });
    world.try_join_group("b", &world.client.clone(), own).await.unwrap();
    world.wait_settled(&["a", "b"]).await;
    assert_eq!(world.owned_by("b").await.len(), 6);
}

#[tokio::test]
async fn a_stream_made_anew_is_not_the_groups() {
    let mut world = World::new().await;
    world.join("a").await;
    world.leave("a").await;
    world.jetstream.delete_stream(&world.setup.name).await.unwrap();
    let group = world.setup.group();
    group
        .provision(&world.client, world.setup.stream_template())
        .await
        .unwrap();
    let error = refused(&world, &group).await;
    assert!(
        matches!(
            &error,
            Error::ConfigMismatch {
                field: "stream_created",
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn s47_a_mirror_is_explained() {
    let world = World::start(Setup::new(Kind::Token, Limits)).await;
    let mirror = Config {
        name: format!("{}-mirror", world.setup.name),
        mirror: Some(Source {
            name: world.setup.name.clone(),
            ..Source::default()
        }),
        ..Config::default()
    };
    world.jetstream.create_stream(mirror.clone()).await.unwrap();
    let group = Group::new(
        "g",
        mirror.name,
        Token::new(world.setup.pattern(), 8_u64.try_into().unwrap()),
    )
    .unwrap();
    let error = refused(&world, &adjusted(&world, group, |_| ())).await;
    assert!(error.to_string().contains("use the stream that it mirrors"), "{error}");
    nothing_was_created(&world).await;
}

#[tokio::test]
async fn retentions_that_cannot_keep_the_promise_are_explained() {
    let world = World::start(Setup::new(Kind::Transformed, WorkQueue)).await;
    let group = adjusted(&world, world.setup.group(), |settings| settings.start = StartFrom::New);
    let error = refused(&world, &group).await;
    assert!(error.to_string().contains("use StartFrom::First"), "{error}");
    nothing_was_created(&world).await;
    // `provision` makes the stream and then says that it cannot be used in this way.
    let setup = Setup::new(Kind::Token, Interest);
    let error = setup
        .group()
        .provision(&world.client, setup.stream_template())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("interest retention"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_no_mistake_of_the_caller() {
    let mut world = World::start_on_own_server(Setup::new(Kind::Transformed, Limits)).await;
    let group = adjusted(&world, world.setup.group(), |settings| {
        settings.request_timeout = Duration::from_millis(100);
    });
    world.server().freeze().unwrap();
    let handler = |_: Delivery| async { Ok(()) };
    let error = group.join(&world.client, "m", handler).await.unwrap_err();
    assert!(
        matches!(error, Error::NoAnswer { .. }) && error.is_retryable(),
        "{error:?}"
    );
    world.server().thaw().unwrap();
    world.join("m").await;
    world.wait_settled(&["m"]).await;
}
