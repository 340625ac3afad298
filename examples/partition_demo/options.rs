//! What the run is set to, checked before anything starts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, value_parser};

use crate::member::{GroupChoice, Partitioning};
use crate::schedule::Schedule;

/// With one consumer per key more would only show how slow that is.
const MAX_KEYS_BY_TOKEN: u32 = 512;

/// Shows what jetring does while members join, leave, crash and freeze, and proves it.
///
/// The demo starts a NATS server (or uses the one that NATS_URL names), publishes keyed and numbered messages, and runs the
/// members of one group as processes of their own. One more joins, one leaves gracefully, one is killed with SIGKILL, one is
/// frozen with SIGSTOP until the others have taken over, and woken.
///
/// Every handler writes down when it starts and ends, outside of its member. From these records alone the demo measures at
/// the end whether anything was lost, repeated, out of order or handled by two members at once, what moved, and how long it
/// paused.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "partition_demo",
    after_help = "\
What is measured:
  lost          a message whose publish was confirmed, and that no handler finished
  repeated      a message that was finished more than once
  out of order  a key's messages have to be finished in order of their numbers, the first time; a message that comes again
                counts as in order only under a later owner (a higher fencing token) that goes through the key in order
  overlap       two members have a handler of the same key running at the same time; a handler that was frozen in the middle
                and ends after the others took over is counted apart: no library can end it, its fencing token shows it
  pause         moved: from the end of the old owner's last handler to the start of the new owner's first (join, leave, wake);
                not moved: the longest time between two handlers of a partition

Exit status: 0 all was well; 1 something was lost, out of order, or overlapped other than by the frozen process;
2 the run could not be made. RUST_LOG=jetring=debug shows on stderr what the members do."
)]
pub(crate) struct Options {
    /// How keys become consumers: one consumer per key on a plain stream, or one per partition on a stream whose subject
    /// transform stores the partition.
    #[arg(long, value_enum, default_value_t = Partitioning::Transformed)]
    pub(crate) partitioning: Partitioning,

    /// How many members there are at the start; one more joins later.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = value_parser!(u16).range(3..=32))]
    pub(crate) members: u16,

    /// How many partitions the members share.
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) partitions: u16,

    /// How many keys are published. [default: 256, with token: 64]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=100_000))]
    keys: Option<u32>,

    /// How many messages are published per second.
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = value_parser!(u32).range(1..=50_000))]
    pub(crate) rate: u32,

    /// How long messages are published; everything that happens is spread over this time. Starting and draining come on top.
    #[arg(long, value_name = "NUMBER", default_value_t = 25, value_parser = value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// How long a member may be silent before the others take over, for example 2s or 800ms.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub(crate) session_timeout: Duration,

    /// The seed of everything random: the order of the keys and the time each handler takes.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// The first token of the subjects. No other stream of the server may take them.
    #[arg(long, value_name = "TOKEN", default_value = "some_topic", value_parser = parse_topic)]
    pub(crate) topic: String,

    /// Print one JSON object to stdout at the end; what happens meanwhile goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,

    /// Keep the handlers' records in this folder, one file per member.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) records: Option<PathBuf>,

    /// What a member process is given by the demo that starts it.
    #[arg(long, hide = true)]
    pub(crate) run_member: Option<String>,
}

impl Options {
    /// How many keys are published.
    pub(crate) fn keys(&self) -> u32 {
        self.keys.unwrap_or(match self.partitioning {
            Partitioning::Token => 64,
            Partitioning::Transformed => 256,
        })
    }

    /// The group that the members make.
    pub(crate) fn group(&self) -> GroupChoice {
        GroupChoice {
            topic: self.topic.clone(),
            partitioning: self.partitioning,
            partitions: self.partitions,
            session_timeout: self.session_timeout,
        }
    }

    /// Checks what no single value shows. The error says what to change.
    pub(crate) fn schedule(&self) -> Result<Schedule, String> {
        if self.partitioning == Partitioning::Token && self.keys() > MAX_KEYS_BY_TOKEN {
            return Err(format!(
                "--keys {}: with --partitioning token every key costs a consumer; use at most {MAX_KEYS_BY_TOKEN}, or \
                 --partitioning transformed",
                self.keys()
            ));
        }
        Schedule::new(Duration::from_secs(self.seconds.into()), self.session_timeout)
    }
}

/// A session timeout: `2s`, `800ms`, or a plain number of seconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.ok_or("write it as 2s, 1.5s or 800ms")?;
    let (shortest, longest) = (jetring::config::MIN_SESSION_TIMEOUT, Duration::from_secs(600));
    if time < shortest || time > longest {
        return Err(format!("it has to be between {shortest:?} and {longest:?}"));
    }
    Ok(time)
}

fn parse_topic(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.is_empty() || !text.chars().all(fits) {
        return Err("use one subject token of letters, digits, '_' and '-'".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &[&str]) -> bool {
        let all = ["partition_demo"].iter().chain(arguments);
        match Options::try_parse_from(all) {
            Ok(options) => options.schedule().is_err(),
            Err(_) => true,
        }
    }

    #[test]
    fn the_defaults_and_a_short_run_work() {
        assert!(!refused(&[]));
        assert!(!refused(&["--seconds", "15"]));
        assert!(!refused(&[
            "--seconds",
            "40",
            "--session-timeout",
            "4s",
            "--members",
            "5"
        ]));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        assert!(refused(&["--members", "0"]));
        assert!(refused(&["--members", "2"]));
        assert!(refused(&["--partitions", "0"]));
        assert!(refused(&["--rate", "0"]));
        assert!(refused(&["--partitioning", "other"]));
        assert!(refused(&["--seconds", "5"]));
        assert!(refused(&["--session-timeout", "100ms"]));
        assert!(refused(&["--session-timeout", "-1"]));
        assert!(refused(&["--session-timeout", "nan"]));
        assert!(refused(&["--topic", "a.b"]));
        assert!(refused(&["--partitioning", "token", "--keys", "5000"]));
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("800ms"), Ok(Duration::from_millis(800)));
        assert_eq!(parse_time("2.5"), Ok(Duration::from_millis(2500)));
        assert_eq!(parse_time("3s"), Ok(Duration::from_secs(3)));
    }
}
