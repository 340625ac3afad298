//! From what was seen to the verdict.

use std::collections::BTreeMap;

use jetring::ids::MemberId;

use crate::assignment::{Seen, moves_in};
use crate::checks::{self, Published};
use crate::clock;
use crate::history::{Frozen, Handling};
use crate::options::Options;
use crate::pauses::{Handover, Spread, Tenures, Window};
use crate::schedule::Event;
use crate::verdict::{EventMoves, RunSettings, Verdict};

/// An event that has happened.
#[derive(Debug)]
pub(crate) struct Happened {
    /// What.
    pub(crate) event: Event,
    /// When.
    pub(crate) at: u64,
    /// To which member.
    pub(crate) target: usize,
    /// The assignment before.
    pub(crate) before: Option<Seen>,
    /// The members that live after it.
    pub(crate) live: Vec<MemberId>,
}

/// All that was seen of the run.
#[derive(Debug)]
pub(crate) struct Past {
    /// What the handlers did.
    pub(crate) handlings: Vec<Handling>,
    /// The assignments in their order.
    pub(crate) assignments: Vec<Seen>,
    /// The events in their order.
    pub(crate) happened: Vec<Happened>,
    /// The member that was frozen.
    pub(crate) frozen: Option<Frozen>,
    /// When nothing happened.
    pub(crate) rest: Window,
    /// When the last message was published.
    pub(crate) traffic_until: u64,
}

impl Past {
    /// The time from each event to the next, or to the end of the traffic.
    fn windows(&self) -> impl Iterator<Item = (&Happened, Window)> {
        let next = self.happened.iter().skip(1).map(|happened| happened.at);
        let ends = next.chain([self.traffic_until]);
        self.happened.iter().zip(ends).map(|(happened, until)| {
            let window = Window {
                from: happened.at,
                until,
            };
            (happened, window)
        })
    }

    /// Measures everything.
    pub(crate) fn measure(
        &self,
        confirmed: &BTreeMap<String, u64>,
        options: &Options,
        server_version: String,
    ) -> Verdict {
        let published = confirmed
            .iter()
            .map(|(key, &last)| (key.clone(), Published::up_to(last)));
        let findings = checks::check(&published.collect(), &self.handlings, self.frozen.as_slice());
        let tenures = Tenures::of(&self.handlings, self.frozen);
        let (mut moves, mut graceful, mut unmoved, mut takeovers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (happened, window) in self.windows() {
            let handovers = tenures.handovers(window);
            let pauses: Vec<u64> = handovers.iter().map(|&handover| Handover::pause(handover)).collect();
            if happened.event.is_graceful() {
                graceful.extend(&pauses);
            }
            unmoved.extend(tenures.longest_gaps(window));
            if happened.event == Event::Kill {
                let from_killed = handovers.iter().filter(|handover| handover.from == happened.target);
                takeovers.extend(from_killed.map(|handover| handover.resumed - happened.at));
            }
            let least = happened
                .before
                .as_ref()
                .map_or(0, |before| before.least_moves(&happened.live));
            moves.push(EventMoves {
                event: happened.event.to_string(),
                moved: moves_in(&self.assignments, window),
                least,
                pause_ms: Spread::of(pauses),
                repeated: findings.repeated_at.iter().filter(|&&at| window.contains(at)).count(),
                graceful: happened.event.is_graceful(),
            });
        }
        let verdict = Verdict {
            ok: false,
            published: findings.published,
            handled: findings.handled,
            lost: findings.lost,
            repeated: findings.repeated,
            out_of_order: findings.out_of_order,
            overlaps: findings.overlaps,
            overlaps_by_frozen: findings.overlaps_by_frozen,
            moves,
            pause_moved_ms: Spread::of(graceful),
            pause_unmoved_ms: Spread::of(unmoved),
            usual_spacing_ms: tenures.usual_spacing(self.rest),
            longest_at_rest_ms: Spread::of(tenures.longest_gaps(self.rest)),
            takeover_ms: takeovers.iter().min().copied().map(clock::milliseconds),
            takeover_all_ms: takeovers.iter().max().copied().map(clock::milliseconds),
            settings: settings(options, server_version),
            faults: findings.described,
        };
        verdict.judged()
    }
}

fn settings(options: &Options, server_version: String) -> RunSettings {
    RunSettings {
        partitioning: options.partitioning,
        members: options.members,
        partitions: options.partitions,
        keys: options.keys(),
        rate: options.rate,
        seconds: options.seconds,
        session_timeout_ms: u64::try_from(options.session_timeout.as_millis()).unwrap_or(u64::MAX),
        seed: options.seed,
        server_version,
    }
}
