//! Messages that kill whatever process runs them, under a supervisor that starts processes again: they are found out, and nothing
//! else is blamed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RetentionPolicy::{self, Limits, WorkQueue};

use crate::support::process::{POISON, Spec};
use crate::support::{Kind, Setup, World, eventually};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// How long the other handlers take: some always run.
const PACE: Duration = Duration::from_millis(3);

/// Every restart takes a session timeout until the predecessor is given up.
const DEADLINE: Duration = Duration::from_secs(120);

/// The processes that die before the poison is found out: one that dies before it has said what it runs, two until the message is
/// suspected, three alone; and one for each member that was in the middle of something else.
const MOST_RESTARTS: usize = 10;

fn setup(kind: Kind, retention: RetentionPolicy) -> Setup {
    Setup {
        session_timeout: Duration::from_secs(1),
        ..Setup::new(kind, retention)
    }
}

/// Restarts processes that die until a member tells what begins like that; how many restarts it took.
async fn supervise(world: &mut World, ids: &[&str], adapt: impl Fn(&mut Spec), change: &str) -> usize {
    let end = Instant::now() + DEADLINE;
    let mut restarts = 0;
    while !ids.iter().any(|id| world.has_told(id, change)) {
        for id in ids {
            restarts += usize::from(world.restart_dead(id, &adapt));
        }
        assert!(
            restarts <= MOST_RESTARTS && Instant::now() < end,
            "{:?}",
            world.deaths().await
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    restarts
}

/// The poison is parked: it died alone three times and nothing else is blamed; its key waits, all others go on.
async fn the_poison_is_parked(kind: Kind, retention: RetentionPolicy, ids: &[&str], dies_after: Duration) {
    let mut world = World::start(setup(kind, retention)).await;
    let adapt = |spec: &mut Spec| (spec.pace, spec.dies_after) = (PACE, dies_after);
    for id in ids {
        world.spawn_with(id, adapt);
        world.await_change(id, "Joined", 0).await;
    }
    world.wait_settled(ids).await;
    world.publish_round(&KEYS, 3).await;
    world.publish("x").await;
    let poison = world.publish_body("x", POISON).await;
    let publisher = world.keep_publishing(&KEYS);
    let mut given_up = BTreeSet::from([poison]);
    for _ in 0..3 {
        given_up.insert(world.publish_body("x", "behind").await);
    }
    let restarts = supervise(
        &mut world,
        ids,
        adapt,
        &format!("Parked x {poison}: its process died 3 times"),
    )
    .await;
    let kills = world
        .journal
        .starts()
        .iter()
        .filter(|(_, start)| start.sequence == poison)
        .count();
    println!("{kind:?} {retention:?} {ids:?} {dies_after:?}: parked after {kills} runs and {restarts} restarts");
    // Nobody dies any more, and whatever is not behind the poison is handled.
    world.publish_round(&KEYS, 20).await;
    publisher.stop().await;
    world.await_handled().await;
    world.verdict_without(&given_up).at_least_once();
    for id in ids {
        assert!(!world.restart_dead(id, adapt));
    }
    let starts = world.journal.starts();
    let begun = |sequence: &u64| starts.iter().any(|(_, start)| start.sequence == *sequence);
    assert_eq!(
        given_up.iter().filter(|sequence| begun(sequence)).collect::<Vec<_>>(),
        [&poison]
    );
    eventually("only the poison is blamed", async || {
        let deaths = world.deaths().await;
        let of_poison = deaths
            .get(&poison)
            .map_or(0, |of| of.iter().filter(|death| death.alone).count());
        if deaths.len() == 1 && of_poison == 3 {
            Ok(())
        } else {
            Err(deaths)
        }
    })
    .await;
    // A member that comes later knows it from the record.
    world.join("late").await;
    let all: Vec<&str> = ids.iter().copied().chain(["late"]).collect();
    world.wait_settled(&all).await;
    for id in ids {
        world.leave(id).await;
    }
    world.wait_settled(&["late"]).await;
    let member = world.members.here.get_mut("late").unwrap();
    let parked = |status: &jetring::Status| {
        let partitions = status.lanes.partitions.iter();
        let parked = partitions.flat_map(|partition| &partition.parked);
        parked.map(|parked| parked.stream_sequence).collect::<Vec<_>>()
    };
    let status = member.wait_until(|status| !parked(status).is_empty()).await.unwrap();
    assert_eq!(parked(&status), [poison]);
}

#[tokio::test]
async fn a_message_that_kills_at_once_is_parked() {
    the_poison_is_parked(Kind::Transformed, Limits, &["a"], Duration::ZERO).await;
}

#[tokio::test]
async fn a_message_that_kills_at_once_is_parked_on_a_work_queue() {
    the_poison_is_parked(Kind::Transformed, WorkQueue, &["a"], Duration::ZERO).await;
}

#[tokio::test]
async fn a_message_that_kills_after_a_while_is_parked_while_two_members_go_on_with_others() {
    the_poison_is_parked(Kind::Transformed, Limits, &["a", "b"], Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_message_that_kills_by_token_is_parked() {
    the_poison_is_parked(Kind::Token, WorkQueue, &["a", "b"], Duration::ZERO).await;
}

#[tokio::test]
async fn a_killer_becomes_a_dead_letter_where_that_is_wanted_and_its_key_goes_on() {
    let mut world = World::start(Setup {
        dead_letter_killers: true,
        ..setup(Kind::Transformed, WorkQueue)
    })
    .await;
    let adapt = |spec: &mut Spec| spec.pace = PACE;
    world.spawn_with("a", adapt);
    world.wait_settled(&["a"]).await;
    world.publish_round(&KEYS, 3).await;
    let poison = world.publish_body("x", POISON).await;
    let behind = world.publish("x").await;
    world.publish_round(&KEYS, 3).await;
    let end = Instant::now() + DEADLINE;
    while !world.journal.is_done(behind) {
        world.restart_dead("a", adapt);
        assert!(Instant::now() < end, "{:?}", world.deaths().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.await_handled().await;
    world.all_acked().await;
    world.verdict_without(&BTreeSet::from([poison])).at_least_once();
    let letters = world.setup.group().dead_letters(&world.client).unwrap();
    let found = letters.list(1, 10).await.unwrap();
    assert_eq!(
        found.iter().map(|letter| letter.origin.sequence).collect::<Vec<_>>(),
        [poison]
    );
    assert!(found[0].origin.error.contains("died 3 times"), "{:?}", found[0].origin);
    eventually("nothing is left of it", async || {
        let deaths = world.deaths().await;
        if deaths.is_empty() { Ok(()) } else { Err(deaths) }
    })
    .await;
}

/// Waits until the record says that the message runs in somebody's tenure, and no death is counted against anything.
async fn await_innocent(world: &World, sequence: u64) {
    eventually("it runs again and is not blamed", async || {
        let started = world
            .marks()
            .await
            .iter()
            .any(|marks| marks.started.contains(&sequence));
        let deaths = world.deaths().await;
        if started && deaths.is_empty() {
            Ok(())
        } else {
            Err((started, deaths))
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_restarts_blames_no_long_handler() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start_on_own_server(setup(Kind::Transformed, retention)).await;
        let hold = |spec: &mut Spec| spec.held_key = Some("x".to_owned());
        for id in ["a", "b"] {
            world.spawn_with(id, hold);
            world.await_change(id, "Joined", 0).await;
        }
        world.wait_settled(&["a", "b"]).await;
        let long = world.publish("x").await;
        await_innocent(&world, long).await;
        let runs = world.journal.starts().len();
        world.server().kill().unwrap();
        for id in ["a", "b"] {
            world.await_change(id, "Fenced", 0).await;
        }
        world.server().restart().await.unwrap();
        world.wait_settled(&["a", "b"]).await;
        eventually("it begins again", async || {
            let starts = world.journal.starts().len();
            if starts > runs { Ok(()) } else { Err(starts) }
        })
        .await;
        await_innocent(&world, long).await;
        for id in ["a", "b"] {
            world.process(id).open_gate();
        }
        world.await_handled().await;
        world.verdict().at_least_once();
    }
}

#[tokio::test]
async fn a_process_that_was_frozen_past_its_lease_takes_back_what_was_counted() {
    for retention in [Limits, WorkQueue] {
        let mut world = World::start(Setup {
            // Time to look at the records between its waking and the next move of partitions.
            rebalance_delay: Duration::from_secs(3),
            ..setup(Kind::Transformed, retention)
        })
        .await;
        let hold = |spec: &mut Spec| spec.held_key = Some("x".to_owned());
        world.spawn_with("a", hold);
        world.wait_settled(&["a"]).await;
        let long = world.publish("x").await;
        await_innocent(&world, long).await;
        world.process("a").freeze();
        world.spawn_with("b", hold);
        world.await_started("b", long).await;
        // It has to be taken for dead, or there is nothing to be taken back.
        let deaths = world.deaths().await;
        assert_eq!(deaths.keys().collect::<Vec<_>>(), [&long], "{deaths:?}");
        world.process("a").thaw();
        world.await_change("a", "Fenced", 0).await;
        world.await_change("a", "Joined", 1).await;
        await_innocent(&world, long).await;
        for id in ["a", "b"] {
            world.process(id).open_gate();
        }
        world.await_handled().await;
        world.verdict().at_least_once_with_overrun(&["a"]);
    }
}
