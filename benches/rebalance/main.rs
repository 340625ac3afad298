//! What a join, a leave and a crash cost, on a real server under steady load: `cargo bench --bench rebalance`.
//!
//! For each number of partitions a group of three members works while every partition gets a message at equal times. Then a
//! fourth member joins, one leaves (SIGTERM), another one joins, and one is killed (SIGKILL); and all of that again. Before
//! each event nothing happens for as long, which shows what the machine itself does. Members are processes of their own, as
//! in the demo, whose parts this uses: each handler writes down when it starts and ends, and all times come from these records.
//! What is written into the group's bucket is counted from the bucket's own stream.
//!
//! ```text
//! publisher --> stream --> members (processes) --> their handlers' records --+
//!                             |                                              +--> figures --> table, JSON, picture
//!                             +--> bucket --> every write of it -------------+
//! ```
//!
//! - `run` makes the events; `bucket` follows the writes; `figures` measures; `report`, `bounds` and `plot` show.
//! - A figure that misses its bound is shown as such. It does not fail the run: that says as much about the machine.
//! - A message that is lost, out of order, or handled by two members at once does.

// What is shared with the demo. Some of it only the demo needs, and its tests run there.
#[allow(dead_code, unused_imports, reason = "the demo uses the rest")]
#[path = "../../examples/partition_demo/assignment.rs"]
mod assignment;
#[allow(dead_code, reason = "the demo uses the rest")]
#[path = "../../examples/partition_demo/fleet.rs"]
mod fleet;
#[allow(dead_code, reason = "the demo uses the rest")]
#[path = "../../examples/partition_demo/member.rs"]
mod member;
#[allow(dead_code, unused_imports, reason = "the demo uses the rest")]
#[path = "../../examples/partition_demo/pauses.rs"]
mod pauses;
#[allow(dead_code, reason = "the demo uses the rest")]
#[path = "../../examples/partition_demo/stage.rs"]
mod stage;
#[allow(
    dead_code,
    unused_imports,
    reason = "other programs use the rest, and have its tests"
)]
#[path = "../../examples/support/mod.rs"]
mod support;

mod bounds;
mod bucket;
mod figures;
mod options;
mod plot;
mod report;
mod run;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::options::Options;
use crate::report::Report;
use crate::stage::Stage;
use crate::support::{Fault, checks, clock, history, journal, publisher, random};

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    if let Some(spec) = &options.run_member {
        return match member::run(spec).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fault(&*error),
        };
    }
    if !options.is_meant() {
        // `cargo test --all-targets` runs benches too, and other benches have filters.
        println!("rebalance: not measured; cargo bench --bench rebalance");
        return ExitCode::SUCCESS;
    }
    match bench(&options).await {
        Ok(Some(report)) => conclude(&report),
        Ok(None) => ExitCode::from(INTERRUPTED),
        Err(error) => fault(&*error),
    }
}

fn fault(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

/// Measures all sizes; `None` if it was interrupted. Either way nothing of it is left.
async fn bench(options: &Options) -> Result<Option<Report>, Fault> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut report = Report::new(options);
    for partitions in options.partitions() {
        let stage = tokio::select! {
            stage = Stage::build("rebalance-bench", options.group(partitions)) => stage?,
            _ = interrupt.recv() => return Ok(None),
            _ = terminate.recv() => return Ok(None),
        };
        report.server = stage.server_version();
        eprintln!("{partitions} partitions on {}", stage.server());
        // What is dropped with the run kills its members.
        let past = tokio::select! {
            past = run::run(&stage, options) => past.map(Some),
            _ = interrupt.recv() => Ok(None),
            _ = terminate.recv() => Ok(None),
        };
        stage.tidy_up().await;
        match past? {
            Some(past) => report.sizes.push(figures::measure(&past, partitions)),
            None => return Ok(None),
        }
    }
    Ok(Some(report))
}

/// Shows and stores what was measured.
fn conclude(report: &Report) -> ExitCode {
    println!("{}", report.table());
    match store(report) {
        Ok(folder) => println!("{}: rebalance.json, rebalance.svg", folder.display()),
        Err(error) => return fault(&*error),
    }
    if report.is_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn store(report: &Report) -> Result<PathBuf, Fault> {
    // The folder that cargo gives to benches is one below its target folder.
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = scratch.parent().unwrap_or(scratch).join("rebalance");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("rebalance.json"), report.json()?)?;
    plot::draw(report, &folder.join("rebalance.svg"))?;
    Ok(folder)
}
