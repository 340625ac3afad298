//! What the run has shown, for people and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::member::Partitioning;
use crate::pauses::Spread;

/// What the run was set to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunSettings {
    pub(crate) partitioning: Partitioning,
    pub(crate) members: u16,
    pub(crate) partitions: u16,
    pub(crate) keys: u32,
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
    pub(crate) session_timeout_ms: u64,
    pub(crate) seed: u64,
    pub(crate) server_version: String,
}

/// What one event did.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EventMoves {
    /// `join`, `leave`, `kill`, `freeze` or `wake`.
    pub(crate) event: String,
    /// How many partitions changed hands.
    pub(crate) moved: usize,
    /// How few could have.
    pub(crate) least: usize,
    /// How long those stood still.
    pub(crate) pause_ms: Option<Spread>,
    /// How many messages were handled again between this event and the next.
    pub(crate) repeated: usize,
    /// Whether the old owner was there to hand over.
    #[serde(skip)]
    pub(crate) graceful: bool,
}

/// The verdict. Times are `null` where nothing was there to measure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    /// Whether all was well; the exit status says the same.
    pub(crate) ok: bool,
    /// Messages whose publish was confirmed.
    pub(crate) published: u64,
    /// Those that a handler finished.
    pub(crate) handled: u64,
    /// Those that no handler finished.
    pub(crate) lost: u64,
    /// Those that were finished more than once.
    pub(crate) repeated: u64,
    /// Handlers that ran out of order.
    pub(crate) out_of_order: u64,
    /// Pairs of handlers of one key at the same time on two members.
    pub(crate) overlaps: u64,
    /// Handlers that were frozen in the middle and were not over when another member had one of the same key running.
    pub(crate) overlaps_by_frozen: u64,
    /// What moved, event by event.
    pub(crate) moves: Vec<EventMoves>,
    /// The pause of partitions that moved while the old owner was there to hand over: join, leave, wake.
    pub(crate) pause_moved_ms: Option<Spread>,
    /// The longest time between two handlers of each partition that did not move, event by event.
    pub(crate) pause_unmoved_ms: Option<Spread>,
    /// The median time between two handlers of a partition while nothing happened.
    pub(crate) usual_spacing_ms: Option<f64>,
    /// The same as `pause_unmoved_ms`, while nothing happened.
    pub(crate) longest_at_rest_ms: Option<Spread>,
    /// From SIGKILL to the first message that a new owner handled.
    pub(crate) takeover_ms: Option<f64>,
    /// From SIGKILL until every partition of the killed member was handled by its new owner.
    pub(crate) takeover_all_ms: Option<f64>,
    /// What the run was set to.
    pub(crate) settings: RunSettings,
    /// The first faults, in words.
    pub(crate) faults: Vec<String>,
}

