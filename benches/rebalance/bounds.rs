//! What is promised, beside what was measured.

use serde::Serialize;

use crate::figures::{EventFigures, SizeFigures};
use crate::run::Event;

/// A figure with its bound.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bounded {
    /// What it is.
    pub(crate) name: String,
    /// How many partitions there were.
    pub(crate) partitions: u16,
    /// What was measured.
    pub(crate) figure: Option<f64>,
    /// The same at rest, where that says something.
    pub(crate) at_rest: Option<f64>,
    /// What it must not exceed.
    pub(crate) bound: f64,
    /// The unit of both.
    pub(crate) unit: &'static str,
    /// Whether it holds. Without a figure it does not.
    pub(crate) holds: bool,
}

/// The half of the moved partitions that is served again first, after a join.
pub(crate) const JOIN_HALF_MS: f64 = 150.0;

/// All moved partitions, after a join.
pub(crate) const JOIN_ALL_MS: f64 = 1000.0;

/// Partitions that do not move, over their usual spacing.
pub(crate) const UNMOVED_MS: f64 = 50.0;

/// All partitions of a member that crashed, on top of the session timeout.
pub(crate) const CRASH_MS: f64 = 1000.0;

/// The bounds of one size.
pub(crate) fn bounds(size: &SizeFigures, session_timeout_ms: f64) -> Vec<Bounded> {
    let of_event = |figures| of_event(figures, size.partitions, session_timeout_ms);
    size.events.iter().flat_map(of_event).collect()
}

fn of_event(figures: &EventFigures, partitions: u16, session_timeout_ms: f64) -> Vec<Bounded> {
    let bounded = |what: &str, figure: Option<f64>, bound: f64| Bounded {
        name: format!("{}: {what}", figures.event.name()),
        partitions,
        figure,
        at_rest: None,
        bound,
        unit: "ms",
        holds: figure.is_some_and(|figure| figure <= bound),
    };
    let half = figures.pause_moved_ms.map(|spread| spread.p50);
    let all = figures.pause_moved_ms.map(|spread| spread.max);
    let mut found = match figures.event {
        Event::Join => vec![
            bounded("pause of moved, p50", half, JOIN_HALF_MS),
            bounded("pause of moved, max", all, JOIN_ALL_MS),
        ],
        Event::Leave => Vec::new(),
        Event::Crash => vec![bounded("SIGKILL to served, max", all, session_timeout_ms + CRASH_MS)],
    };
    let unmoved = figures.pause_unmoved_ms.map(|spread| spread.max);
    found.push(Bounded {
        at_rest: figures.pause_at_rest_ms.map(|spread| spread.max),
        ..bounded("pause of unmoved, max", unmoved, UNMOVED_MS)
    });
    found.push(Bounded {
        unit: "",
        ..bounded("moved above least", Some(above_least(figures)), 0.0)
    });
    found
}

/// How many partitions moved at most that need not have.
fn above_least(figures: &EventFigures) -> f64 {
    let pairs = figures.moved.iter().zip(&figures.least);
    pairs
        .map(|(&moved, &least)| moved as f64 - least as f64)
        .fold(0.0, f64::max)
}
