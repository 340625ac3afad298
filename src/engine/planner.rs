//! Who plans, when, and from what.
//!
//! The oldest active member plans once membership has been quiet for `rebalance_delay`; the next oldest do if it does not.
//! A plan is made only from what the leader said at plan time, and written by compare-and-set, so that two planners do no
//! harm.

use std::collections::BTreeMap;

use crate::ids::{Generation, MemberId, Partition, Revision};
use crate::records::{AssignmentRecord, Entry, Share};
use crate::ring::{LiveMember, PlanInput, moves, plan};
use crate::time::Time;

use super::command::Command;
use super::context::{Context, EngineSettings, Purpose};
use super::event::{Fault, GroupView, WriteFault};
use super::membership::Membership;
use super::status::Change;

/// Quiet is waited for at most this many times `rebalance_delay`: a member that flaps must not put a plan off for ever.
const LONGEST_DELAY: u32 = 5;

/// The planner's timing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Planner {
    /// What the next plan would be made for, since when, and since when any plan is due at all.
    wanted: Option<Wanted>,
    asking: bool,
    retry_at: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wanted {
    members: Vec<Share>,
    changed_at: Time,
    first_at: Time,
}

impl Planner {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// When this member plans, if it is its turn and a plan is due.
    fn due(&self, cx: &Context, membership: &Membership) -> Option<Time> {
        let wanted = self.wanted.as_ref().filter(|_| !self.asking)?;
        let rank = membership.planning_rank(&cx.settings.member)?;
        let delay = cx.settings.rebalance_delay;
        let quiet = (wanted.changed_at + delay).min(wanted.first_at + delay * LONGEST_DELAY);
        let turn = quiet + cx.settings.session_timeout * rank;
        Some(self.retry_at.map_or(turn, |retry_at| turn.max(retry_at)))
    }

    pub(super) fn deadline(&self, cx: &Context, membership: &Membership) -> Option<Time> {
        self.due(cx, membership)
    }

    /// Compares the members with those of the assignment, and plans when it is time.
    pub(super) fn consider(&mut self, cx: &mut Context, membership: &Membership, assignment: &Entry<AssignmentRecord>) {
        let members = membership.shares();
        let planned = assignment.value.as_ref();
        if members.is_empty() || planned.is_some_and(|record| is_current(&cx.settings, record, &members)) {
            self.wanted = None;
            return;
        }
        match &mut self.wanted {
            Some(wanted) if wanted.members == members => {}
            Some(wanted) => {
                wanted.members = members;
                wanted.changed_at = cx.now;
            }
            None => {
                self.wanted = Some(Wanted {
                    members,
                    changed_at: cx.now,
                    first_at: cx.now,
                });
            }
        }
        if self.due(cx, membership).is_some_and(|at| cx.now >= at) {
            self.asking = true;
            cx.ask(Purpose::PlanBasis, Command::ReadGroup);
        }
    }

    /// Plans from what the leader has just said.
    pub(super) fn on_basis(&mut self, cx: &mut Context, membership: &Membership, result: &Result<GroupView, Fault>) {
        self.asking = false;
        let Ok(view) = result else {
            self.retry_at = Some(cx.retry_at());
            return;
        };
        let members = membership.shares();
        let previous = view.assignment.value.as_ref();
        if members.is_empty() || previous.is_some_and(|record| is_current(&cx.settings, record, &members)) {
            return;
        }
        let (record, moved) = next_assignment(&cx.settings, previous, members);
        let revision = view.assignment.revision;
        self.asking = true;
        cx.ask(Purpose::WritePlan(record.clone(), moved), |ticket| {
            Command::WriteAssignment(ticket, record, revision)
        });
    }

    /// The plan was written, or was not. Returns whether it stands.
    pub(super) fn on_written(
        &mut self,
        cx: &mut Context,
        record: &AssignmentRecord,
        moved: usize,
        result: &WriteResult,
    ) {
        self.asking = false;
        match result {
            Ok(_) => cx.notify(Change::Planned {
                generation: record.generation,
                moved,
            }),
            // Somebody else planned, or nothing is known: look again before the next try.
            Err(_) => self.retry_at = Some(cx.retry_at()),
        }
    }
}

