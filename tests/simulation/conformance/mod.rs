//! The simulated server and a real nats-server, on the same random histories: they must agree on every answer.
//!
//! What the simulation is worth depends on that. Time is the one thing that a real server has for itself: histories in which more of
//! it has passed than was meant to are run again.

mod history;
mod real;
mod simulated;

use std::time::Duration;

use jetring::testing::NatsServer;

use crate::number;
use crate::random::Random;
use history::{History, Outcome, Step};
use real::{Real, Spoiled};
use simulated::Simulated;

/// How long consumers here wait for an ack.
const ACK_WAIT: Duration = Duration::from_millis(2_500);

/// How many are compared, unless more are asked for.
const HISTORIES: u64 = 48;

/// How many histories are run at a time: each waits most of its time.
const AT_ONCE: u64 = 48;

fn history(seed: u64) -> History {
    History::random(&mut Random::new(seed ^ 0xC0DE))
}

/// Runs a history on both and says where they differ first. Gives up only when the machine is far too slow.
async fn differ(client: &async_nats::Client, seed: u64) -> Option<String> {
    let history = history(seed);
    let mut simulated = Simulated::new(&history);
    let expected: Vec<Outcome> = history.steps.iter().map(|step| simulated.apply(step)).collect();
    for attempt in 0..5 {
        let mut real = Real::new(client, &history, &format!("{seed}-{attempt}")).await;
        let mut told = String::new();
        let mut spoiled = false;
        for (step, expected) in history.steps.iter().zip(&expected) {
            match real.apply(step, expected).await {
                Err(Spoiled) => {
                    spoiled = true;
                    break;
                }
                Ok(found) if found == *expected => told += &format!("{step:?} -> {found:?}\n"),
                Ok(found) => {
                    real.remove().await;
                    return Some(format!(
                        "history {seed} on {:?}:\n{told}{step:?}\n   simulated: {expected:?}\n   real:      {found:?}",
                        history.kind
                    ));
                }
            }
        }
        real.remove().await;
        if !spoiled {
            return None;
        }
    }
    panic!("history {seed} took longer than an ack wait between two waits, five times");
}

/// `JETRING_SIM_HISTORIES=1000` compares more of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_simulated_server_answers_as_a_real_one_does() {
    let server = NatsServer::builder().own().start().await.unwrap();
    let client = server.connect().await.unwrap();
    let count = number("JETRING_SIM_HISTORIES").unwrap_or(HISTORIES);
    let mut differences = Vec::new();
    for first in (0..count).step_by(AT_ONCE as usize) {
        let mut running = tokio::task::JoinSet::new();
        for seed in first..count.min(first + AT_ONCE) {
            let client = client.clone();
            running.spawn(async move { differ(&client, seed).await });
        }
        differences.extend(running.join_all().await.into_iter().flatten());
    }
    // The shortest tells most.
    differences.sort_by_key(String::len);
    differences.iter().for_each(|difference| println!("{difference}\n"));
    if let Some(shortest) = differences.first() {
        panic!(
            "{} of {count} histories differ; the shortest:\n{shortest}",
            differences.len()
        );
    }
}

/// Histories in which nothing meets would agree on anything.
#[test]
fn the_histories_meet_what_they_are_for() {
    let mut met = std::collections::BTreeMap::<&str, u32>::new();
    for seed in 0..HISTORIES {
        let history = history(seed);
        let mut simulated = Simulated::new(&history);
        for step in &history.steps {
            let what = match (step, simulated.apply(step)) {
                (_, Outcome::Pulled(told)) if told.iter().any(|told| told.count > 1) => "delivered again",
                (_, Outcome::Pulled(told)) if !told.is_empty() => "delivered",
                (Step::Create { .. }, Outcome::Exists) => "exists",
                (Step::Create { .. }, Outcome::Overlaps) => "overlaps",
                (_, Outcome::Conflict) => "conflict",
                (Step::Info(_), Outcome::Info(info)) if info.redelivered > 0 => "redelivered",
                (Step::Info(_), Outcome::Info(info)) if info.ack_pending > 0 => "not acked",
                (Step::Info(_), Outcome::Info(info)) if info.ack_floor.0 > 0 => "acked",
                (_, Outcome::Missing) => "missing",
                _ => continue,
            };
            *met.entry(what).or_default() += 1;
        }
    }
    assert!(met.len() == 9 && met.values().all(|times| *times >= 5), "{met:?}");
}
