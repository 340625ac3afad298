//! Chaos: a group on a cluster of servers, faults from a seeded schedule, and a judgement of what the handlers did.
//!
//! ```text
//! schedule(seed) --> run --+--> fleet:   kill, freeze, start, stop member processes --> their handlers' records --+
//!                          +--> stage:   kill and restart servers, cut and slow down connections                  +--> judge --> verdict
//!                          +--> meddle:  move leaders, delete consumers and records, purge the stream             |
//!                          publisher --> stream (confirmed, one message per key at a time) -----------------------+
//! ```
//!
//! | file | about |
//! |---|---|
//! | `schedule` | which fault when, from a seed and nothing else |
//! | `member` | a member in a process of its own |
//! | `fleet` | the member processes and what they wrote down |
//! | `stage`, `servers` | the cluster, the stream, and a proxy for every member and server |
//! | `meddle` | what somebody with a NATS client can do to a group behind its back |
//! | `run` | the run: traffic, faults, healing, draining |
//! | `judge`, `verdict` | what the records say, and how it is told |
//!
//! The program `chaos` and the test `chaos` are both this, with different lengths.

pub(crate) mod fleet;
pub(crate) mod judge;
pub(crate) mod meddle;
pub(crate) mod member;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod servers;
pub(crate) mod stage;
pub(crate) mod verdict;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jetring::testing::ProcessBuilder;
use serde::Serialize;

use self::member::{Plant, Retention};

/// What a run is set to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Settings {
    /// Everything random comes from it.
    pub(crate) seed: u64,
    /// How long faults happen.
    pub(crate) length: Duration,
    /// How long the members may take, when nothing disturbs them any more, to handle what is left.
    pub(crate) patience: Duration,
    /// How many servers there are.
    pub(crate) servers: usize,
    /// How many members there are most of the time; two more come and go.
    pub(crate) members: usize,
    /// How many partitions they share.
    pub(crate) partitions: u16,
    /// How many keys are published.
    pub(crate) keys: u32,
    /// How many messages are published per second.
    pub(crate) rate: u32,
    /// The group's setting of this name.
    pub(crate) session_timeout: Duration,
    /// What the stream keeps.
    pub(crate) retention: Retention,
    /// What the members do wrong on purpose.
    pub(crate) plant: Plant,
}

/// How a member process is started: given what [`member::run`] takes.
pub(crate) type Launch = fn(&str) -> io::Result<ProcessBuilder>;

/// Where a run happens.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The folder for the members' records and logs.
    pub(crate) folder: PathBuf,
    /// How a member process is started.
    pub(crate) launch: Launch,
    /// Whether what happens is printed to stderr as it does.
    pub(crate) tell: bool,
}
