//! From what was seen to the figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::assignment::moves_in;
use crate::bucket::{self, Writes};
use crate::checks::{self, Published};
use crate::clock;
use crate::history::Handling;
use crate::pauses::{Handover, Spread, Tenures, Window};
use crate::run::{Event, Happened, Past};

/// The figures of one size.
#[derive(Debug, Serialize)]
pub(crate) struct SizeFigures {
    /// How many partitions there are.
    pub(crate) partitions: u16,
    /// The median time between the starts of two handlers of a partition while nothing happened.
    pub(crate) usual_spacing_ms: f64,
    /// From the publish to the handler while nothing happened.
    pub(crate) lag_at_rest_ms: Option<Spread>,
    /// The events.
    pub(crate) events: Vec<EventFigures>,
    /// Messages that were published.
    pub(crate) published: u64,
    /// Messages that no handler finished.
    pub(crate) lost: u64,
    /// Messages that were finished more than once.
    pub(crate) repeated: u64,
    /// Handlers that ran out of order.
    pub(crate) out_of_order: u64,
    /// Pairs of handlers of one key at the same time on two members.
    pub(crate) overlaps: u64,
    /// Why members cut themselves off, each time one did. None has a reason to, unless the machine is too busy.
    pub(crate) fenced: Vec<String>,
    /// The first faults, in words.
    pub(crate) faults: Vec<String>,
}

/// The figures of one kind of event, over all times it happened.
#[derive(Debug, Serialize)]
pub(crate) struct EventFigures {
    /// What happened.
    pub(crate) event: Event,
    /// How many partitions moved, each time.
    pub(crate) moved: Vec<usize>,
    /// How few could have, each time.
    pub(crate) least: Vec<usize>,
    /// How long each partition that moved was not served: from the end of the old owner's last handler, or from the SIGKILL,
    /// to the start of the new owner's first.
    pub(crate) pause_moved_ms: Option<Spread>,
    /// How much the longest time between two handlers of each other partition exceeded the usual one.
    pub(crate) pause_unmoved_ms: Option<Spread>,
    /// The same of all partitions in as long a time before, in which nothing happened: what the machine itself does.
    pub(crate) pause_at_rest_ms: Option<Spread>,
    /// The same between two messages that were sent to a partition: how evenly the publisher could work meanwhile.
    pub(crate) pause_of_publisher_ms: Option<Spread>,
    /// From the event until the last partition that moved was served again.
    pub(crate) settle_ms: Option<Spread>,
    /// From the publish to the handler, of all messages meanwhile.
    pub(crate) lag_ms: Option<Spread>,
    /// What was written into the bucket, each time.
    pub(crate) writes: Vec<Writes>,
    /// Messages that were finished again meanwhile.
    pub(crate) repeated: usize,
    /// What `pause_moved_ms` is of.
    pub(crate) moved_ms: Vec<f64>,
    /// What `pause_unmoved_ms` is of.
    pub(crate) unmoved_ms: Vec<f64>,
    /// What `pause_at_rest_ms` is of.
    pub(crate) at_rest_ms: Vec<f64>,
}

/// Measures one size.
pub(crate) fn measure(past: &Past, partitions: u16) -> SizeFigures {
    let published = |sent: &Vec<_>| Published::up_to(sent.len() as u64);
    let published = past.sent.iter().map(|(key, sent)| (key.clone(), published(sent)));
    let findings = checks::check(&published.collect(), &past.handlings, &[]);
    let tenures = Tenures::of(&past.handlings, None);
    let rests: Vec<Window> = past.happened.iter().map(|happened| happened.rest).collect();
    let usual_spacing_ms = usual_spacing(&tenures, &rests);
    let measured = Measured {
        past,
        tenures,
        sends: sends(past),
        usual: (usual_spacing_ms * 1e6) as u64,
        repeated_at: &findings.repeated_at,
    };
    SizeFigures {
        partitions,
        usual_spacing_ms,
        lag_at_rest_ms: Spread::of(rests.iter().flat_map(|&rest| measured.lags(rest)).collect()),
        events: Event::ALL.iter().map(|&event| measured.event(event)).collect(),
        published: findings.published,
        lost: findings.lost,
        repeated: findings.repeated,
        out_of_order: findings.out_of_order,
        overlaps: findings.overlaps,
        fenced: past.fenced.clone(),
        faults: findings.described.clone(),
    }
}

/// The median time between two handlers of a partition while nothing happened.
fn usual_spacing(tenures: &Tenures, rests: &[Window]) -> f64 {
    let mut spacings: Vec<f64> = rests.iter().filter_map(|&rest| tenures.usual_spacing(rest)).collect();
    spacings.sort_by(f64::total_cmp);
    spacings.get(spacings.len() / 2).copied().unwrap_or_default()
}

