//! Chaos on the real thing: `cargo run --release --example chaos -- --minutes 10`.
//!
//! Three servers replicate a stream and a group's bucket. Members, each a process of its own, are killed, frozen, told to leave and
//! started again; servers are killed, leaders moved, connections cut, slowed down and held, consumers and records deleted, and the
//! stream is purged, at random times that a seed decides. Every handler writes down when it starts and ends, outside of its process.
//! When all is healed and handled, these records tell whether a message was lost, out of order, or handled by two members at once.
//!
//! The program is what `engine` says; this is its command line.

#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/mod.rs"]
mod support;

mod engine;
mod options;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use jetring::testing::{Process, ProcessBuilder};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::engine::schedule::schedule;
use crate::engine::verdict::Verdict;
use crate::engine::{Place, member, run};
use crate::options::Options;
use crate::support::Fault;

const FAILED: u8 = 1;
const NOT_MADE: u8 = 2;
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
    match chaos(&options).await {
        Ok(Some(verdict)) => conclude(&options, &verdict),
        Ok(None) => ExitCode::from(INTERRUPTED),
        Err(error) => fault(&*error),
    }
}

fn fault(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(NOT_MADE)
}

/// A member is this program, run again.
fn launch(spec: &str) -> io::Result<ProcessBuilder> {
    Ok(Process::current_exe()?.arg("--run-member").arg(spec))
}

/// Makes the run; `None` if it was interrupted. Either way nothing of it is left but the records, if they are wanted.
async fn chaos(options: &Options) -> Result<Option<Verdict>, Fault> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let temporary = tempfile::Builder::new().prefix("jetring-chaos-").tempdir()?;
    let folder = options.records.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let settings = options.settings();
    let schedule = schedule(&settings);
    let place = Place {
        folder,
        launch,
        tell: true,
    };
    // What is dropped with the run ends its members and servers.
    tokio::select! {
        verdict = run::run(&settings, &schedule, place) => verdict.map(Some),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    }
}

fn conclude(options: &Options, verdict: &Verdict) -> ExitCode {
    let text = match serde_json::to_string_pretty(verdict) {
        Ok(json) if options.json => json,
        Ok(_) => format!("\n{}", verdict.table()),
        Err(error) => return fault(&error),
    };
    if let Err(error) = writeln!(io::stdout(), "{text}") {
        return fault(&error);
    }
    if verdict.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    }
}
