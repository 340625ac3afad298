//! Chaos on the real thing, in short, and that it would find something: three servers, member processes, random faults. The long run is
//! the example `chaos`, of which this is the engine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as the tests do"
)]

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../../examples/chaos/engine/mod.rs"]
mod engine;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../../examples/support/mod.rs"]
mod support;

use std::env;
use std::io;
use std::path::Path;
use std::time::Duration;

use jetring::testing::{Process, ProcessBuilder};

use crate::engine::member::{self, Plant, Retention};
use crate::engine::schedule::{Action, Step, schedule};
use crate::engine::verdict::Verdict;
use crate::engine::{Place, Settings, run};
use crate::support::proxy::Link;

/// Holds what the member is given that this process is to be.
const SPEC: &str = "JETRING_CHAOS_MEMBER";

/// A seed for another run: the test's own is always the same, so that what it finds can be found again.
const SEED: &str = "JETRING_CHAOS_SEED";

fn launch(spec: &str) -> io::Result<ProcessBuilder> {
    let this = Process::current_exe()?.args(["--exact", "member_process", "--nocapture"]);
    Ok(this.env(SPEC, spec))
}

/// The member, when this process is one; nothing otherwise.
#[test]
fn member_process() {
    let Ok(spec) = env::var(SPEC) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(member::run(&spec)).unwrap();
}

fn settings(seconds: u64) -> Settings {
    let seed = env::var(SEED).ok().map(|seed| seed.parse().expect(SEED));
    Settings {
        seed: seed.unwrap_or(1),
        length: Duration::from_secs(seconds),
        patience: Duration::from_secs(120),
        servers: 3,
        members: 3,
        partitions: 8,
        keys: 32,
        rate: 100,
        session_timeout: Duration::from_secs(2),
        retention: Retention::Limits,
        plant: Plant::Nothing,
    }
}

async fn chaos(settings: &Settings, schedule: &[Step]) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let place = Place {
        folder: folder.path().to_owned(),
        launch,
        tell: false,
    };
    let verdict = run::run(settings, schedule, place).await.unwrap();
    if !verdict.ok && settings.plant == Plant::Nothing {
        show(&verdict, folder.path());
    }
    verdict
}

/// What somebody needs who wants to know why.
fn show(verdict: &Verdict, folder: &Path) {
    println!("{}\n{}", verdict.log.join("\n"), verdict.table());
    let logs = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for log in logs.filter(|path| path.extension().is_some_and(|ending| ending == "log")) {
        let text = std::fs::read_to_string(&log).unwrap();
        if !text.is_empty() {
            println!("{}:\n{text}", log.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_minute_of_chaos_does_no_harm() {
    let settings = settings(25);
    let verdict = chaos(&settings, &schedule(&settings)).await;
    assert!(verdict.ok, "{:?}", verdict.failures());
    assert!(verdict.published > 0 && verdict.faults.len() > 8, "{verdict:?}");
}

/// A short run on one server, with members that do something wrong.
async fn planted(plant: Plant, actions: &[(u64, Action)]) -> Verdict {
    let settings = Settings {
        servers: 1,
        plant,
        // What is lost stays lost.
        patience: Duration::from_secs(10),
        ..settings(8)
    };
    let steps = actions.iter().map(|&(at, action)| Step {
        at: Duration::from_millis(at),
        action,
    });
    chaos(&settings, &steps.collect::<Vec<_>>()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_finish_messages_before_their_work_is_done_are_found_out() {
    let kill = (4000, Action::Kill { slot: 0 });
    let start = (4500, Action::Start { slot: 0 });
    let verdict = planted(Plant::Early, &[kill, start]).await;
    assert!(verdict.lost > 0 && verdict.out_of_order > 0, "{:?}", verdict.failures());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_whose_work_goes_on_after_their_lease_are_found_out() {
    let link = |link| Action::Link { slot: 0, link };
    let verdict = planted(Plant::Deaf, &[(2000, link(Link::Cut)), (7000, link(Link::Open))]).await;
    assert!(verdict.overlaps > 0, "{:?}", verdict.failures());
}

/// The consumers of a stream that keeps everything have one replica. Those of a server that stays away answer nobody, and that they are
/// gone nobody says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stays_away_stops_no_partition() {
    let settings = settings(32);
    let step = |at, action| Step {
        at: Duration::from_millis(at),
        action,
    };
    let steps = [
        step(1000, Action::KillServer { server: 1 }),
        // A takeover and two joins while it is away.
        step(10_000, Action::Start { slot: 3 }),
        step(13_000, Action::Kill { slot: 0 }),
        step(13_500, Action::Start { slot: 0 }),
    ];
    let verdict = chaos(&settings, &steps).await;
    assert!(verdict.ok, "{:?}", verdict.failures());
    // The servers elect new leaders for some seconds, and some handlers take long. It comes back after 31 s.
    let wait = verdict.longest_wait_ms.unwrap();
    assert!(
        wait < 26_000.0,
        "a message waited for {wait} ms\n{}",
        verdict.log.join("\n")
    );
}
