//! What the run has shown, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::Settings;

/// The verdict.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    /// Whether all was well; the exit status says the same.
    pub(crate) ok: bool,
    /// Messages whose publish was confirmed.
    pub(crate) published: u64,
    /// Those that a handler finished.
    pub(crate) handled: u64,
    /// Those that were purged before.
    pub(crate) purged: u64,
    /// Those that were finished more than once, which a crash may cause.
    pub(crate) repeated: u64,
    /// Those that no handler finished.
    pub(crate) lost: u64,
    /// Handlers of messages that were never published.
    pub(crate) unknown: u64,
    /// Handlers that ran out of order.
    pub(crate) out_of_order: u64,
    /// Pairs of handlers of one key at the same time on two members.
    pub(crate) overlaps: u64,
    /// The same of one partition, at different keys.
    pub(crate) two_owners: u64,
    /// Handlers that began with a lower fencing token than one before.
    pub(crate) stale_tokens: u64,
    /// Handlers that were frozen in the middle and ended late, with a lower fencing token.
    pub(crate) overlaps_by_frozen: u64,
    /// Handlers that began when their process woke, with a lower fencing token.
    pub(crate) begun_by_frozen: u64,
    /// The longest time from when a message was sent until a handler had finished it.
    pub(crate) longest_wait_ms: Option<f64>,
    /// Messages that the servers confirmed and do not have.
    pub(crate) lost_by_servers: u64,
    /// Messages that the servers stored twice.
    pub(crate) doubled_by_servers: u64,
    /// Members that ended by themselves or did not end, and what was left to do.
    pub(crate) complaints: Vec<String>,
    /// How many faults of each kind there were.
    pub(crate) faults: BTreeMap<String, usize>,
    /// How many member processes there were.
    pub(crate) processes: usize,
    /// The first of what was wrong, in words.
    pub(crate) described: Vec<String>,
    /// What the run was set to.
    pub(crate) settings: Settings,
    /// The version of the servers.
    pub(crate) server_version: String,
    /// The schedule as it was run.
    pub(crate) log: Vec<String>,
}

impl Verdict {
    /// What must not have happened and did, in words; empty if all was well.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = [
            (self.lost, "lost"),
            (self.unknown, "unknown"),
            (self.out_of_order, "out of order"),
            (self.overlaps, "overlapping"),
            (self.two_owners, "of two owners"),
            (self.stale_tokens, "with a stale token"),
            (self.complaints.len() as u64, "complaints"),
        ];
        let failed = failed.iter().filter(|(count, _)| *count > 0);
        failed.map(|(count, what)| format!("{count} {what}")).collect()
    }

    /// Fills in `ok`.
    pub(crate) fn judged(mut self) -> Self {
        self.ok = self.failures().is_empty();
        self
    }

    /// The table that ends the run.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let settings = &self.settings;
        let _ = writeln!(
            text,
            "seed {}: {} s, {} servers {}, {} members and 2 that come and go, {} partitions, {} keys, {} messages/s, {:?}\n",
            settings.seed,
            settings.length.as_secs(),
            settings.servers,
            self.server_version,
            settings.members,
            settings.partitions,
            settings.keys,
            settings.rate,
            settings.retention,
        );
        for (kind, count) in &self.faults {
            row(&mut text, kind, count);
        }
        row(&mut text, "member processes", self.processes);
        text.push('\n');
        let counts = [
            ("messages published", self.published),
            ("handled", self.handled),
            ("purged before", self.purged),
            ("repeated", self.repeated),
            ("lost", self.lost),
            ("never published", self.unknown),
            ("out of order", self.out_of_order),
            ("two members at one key", self.overlaps),
            ("two owners of a partition", self.two_owners),
            ("stale fencing tokens", self.stale_tokens),
            ("frozen: ended late", self.overlaps_by_frozen),
            ("frozen: begun late", self.begun_by_frozen),
            ("lost by the servers", self.lost_by_servers),
            ("stored twice by the servers", self.doubled_by_servers),
        ];
        for (name, count) in counts {
            row(&mut text, name, count);
        }
        let longest = self.longest_wait_ms.map(|wait| format!("{:.1} s", wait / 1e3));
        row(
            &mut text,
            "longest wait of a message",
            longest.as_deref().unwrap_or("-"),
        );
        for line in self.described.iter().chain(&self.complaints) {
            let _ = writeln!(text, "  {line}");
        }
        text.push('\n');
        text.push_str(&self.conclusion());
        text
    }

    fn conclusion(&self) -> String {
        let failures = self.failures();
        match failures.is_empty() {
            true => "OK: nothing lost, nothing out of order, no partition at two members at once".to_owned(),
            false => format!("FAILED: {}; --seed {}", failures.join(", "), self.settings.seed),
        }
    }
}

fn row(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "  {name:<30}{value:>8}");
}
