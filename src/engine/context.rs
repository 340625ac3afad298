//! What every part of the engine is handed in a step: the time, the settings, and where commands go.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::ids::{GroupName, Incarnation, MemberId, Partition, Revision};
use crate::lanes::Filter;
use crate::names::ConsumerName;
use crate::partitioning::Partitions;
use crate::records::{AssignmentRecord, ClaimRecord, MemberRecord, ProgressRecord};
use crate::time::Time;

use super::command::{Command, Ticket};
use super::event::{CreateFault, Fault, Reply, WriteFault};
use super::status::{Change, Refusal};

/// How the stream forgets messages, which decides how consumers are swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// By limits: consumers are independent of messages.
    Limits,
    /// A message goes when it is acked; two consumers must not overlap.
    WorkQueue,
    /// A message goes when every consumer has acked it, or when none wants it.
    Interest,
}

/// The settings of the pure engine. All durations are on the member's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// The group.
    pub group: GroupName,
    /// The member.
    pub member: MemberId,
    /// Its weight.
    pub weight: u16,
    /// Free text for operators.
    pub address: String,
    /// P.
    pub partitions: Partitions,
    /// The stream's retention.
    pub retention: Retention,
    /// The seed of the ring.
    pub ring_seed: u64,
    /// Points per member on the ring.
    pub virtual_nodes: NonZeroU16,
    /// How long a member may be silent.
    pub session_timeout: Duration,
    /// How often a member writes its record.
    pub heartbeat_interval: Duration,
    /// How long before `session_timeout` a member without a confirmed heartbeat cuts itself off.
    pub lease_margin: Duration,
    /// How long membership must be quiet before a plan.
    pub rebalance_delay: Duration,
    /// How long running handlers may go on after their partition was assigned elsewhere.
    pub drain_timeout: Duration,
    /// How long to wait before a failed step is tried again.
    pub retry_interval: Duration,
    /// How often everything is compared with the leader's records, whatever the watch says.
    pub reconcile_interval: Duration,
}

/// What a ticket was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The member's own record.
    Presence(PresenceAsk),
    /// Write another member's record as dead.
    MarkDead(MemberId, Incarnation),
    /// Read another member's record again.
    ReadPeer(MemberId),
    /// Remove what is left of a member that has been gone for long.
    Forget(MemberId),
    /// Read all members and the assignment, to know them.
    Refresh,
    /// The same, to plan from it.
    PlanBasis,
    /// Write this plan; it moves so many partitions.
    WritePlan(AssignmentRecord, usize),
    /// Read the assignment.
    ReadAssignment,
    /// Read all claims.
    ReadClaims,
    /// List consumers and filters.
    Survey,
    /// A step of one partition. The number tells an answer to an abandoned step.
    Partition(Partition, u32, PartitionAsk),
}

impl Purpose {
    /// The reply that says that nothing is known.
    pub(super) fn unanswered(&self) -> Reply {
        let fault = || Fault("no answer in time".to_owned());
        let written = || Reply::Written(Err(WriteFault::Unknown(fault().0)));
        match self {
            Self::Presence(PresenceAsk::Prepare) => Reply::Prepared(Err(Refusal::Retry(fault().0))),
            Self::Presence(PresenceAsk::ReadBeforeEntering | PresenceAsk::ReadBeat) | Self::ReadPeer(_) => {
                Reply::Member(Err(fault()))
            }
            Self::Presence(PresenceAsk::Bury | PresenceAsk::Enter | PresenceAsk::Beat(_) | PresenceAsk::Purge)
            | Self::MarkDead(..)
            | Self::Forget(_)
            | Self::WritePlan(..) => written(),
            Self::Refresh | Self::PlanBasis => Reply::Group(Err(fault())),
            Self::ReadAssignment => Reply::Assignment(Err(fault())),
            Self::ReadClaims => Reply::Claims(Err(fault())),
            Self::Survey => Reply::Survey(Err(fault())),
            Self::Partition(_, _, ask) => match ask {
                PartitionAsk::ReadClaim | PartitionAsk::Confirm => Reply::Claim(Err(fault())),
                PartitionAsk::ReadOwner(_) => Reply::Member(Err(fault())),
                PartitionAsk::Win(..) | PartitionAsk::Raise | PartitionAsk::CloseProgress(_) => written(),
                PartitionAsk::Save(..) | PartitionAsk::Release => written(),
                PartitionAsk::ReadProgress | PartitionAsk::ReadForSave => Reply::Progress(Err(fault())),
                PartitionAsk::FindReplaced(_) => Reply::Replaced(Err(fault())),
                PartitionAsk::Inspect(..) => Reply::Consumer(Err(fault())),
                PartitionAsk::Create(_) => Reply::Created(Err(CreateFault::Unknown(fault().0))),
                PartitionAsk::Delete(..) | PartitionAsk::Sweep(_) => Reply::Deleted(Err(fault())),
            },
        }
    }
}

/// Steps of the member's own record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PresenceAsk {
    Prepare,
    ReadBeforeEntering,
    Bury,
    Enter,
    /// A heartbeat that says this.
    Beat(MemberRecord),
    ReadBeat,
    Purge,
}

/// Steps of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PartitionAsk {
    ReadClaim,
    ReadOwner(MemberId),
    /// Write the claim over the one at this revision.
    Win(ClaimRecord, Revision),
    Raise,
    ReadProgress,
    CloseProgress(ProgressRecord),
    /// Write this, which the lanes had at this number of changes.
    Save(ProgressRecord, u64),
    ReadForSave,
    Release,
    Confirm,
    FindReplaced(Filter),
    Inspect(Filter, ConsumerName),
    Create(Filter),
    Delete(Filter, ConsumerName),
    Sweep(ConsumerName),
}

/// A command that is not answered yet.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) purpose: Purpose,
    /// The revision known when it was sent.
    known: Revision,
}

impl Asked {
    /// Whether the answer comes from a bucket that is younger than this member: a write got a revision that is not above the
    /// one known before. A purge is not told its revision.
    pub(super) fn shows_younger_bucket(&self, reply: &Reply) -> bool {
        let purge = matches!(self.purpose, Purpose::Presence(PresenceAsk::Purge) | Purpose::Forget(_));
        !purge && matches!(reply, Reply::Written(Ok(revision)) if *revision <= self.known)
    }
}

/// The surroundings of one step.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) now: Time,
    pub(super) settings: EngineSettings,
    pub(super) out: Vec<Command>,
    pub(super) pending: BTreeMap<Ticket, Asked>,
    /// The revision of the own record: whatever is written later has a higher one, unless the bucket is another.
    pub(super) known: Revision,
    next_ticket: u64,
}

impl Context {
    pub(super) fn new(settings: EngineSettings) -> Self {
        Self {
            now: Time::ZERO,
            settings,
            out: Vec::new(),
            pending: BTreeMap::new(),
            known: Revision(0),
            next_ticket: 0,
        }
    }

    /// Sends a command that will be answered.
    pub(super) fn ask(&mut self, purpose: Purpose, command: impl FnOnce(Ticket) -> Command) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let known = self.known;
        self.pending.insert(ticket, Asked { purpose, known });
        self.out.push(command(ticket));
    }

    /// Sends a command that is not answered.
    pub(super) fn tell(&mut self, command: Command) {
        self.out.push(command);
    }

    /// Tells people.
    pub(super) fn notify(&mut self, change: Change) {
        self.out.push(Command::Notify(change));
    }

    /// When a step that just failed is tried again.
    pub(super) fn retry_at(&self) -> Time {
        self.now + self.settings.retry_interval
    }
}

/// The earlier of two optional points in time.
pub(super) fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
