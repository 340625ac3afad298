//! The command line.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, value_parser};

use crate::engine::Settings;
use crate::engine::member::{Plant, Retention};

/// Random faults on a group of member processes and a cluster of three servers; checks from the handlers' own records that nothing was
/// lost, reordered or handled by two members at once.
#[derive(Debug, Parser)]
#[command(
    name = "chaos",
    after_help = "\
Exit status: 0 all was well; 1 a message was lost, out of order, or at two members at once, a fencing token fell, a member ended by
itself, or something was left to do; 2 the run could not be made. RUST_LOG=jetring=debug goes to the members' logs in --records."
)]
pub(crate) struct Options {
    /// The seed of everything random: the faults, their times, the order of the keys, what the handlers do. [default: another each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// How many minutes faults happen. Starting and draining come on top.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = value_parser!(u64).range(1..=1440))]
    minutes: u64,

    /// The same in seconds.
    #[arg(long, value_name = "NUMBER", conflicts_with = "minutes", value_parser = value_parser!(u64).range(5..=86400))]
    seconds: Option<u64>,

    /// How many members there are; two more come and go.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = value_parser!(u16).range(2..=32))]
    members: u16,

    /// How many partitions the members share.
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = value_parser!(u16).range(1..=256))]
    partitions: u16,

    /// How many keys are published.
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = value_parser!(u32).range(1..=100_000))]
    keys: u32,

    /// How many messages are published per second.
    #[arg(long, value_name = "NUMBER", default_value_t = 150, value_parser = value_parser!(u32).range(1..=10_000))]
    rate: u32,

    /// How many milliseconds a member may be silent before the others take over.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000, value_parser = value_parser!(u64).range(200..=60_000))]
    session_timeout: u64,

    /// What the stream keeps.
    #[arg(long, value_enum, default_value_t = Retention::Limits)]
    retention: Retention,

    /// Print one JSON object to stdout at the end; what happens meanwhile goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,

    /// Keep the handlers' records and the members' logs in this folder, which must not have any yet.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) records: Option<PathBuf>,

    /// What the members do wrong on purpose, to see that it is found.
    #[arg(long, value_enum, hide = true, default_value_t = Plant::Nothing)]
    plant: Plant,

    /// What a member process is given by the program that starts it.
    #[arg(long, hide = true)]
    pub(crate) run_member: Option<String>,
}

impl Options {
    /// What the run is set to.
    pub(crate) fn settings(&self) -> Settings {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Settings {
            seed: self.seed.unwrap_or(since_epoch.subsec_nanos().into()),
            length: Duration::from_secs(self.seconds.unwrap_or(self.minutes * 60)),
            patience: Duration::from_secs(120),
            servers: 3,
            members: self.members.into(),
            partitions: self.partitions,
            keys: self.keys,
            rate: self.rate,
            session_timeout: Duration::from_millis(self.session_timeout),
            retention: self.retention,
            plant: self.plant,
        }
    }
}
