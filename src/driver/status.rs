//! What a member shows of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::batch::BatchHandler;
use crate::engine::{Activity, Change, MemberPhase, Stop};
use crate::ids::{Generation, GroupName, Incarnation, MemberId, Partition};
use crate::lanes;

use super::Driver;

/// How often the numbers of a member that nothing happens to are refreshed.
const REFRESH: Duration = Duration::from_millis(500);

/// A snapshot of a member.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// The member.
    pub member: MemberId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub phase: MemberPhase,
    /// The version of the assignment that it follows.
    pub generation: Option<Generation>,
    /// The owners of all partitions according to that assignment.
    pub owners: BTreeMap<Partition, MemberId>,
    /// What it does with the partitions it has to do with.
    pub partitions: BTreeMap<Partition, Activity>,
    /// Its lanes: what is held, running, waiting and parked, and how far every filter is.
    pub lanes: lanes::Status,
}

impl Status {
    /// How many partitions it serves.
    pub fn serving(&self) -> usize {
        let serving = |activity: &&Activity| matches!(activity, Activity::Serving(_));
        self.partitions.values().filter(serving).count()
    }

    /// Whether it serves exactly the partitions that the assignment gives it.
    pub fn is_settled(&self) -> bool {
        let mine = self.owners.values().filter(|owner| **owner == self.member).count();
        self.generation.is_some() && self.serving() == mine && self.partitions.len() == mine
    }
}

/// Called for every change.
#[derive(Clone)]
pub(crate) struct Listener(Arc<dyn Fn(&Change) + Send + Sync>);

impl Listener {
    pub(crate) fn new(call: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    /// A listener only looks on: one that panics must not take the member with it.
    pub(super) fn call(&self, change: &Change) {
        if catch_unwind(AssertUnwindSafe(|| (self.0)(change))).is_err() {
            tracing::error!(?change, "the listener panicked");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl<H: BatchHandler> Driver<H> {
    pub(super) fn publish_status(&mut self, stop: Option<&Stop>) {
        self.status_at = tokio::time::Instant::now() + REFRESH;
        let engine = self.parts.junction.engine();
        let owners = engine.assignment().map(|record| {
            let partitions = self.parts.nats.strategy.partitions().iter();
            partitions
                .filter_map(|partition| Some((partition, record.owner(partition)?.clone())))
                .collect()
        });
        let status = Status {
            member: engine.member().clone(),
            incarnation: engine.incarnation().clone(),
            phase: match stop {
                Some(_) => MemberPhase::Ended,
                None => engine.phase(),
            },
            generation: engine.generation(),
            owners: owners.unwrap_or_default(),
            partitions: engine.activities(),
            lanes: self.parts.junction.lanes().status(),
        };
        self.parts.status.send_replace(status);
    }
}

/// The last trouble of every partition, and when it was logged.
pub(super) type Troubles = BTreeMap<Partition, (String, tokio::time::Instant)>;

/// How often a trouble that stays the same is logged again. Every partition tells it at every retry.
const SAME_TROUBLE: Duration = Duration::from_secs(10);

/// One line per change, at the level that an operator would want.
pub(super) fn log(member: &MemberId, group: &GroupName, change: &Change, troubles: &mut Troubles) {
    match change {
        Change::Trouble { partition, detail } => {
            let now = tokio::time::Instant::now();
            let known = troubles.get(partition);
            if known.is_some_and(|(text, at)| text == detail && now - *at < SAME_TROUBLE) {
                return tracing::debug!(%group, %member, ?change);
            }
            troubles.insert(*partition, (detail.clone(), now));
            tracing::warn!(%group, %member, ?change);
        }
        Change::Fenced { .. } | Change::Lost { .. } | Change::DrainOverdue { .. } => {
            tracing::warn!(%group, %member, ?change);
        }
        Change::Joined { .. }
        | Change::AwaitingPredecessor { .. }
        | Change::Assigned { .. }
        | Change::Planned { .. }
        | Change::DeclaredDead { .. }
        | Change::Reopening { .. } => tracing::info!(%group, %member, ?change),
        _ => tracing::debug!(%group, %member, ?change),
    }
}