type WriteResult = Result<Revision, WriteFault>;

/// Whether `record` is a plan for exactly these members and all partitions.
fn is_current(settings: &EngineSettings, record: &AssignmentRecord, members: &[Share]) -> bool {
    record.members == members && record.owners.len() == usize::from(settings.partitions.get())
}

/// The assignment after `previous` for these members (sorted by id, not empty), and how many partitions change their owner.
fn next_assignment(
    settings: &EngineSettings,
    previous: Option<&AssignmentRecord>,
    members: Vec<Share>,
) -> (AssignmentRecord, usize) {
    let owners_before: Vec<Option<MemberId>> = (0..settings.partitions.get())
        .map(|partition| previous.and_then(|record| record.owner(Partition(partition)).cloned()))
        .collect();
    let live: Vec<LiveMember> = members
        .iter()
        .map(|share| LiveMember {
            id: share.id.clone(),
            weight: share.weight,
        })
        .collect();
    let next = plan(&PlanInput {
        seed: settings.ring_seed,
        virtual_nodes: settings.virtual_nodes,
        partitions: settings.partitions,
        previous: &owners_before,
        members: &live,
        pins: &BTreeMap::new(),
    });
    let moved = moves(owners_before.iter().map(Option::as_ref), next.owners());
    // The plan's members are sorted by id, as `members` is, so its indices are ours. There are far fewer than u16 can count.
    let owners = next.owner_indices().iter().flatten();
    let record = AssignmentRecord {
        generation: previous.map_or(Generation(1), |record| Generation(record.generation.0 + 1)),
        owners: owners.map(|&index| u16::try_from(index).unwrap_or(u16::MAX)).collect(),
        members,
    };
    (record, moved)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use super::*;
    use crate::engine::Retention;
    use crate::ids::GroupName;
    use crate::partitioning::Partitions;

    fn settings() -> EngineSettings {
        EngineSettings {
            group: GroupName::new("g").unwrap(),
            member: MemberId::new("m0").unwrap(),
            weight: 1,
            address: String::new(),
            partitions: Partitions::new(32).unwrap(),
            retention: Retention::Limits,
            ring_seed: 0,
            virtual_nodes: NonZeroU16::new(64).unwrap(),
            session_timeout: Duration::from_secs(4),
            heartbeat_interval: Duration::from_secs(1),
            lease_margin: Duration::from_millis(500),
            rebalance_delay: Duration::from_millis(200),
            drain_timeout: Duration::from_secs(10),
            retry_interval: Duration::from_millis(250),
            reconcile_interval: Duration::from_secs(30),
        }
    }

    fn shares(names: &[&str]) -> Vec<Share> {
        let share = |name: &&str| Share {
            id: MemberId::new(*name).unwrap(),
            weight: 1,
        };
        names.iter().map(share).collect()
    }

    #[test]
    fn a_joiner_gets_its_share_and_nothing_else_moves() {
        let (first, moved) = next_assignment(&settings(), None, shares(&["a", "b", "c"]));
        assert_eq!((first.generation, moved, first.owners.len()), (Generation(1), 0, 32));
        let (second, moved) = next_assignment(&settings(), Some(&first), shares(&["a", "b", "c", "d"]));
        assert_eq!((second.generation, moved), (Generation(2), 8));
        let joiner = MemberId::new("d").unwrap();
        for partition in (0..32).map(Partition) {
            let (before, after) = (first.owner(partition), second.owner(partition));
            assert!(
                before == after || after == Some(&joiner),
                "{partition}: {before:?} -> {after:?}"
            );
        }
    }

    #[test]
    fn a_plan_is_current_for_exactly_its_members() {
        let (record, _) = next_assignment(&settings(), None, shares(&["a", "b"]));
        assert!(is_current(&settings(), &record, &shares(&["a", "b"])));
        assert!(!is_current(&settings(), &record, &shares(&["a"])));
        assert!(!is_current(&settings(), &record, &shares(&["a", "b", "c"])));
    }
}
