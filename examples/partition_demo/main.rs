//! The demo to run first: `cargo run --release --example partition_demo`.
//!
//! It starts a NATS server (or uses the one of `NATS_URL`), publishes numbered messages for many keys on `some_topic.<token>`,
//! and handles them with a group of members, each a process of its own. Members join, leave, are killed and are frozen
//! meanwhile. Every handler writes down when it starts and ends, outside of its member, and what is measured at the end comes
//! from these records.
//!
//! ```text
//! publisher ---> stream ---> member-1 (process) ---> its handlers' records ---+
//!                       ---> member-2 (process) ---> its handlers' records ---+--> checks, pauses --> verdict
//!                       ---> ...                                              |
//!            bucket (assignment) ---------------------------------------------+
//! ```
//!
//! To read it: `member` is what a service that uses jetring looks like; `scenario` is the story; `checks` and `pauses` decide
//! how it went, and have tests of their own.

#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/mod.rs"]
mod support;

mod assignment;
mod fleet;
mod measure;
mod member;
mod observer;
mod options;
mod pauses;
mod scenario;
mod schedule;
mod screen;
mod stage;
mod verdict;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::options::Options;
use crate::schedule::Schedule;
use crate::screen::Screen;
use crate::stage::Stage;
use crate::support::{Fault, checks, clock, history, journal, publisher, random};
use crate::verdict::Verdict;

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
    let schedule = match options.schedule() {
        Ok(schedule) => schedule,
        Err(error) => Options::command()
            .error(clap::error::ErrorKind::ValueValidation, error)
            .exit(),
    };
    match demo(&options, schedule).await {
        Ok(Some(verdict)) => conclude(&options, &verdict),
        Ok(None) => ExitCode::from(INTERRUPTED),
        Err(error) => fault(&*error),
    }
}

fn fault(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(NOT_MADE)
}

/// Makes the run; `None` if it was interrupted. Either way nothing of it is left.
async fn demo(options: &Options, schedule: Schedule) -> Result<Option<Verdict>, Fault> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let records = RecordsFolder::new(options)?;
    let mut screen = Screen::new(options.json);
    let stage = tokio::select! {
        stage = Stage::build("partition-demo", options.group()) => stage?,
        _ = interrupt.recv() => return Ok(None),
        _ = terminate.recv() => return Ok(None),
    };
    // What is dropped with the run kills its members.
    let verdict = tokio::select! {
        verdict = scenario::run(&stage, options, schedule, records.path(), &mut screen) => verdict.map(Some),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    };
    stage.tidy_up().await;
    verdict
}

/// Where the members' records go: the folder that was named, or a temporary one.
enum RecordsFolder {
    Named(PathBuf),
    Temporary(TempDir),
}

impl RecordsFolder {
    fn new(options: &Options) -> Result<Self, Fault> {
        match &options.records {
            None => Ok(Self::Temporary(
                tempfile::Builder::new().prefix("partition-demo-").tempdir()?,
            )),
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| format!("--records {}: {error}", folder.display()))?;
                Ok(Self::Named(folder.clone()))
            }
        }
    }

    fn path(&self) -> &std::path::Path {
        match self {
            Self::Named(folder) => folder,
            Self::Temporary(folder) => folder.path(),
        }
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
