//! What is promised, beside what was measured.

use serde::Serialize;

use crate::figures::{EventFigures, SizeFigures};
use crate::run::Event;

/// A figure with its bound.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bounded {
    /// What it is.
    pub(crate) name: &'static str,
    /// How many partitions there were.
    pub(crate) partitions: u16,
    /// What was measured.
    pub(crate) figure: Option<f64>,
    /// What it must not exceed.
    pub(crate) bound: f64,
    /// The unit of both.
    pub(crate) unit: &'static str,
}

impl Bounded {
    /// Whether it holds. Without a figure it does not.
    pub(crate) fn holds(&self) -> bool {
        self.figure.is_some_and(|figure| figure <= self.bound)
    }
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
    let mut found = Vec::new();
    let mut add = |name, figure, bound, unit| {
        found.push(Bounded {
            name,
            partitions: size.partitions,
            figure,
            bound,
            unit,
        });
    };
    for figures in &size.events {
        let moved = figures.pause_moved_ms;
        match figures.event {
            Event::Join => {
                add(
                    "join: pause of moved, p50",
                    moved.map(|spread| spread.p50),
                    JOIN_HALF_MS,
                    "ms",
                );
                add(
                    "join: pause of moved, max",
                    moved.map(|spread| spread.max),
                    JOIN_ALL_MS,
                    "ms",
                );
            }
            Event::Leave => {}
            Event::Crash => {
                let bound = session_timeout_ms + CRASH_MS;
                add(
                    "crash: SIGKILL to served, max",
                    moved.map(|spread| spread.max),
                    bound,
                    "ms",
                );
            }
        }
        let unmoved = figures.pause_unmoved_ms.map(|spread| spread.max);
        let name = match figures.event {
            Event::Join => "join: pause of unmoved, max",
            Event::Leave => "leave: pause of unmoved, max",
            Event::Crash => "crash: pause of unmoved, max",
        };
        add(name, unmoved, UNMOVED_MS, "ms");
        let name = match figures.event {
            Event::Join => "join: moved above least",
            Event::Leave => "leave: moved above least",
            Event::Crash => "crash: moved above least",
        };
        add(name, Some(above_least(figures)), 0.0, "");
    }
    found
}

/// How many partitions moved at most that need not have.
fn above_least(figures: &EventFigures) -> f64 {
    let pairs = figures.moved.iter().zip(&figures.least);
    pairs
        .map(|(&moved, &least)| moved as f64 - least as f64)
        .fold(0.0, f64::max)
}
