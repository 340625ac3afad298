//! What is measured.

use std::time::Duration;

use clap::{Parser, value_parser};

use crate::member::{GroupChoice, Partitioning};

/// Measures what a join, a leave and a crash cost on a real server under load.
///
/// Starts a NATS server (or uses the one that NATS_URL names), prints a table, and writes JSON and an SVG picture into
/// target/rebalance.
#[derive(Debug, Clone, Parser)]
#[command(name = "rebalance")]
pub(crate) struct Options {
    /// How many partitions there are; several are measured one after the other. [default: 16,32,64, quick: 16]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = value_parser!(u16).range(4..=1024))]
    partitions: Option<Vec<u16>>,

    /// How often all events are repeated. [default: 3, quick: 1]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u16).range(1..=100))]
    repeat: Option<u16>,

    /// One short run, to see whether all works: too little for good figures.
    #[arg(long)]
    quick: bool,

    /// The time between two messages of a partition, in milliseconds.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = value_parser!(u16).range(1..=1000))]
    spacing: u16,

    /// How long a member may be silent before the others take over, in milliseconds. [default: 4000, quick: 1000]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u64).range(500..=60_000))]
    session_timeout: Option<u64>,

    /// How keys become consumers.
    #[arg(long, value_enum, default_value_t = Partitioning::Transformed)]
    pub(crate) partitioning: Partitioning,

    /// What cargo gives to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,

    /// Which benchmarks are meant, where several are run at once: those whose name has this in it.
    #[arg(hide = true)]
    filter: Option<String>,

    /// What a member process is given by the benchmark that starts it.
    #[arg(long, hide = true)]
    pub(crate) run_member: Option<String>,
}

impl Options {
    /// How many members a group has when it is at rest. One more joins.
    pub(crate) const MEMBERS: usize = 3;

    /// Whether this benchmark is to be run.
    pub(crate) fn is_meant(&self) -> bool {
        let filter = self.filter.as_deref().unwrap_or_default();
        self.bench && "rebalance".contains(filter)
    }

    /// The sizes.
    pub(crate) fn partitions(&self) -> Vec<u16> {
        let usual = if self.quick { vec![16] } else { vec![16, 32, 64] };
        self.partitions.clone().unwrap_or(usual)
    }

    /// How often all events happen.
    pub(crate) fn repeat(&self) -> u16 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// The time between two messages of a partition.
    pub(crate) fn spacing(&self) -> Duration {
        Duration::from_millis(self.spacing.into())
    }

    /// The group's setting.
    pub(crate) fn session_timeout(&self) -> Duration {
        let usual = if self.quick { 1000 } else { 4000 };
        Duration::from_millis(self.session_timeout.unwrap_or(usual))
    }

    /// How many keys each partition has. By token each costs a consumer.
    pub(crate) fn keys_per_partition(&self) -> usize {
        match self.partitioning {
            Partitioning::Token => 2,
            Partitioning::Transformed => 8,
        }
    }

    /// The group of one size.
    pub(crate) fn group(&self, partitions: u16) -> GroupChoice {
        GroupChoice {
            topic: "rebalance-bench".to_owned(),
            partitioning: self.partitioning,
            partitions,
            session_timeout: self.session_timeout(),
        }
    }
}