/// For each partition when messages were sent to it, in order.
fn sends(past: &Past) -> BTreeMap<u16, Vec<u64>> {
    let partitions = past
        .handlings
        .iter()
        .map(|handling| (&*handling.key, handling.partition));
    let partitions: BTreeMap<&str, u16> = partitions.collect();
    let mut sends: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for (key, sent) in &past.sent {
        if let Some(&partition) = partitions.get(key.as_str()) {
            sends.entry(partition).or_default().extend(sent);
        }
    }
    sends.values_mut().for_each(|sent| sent.sort_unstable());
    sends
}

struct Measured<'a> {
    past: &'a Past,
    tenures: Tenures,
    /// For each partition when messages were sent to it.
    sends: BTreeMap<u16, Vec<u64>>,
    /// The usual time between two handlers of a partition.
    usual: u64,
    repeated_at: &'a [u64],
}

impl Measured<'_> {
    fn event(&self, event: Event) -> EventFigures {
        let assignments = self.past.assignments();
        let happened = self.past.happened.iter();
        let happened: Vec<&Happened> = happened.filter(|happened| happened.event == event).collect();
        let windows = || happened.iter().map(|happened| happened.window);
        let handovers: Vec<(&Happened, Vec<Handover>)> = happened
            .iter()
            .map(|&happened| (happened, self.tenures.handovers(happened.window)))
            .collect();
        let paused = handovers
            .iter()
            .flat_map(|(happened, handovers)| handovers.iter().map(|&handover| pause(happened, handover)))
            .collect::<Vec<_>>();
        let settled = handovers.iter().filter_map(|(happened, handovers)| {
            let last = handovers.iter().map(|handover| handover.resumed).max()?;
            Some(last.saturating_sub(happened.window.from))
        });
        let unmoved: Vec<u64> = windows().flat_map(|window| self.excess(window)).collect();
        let at_rest = happened.iter().flat_map(|happened| self.excess(happened.rest));
        let at_rest: Vec<u64> = at_rest.collect();
        let least = happened.iter().map(|happened| {
            let before = happened.before.as_ref();
            before.map_or(0, |before| before.least_moves(&happened.live))
        });
        let repeated = self.repeated_at.iter();
        EventFigures {
            event,
            moved: windows().map(|window| moves_in(&assignments, window)).collect(),
            least: least.collect(),
            settle_ms: Spread::of(settled.collect()),
            lag_ms: Spread::of(windows().flat_map(|window| self.lags(window)).collect()),
            writes: windows()
                .map(|window| bucket::count(&self.past.writes, window))
                .collect(),
            repeated: repeated
                .filter(|&&at| windows().any(|window| window.contains(at)))
                .count(),
            moved_ms: milliseconds(&paused),
            unmoved_ms: milliseconds(&unmoved),
            at_rest_ms: milliseconds(&at_rest),
            pause_moved_ms: Spread::of(paused),
            pause_unmoved_ms: Spread::of(unmoved),
            pause_at_rest_ms: Spread::of(at_rest),
            pause_of_publisher_ms: Spread::of(windows().flat_map(|window| self.publisher_excess(window)).collect()),
        }
    }

    /// How much the longest gap of each partition that did not move in a window exceeds the usual one.
    fn excess(&self, window: Window) -> impl Iterator<Item = u64> {
        let gaps = self.tenures.longest_gaps(window).into_iter();
        gaps.map(|gap| gap.saturating_sub(self.usual))
    }

    /// How much the longest gap between two messages sent to each partition in a window exceeds the usual one.
    fn publisher_excess(&self, window: Window) -> impl Iterator<Item = u64> {
        self.sends.values().filter_map(move |sent| {
            let pairs = sent
                .windows(2)
                .filter(|pair| pair[1] > window.from && pair[0] < window.until);
            let longest = pairs.map(|pair| pair[1] - pair[0]).max()?;
            Some(longest.saturating_sub(self.usual))
        })
    }

    /// The time from the publish to the first handler of each message that was begun in a window.
    fn lags(&self, window: Window) -> Vec<u64> {
        let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
        let handlings = self.past.handlings.iter();
        let begun = handlings.filter(|handling| window.contains(handling.start));
        let first = begun.filter(|handling| seen.insert((&handling.key, handling.number)));
        first.filter_map(|handling| self.lag(handling)).collect()
    }

    fn lag(&self, handling: &Handling) -> Option<u64> {
        let sent = self.past.sent.get(&*handling.key)?;
        let index = usize::try_from(handling.number).ok()?.checked_sub(1)?;
        Some(handling.start.saturating_sub(*sent.get(index)?))
    }
}

/// How long a partition was not served. After a crash that counts from the SIGKILL.
fn pause(happened: &Happened, handover: Handover) -> u64 {
    if happened.event == Event::Crash && handover.from == happened.target {
        handover.resumed.saturating_sub(happened.window.from)
    } else {
        handover.pause()
    }
}

fn milliseconds(nanos: &[u64]) -> Vec<f64> {
    nanos.iter().map(|&nanos| clock::milliseconds(nanos)).collect()
}