impl Verdict {
    /// What must not have happened and did, in words; empty if all was well.
    fn failures(&self) -> Vec<String> {
        let failed = [
            (self.lost, "lost"),
            (self.out_of_order, "out of order"),
            (self.overlaps, "overlapping"),
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
        self.counts(&mut text);
        self.events(&mut text);
        self.times(&mut text);
        for fault in &self.faults {
            row(&mut text, "", fault);
        }
        text.push('\n');
        text.push_str(&self.conclusion());
        text
    }

    fn counts(&self, text: &mut String) {
        row(text, "messages published", &self.published.to_string());
        row(text, "handled", &self.handled.to_string());
        row(text, "lost", &self.lost.to_string());
        row(text, "repeated", &self.repeated.to_string());
        row(text, "out of order", &self.out_of_order.to_string());
        row(text, "two members at one key", &self.overlaps.to_string());
        row(text, "  late ones of the frozen", &self.overlaps_by_frozen.to_string());
    }

    fn events(&self, text: &mut String) {
        text.push_str("\n  event     moved   least possible   pause p50        max   repeated\n");
        for EventMoves {
            event,
            moved,
            least,
            pause_ms,
            repeated,
            graceful,
        } in &self.moves
        {
            let (p50, max) = match pause_ms {
                Some(pause) => (time(pause.p50), time(pause.max)),
                None => ("-".to_owned(), "-".to_owned()),
            };
            let note = if *graceful { "" } else { "   (with the session timeout)" };
            let _ = writeln!(
                text,
                "  {event:<7}{moved:>8}{least:>17}{p50:>12}{max:>11}{repeated:>11}{note}"
            );
        }
        text.push('\n');
    }

    fn times(&self, text: &mut String) {
        row(text, "pause, moved", &spread(self.pause_moved_ms));
        row(text, "pause, not moved", &spread(self.pause_unmoved_ms));
        row(text, "  the same at rest", &spread(self.longest_at_rest_ms));
        let usual = self.usual_spacing_ms.map_or("-".to_owned(), time);
        row(text, "  usual spacing", &usual);
        let timeout = time(self.settings.session_timeout_ms as f64);
        let takeover = match (self.takeover_ms, self.takeover_all_ms) {
            (Some(first), Some(all)) => format!(
                "{} to the first message, {} to all partitions; the session timeout is {timeout}",
                time(first),
                time(all)
            ),
            _ => "-".to_owned(),
        };
        row(text, "takeover after SIGKILL", &takeover);
    }

    fn conclusion(&self) -> String {
        let failures = self.failures();
        if !failures.is_empty() {
            return format!("FAILED: {}", failures.join(", "));
        }
        let mut text = "OK: nothing lost, nothing out of order, no key at two members at once".to_owned();
        match self.overlaps_by_frozen {
            0 => {}
            1 => text.push_str("\n    (1 handler was frozen in the middle and ended late; its fencing token shows it)"),
            late => {
                let _ = write!(
                    text,
                    "\n    ({late} handlers were frozen in the middle and ended late; their fencing tokens show them)"
                );
            }
        }
        text
    }
}

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<28}{value}");
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |spread| {
        format!("p50 {}, max {}", time(spread.p50), time(spread.max))
    })
}

/// Three digits or so.
fn time(milliseconds: f64) -> String {
    if milliseconds < 100.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{milliseconds:.0} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lost: u64, out_of_order: u64, overlaps: u64, overlaps_by_frozen: u64) -> Verdict {
        let verdict = Verdict {
            ok: false,
            published: 10,
            handled: 10 - lost,
            lost,
            repeated: 2,
            out_of_order,
            overlaps,
            overlaps_by_frozen,
            moves: Vec::new(),
            pause_moved_ms: None,
            pause_unmoved_ms: None,
            usual_spacing_ms: None,
            longest_at_rest_ms: None,
            takeover_ms: None,
            takeover_all_ms: None,
            settings: RunSettings {
                partitioning: Partitioning::Token,
                members: 3,
                partitions: 32,
                keys: 64,
                rate: 2000,
                seconds: 25,
                session_timeout_ms: 2000,
                seed: 1,
                server_version: "2.15.1".to_owned(),
            },
            faults: Vec::new(),
        };
        verdict.judged()
    }

    #[test]
    fn each_fault_fails_the_run_and_is_named() {
        assert!(verdict(1, 0, 0, 0).table().ends_with("FAILED: 1 lost"));
        assert!(verdict(0, 2, 0, 0).table().ends_with("FAILED: 2 out of order"));
        assert!(verdict(0, 0, 3, 0).table().ends_with("FAILED: 3 overlapping"));
        assert!(
            [verdict(1, 0, 0, 0), verdict(0, 1, 0, 0), verdict(0, 0, 1, 0)]
                .iter()
                .all(|verdict| !verdict.ok)
        );
    }

    #[test]
    fn repeats_and_late_handlers_of_the_frozen_process_do_not() {
        let verdict = verdict(0, 0, 0, 5);
        assert!(verdict.ok);
        assert!(verdict.table().contains("\nOK: nothing lost"));
    }

    #[test]
    fn the_json_object_has_the_fields_that_scripts_read() {
        let json = serde_json::to_value(verdict(0, 0, 0, 0)).unwrap();
        let fields = "published handled lost repeated out_of_order overlaps overlaps_by_frozen moves pause_moved_ms \
                      pause_unmoved_ms usual_spacing_ms takeover_ms settings";
        for field in fields.split(' ') {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!(json["settings"]["partitioning"], "token");
    }
}
