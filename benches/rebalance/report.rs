//! The report, for people and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::bounds::{Bounded, bounds};
use crate::bucket::Writes;
use crate::figures::{EventFigures, SizeFigures};
use crate::member::Partitioning;
use crate::options::Options;
use crate::pauses::Spread;

/// All that is said at the end.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of the server.
    pub(crate) server: String,
    /// How many processors the machine offers.
    pub(crate) processors: usize,
    /// How keys became consumers.
    pub(crate) partitioning: Partitioning,
    /// How many members there were before a join.
    pub(crate) members: usize,
    /// How often each partition got a message.
    pub(crate) spacing_ms: f64,
    /// The group's setting.
    pub(crate) session_timeout_ms: f64,
    /// How often all was repeated. In each there are two joins, one leave and one crash.
    pub(crate) repetitions: u16,
    /// The sizes.
    pub(crate) sizes: Vec<SizeFigures>,
}

impl Report {
    /// Nothing was measured yet.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            server: String::new(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            partitioning: options.partitioning,
            members: Options::MEMBERS,
            spacing_ms: options.spacing().as_secs_f64() * 1e3,
            session_timeout_ms: options.session_timeout().as_secs_f64() * 1e3,
            repetitions: options.repeat(),
            sizes: Vec::new(),
        }
    }

    /// Whether nothing was lost, out of order, or handled by two members at once.
    pub(crate) fn is_right(&self) -> bool {
        let faults = self
            .sizes
            .iter()
            .map(|size| size.lost + size.out_of_order + size.overlaps);
        faults.sum::<u64>() == 0
    }

    /// All of it, the single pauses included.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Json<'a> {
            #[serde(flatten)]
            report: &'a Report,
            bounds: Vec<Bounded>,
        }
        serde_json::to_string_pretty(&Json {
            report: self,
            bounds: self.bounds(),
        })
    }

    fn bounds(&self) -> Vec<Bounded> {
        let sizes = self.sizes.iter();
        sizes.flat_map(|size| bounds(size, self.session_timeout_ms)).collect()
    }

    /// What was measured, in a few words.
    pub(crate) fn setting(&self) -> String {
        format!(
            "{} members, {:?}, each partition a message every {} ms, session timeout {} s, {} repetitions, nats-server {}, {} \
             processors",
            self.members,
            self.partitioning,
            self.spacing_ms,
            self.session_timeout_ms / 1e3,
            self.repetitions,
            self.server,
            self.processors
        )
    }

    /// The tables.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.setting());
        text.push_str(
            "                            not served while moved, ms   unmoved: longest gap above usual, ms                  settled, ms   \
             KV writes        lag, ms\n\
             partitions  event moved/least     p50     p99     max         p50     p99     max  (  rest, publisher)     p50     max      \
             mean       p50     p99\n",
        );
        for size in &self.sizes {
            for figures in &size.events {
                line(&mut text, size, figures);
            }
        }
        text.push('\n');
        for size in &self.sizes {
            let _ = writeln!(
                text,
                "{:>10}  usual spacing {:.1} ms; lag at rest p50 {}, p99 {} ms; {} messages: {} lost, {} out of order, {} overlaps, \
                 {} repeated; {} members fenced",
                size.partitions,
                size.usual_spacing_ms,
                cell(size.lag_at_rest_ms, |lag| lag.p50).trim(),
                cell(size.lag_at_rest_ms, |lag| lag.p99).trim(),
                size.published,
                size.lost,
                size.out_of_order,
                size.overlaps,
                size.repeated,
                size.fenced.len()
            );
            for fault in size.faults.iter().chain(&size.fenced) {
                let _ = writeln!(text, "            {fault}");
            }
        }
        self.bounds_table(&mut text);
        text.push_str(
            "\n\
             moved: from the end of the old owner's last handler (crash: from the SIGKILL) to the start of the new owner's first.\n\
             unmoved: the longest time between the starts of two handlers of a partition, less the usual one. rest: the largest \
             in as\n    long a time before the event. publisher: the largest between two messages sent to a partition.\n\
             settled: from the event until the last moved partition was served. lag: from the publish to the handler.\n\
             KV writes: assignment, claims, progress handed over, membership; without heartbeats and checkpoints.\n",
        );
        text
    }

    /// Each bound, and how the sizes stand to it.
    fn bounds_table(&self, text: &mut String) {
        let bounds = self.bounds();
        let mut names: Vec<&str> = Vec::new();
        for bounded in &bounds {
            if !names.contains(&bounded.name.as_str()) {
                names.push(&bounded.name);
            }
        }
        let _ = write!(text, "\n{:<32}{:>9}", "bound", "at most");
        for size in &self.sizes {
            let _ = write!(text, "{:>35}", format!("{} partitions", size.partitions));
        }
        text.push('\n');
        for name in names {
            let of_name: Vec<&Bounded> = bounds.iter().filter(|bounded| bounded.name == name).collect();
            let Some(first) = of_name.first() else { continue };
            let _ = write!(
                text,
                "{name:<32}{:>9}",
                format!("{} {}", first.bound, first.unit).trim()
            );
            for bounded in of_name {
                let _ = write!(text, "{:>35}", verdict(bounded));
            }
            text.push('\n');
        }
    }
}

fn verdict(bounded: &Bounded) -> String {
    let Some(figure) = bounded.figure else {
        return "not measured".to_owned();
    };
    let verdict = match (bounded.holds, bounded.at_rest) {
        (true, _) => "holds".to_owned(),
        (false, Some(at_rest)) => format!("MISSED (rest {at_rest:.1})"),
        (false, None) => "MISSED".to_owned(),
    };
    if bounded.bound == 0.0 {
        return format!("{figure} {verdict}");
    }
    format!("{figure:.1} ({:.2}) {verdict}", figure / bounded.bound)
}

fn line(text: &mut String, size: &SizeFigures, figures: &EventFigures) {
    let (moved, unmoved, rest) = (
        figures.pause_moved_ms,
        figures.pause_unmoved_ms,
        figures.pause_at_rest_ms,
    );
    let sum = |counts: &[usize]| counts.iter().sum::<usize>();
    let _ = writeln!(
        text,
        "{:>10}  {:<6}{:>11}{}{}{}    {}{}{}  ({:>6}{:>11}){}{}{:>10}  {}{}",
        size.partitions,
        figures.event.name(),
        format!("{}/{}", sum(&figures.moved), sum(&figures.least)),
        cell(moved, |spread| spread.p50),
        cell(moved, |spread| spread.p99),
        cell(moved, |spread| spread.max),
        cell(unmoved, |spread| spread.p50),
        cell(unmoved, |spread| spread.p99),
        cell(unmoved, |spread| spread.max),
        cell(rest, |spread| spread.max).trim(),
        cell(figures.pause_of_publisher_ms, |spread| spread.max).trim(),
        cell(figures.settle_ms, |spread| spread.p50),
        cell(figures.settle_ms, |spread| spread.max),
        mean(&figures.writes),
        cell(figures.lag_ms, |spread| spread.p50),
        cell(figures.lag_ms, |spread| spread.p99),
    );
}

fn mean(writes: &[Writes]) -> String {
    let used: usize = writes.iter().map(|writes| writes.used).sum();
    format!("{:.1}", used as f64 / writes.len().max(1) as f64)
}

fn cell(spread: Option<Spread>, choose: impl Fn(Spread) -> f64) -> String {
    match spread {
        Some(spread) => format!("{:>8.1}", choose(spread)),
        None => format!("{:>8}", "-"),
    }
}
