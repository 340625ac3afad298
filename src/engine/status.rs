//! What the engine tells people: changes as they happen, and why a member ended.

use crate::ids::{FencingToken, Generation, Incarnation, MemberId, Partition};
use crate::lanes::Filter;

use super::event::ReopenReason;

/// Why `Prepare` was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A passing fault: it is tried again.
    Retry(String),
    /// The group, the stream or the bucket does not fit: the member ends.
    Final(String),
}

/// Why a member ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// It was asked to leave, and has left.
    Left,
    /// Another live member bears the same id.
    Duplicate {
        /// The incarnation of the other one.
        incarnation: Incarnation,
    },
    /// The group, the stream or the bucket does not fit any more.
    Refused(String),
}

/// Why a member fenced itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FenceReason {
    /// No heartbeat was confirmed in time: the server was out of reach, or the process was frozen.
    LeaseExpired,
    /// An observer declared the member dead.
    DeclaredDead,
    /// The stream was deleted and created anew. The member ends when it finds at its rejoin that the group is another stream's.
    StreamReplaced,
    /// The member's record is gone or bears somebody else's incarnation.
    Replaced,
    /// The bucket was deleted and made again while the member was in the group.
    YoungerBucket,
}

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemberPhase {
    /// It is entering the group, for the first time or again.
    Joining,
    /// It takes part.
    Active,
    /// It is handing its partitions over and will end.
    Leaving,
    /// It has cut itself off and waits for its handlers to end.
    Fenced,
    /// It has ended.
    Ended,
}

/// Something that happened to the member or the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Change {
    /// The member has entered the group, at the start or again after fencing.
    Joined {
        /// Its new incarnation.
        incarnation: Incarnation,
    },
    /// The member waits for another one of the same id to prove that it is alive, or to be given up.
    AwaitingPredecessor {
        /// The other one's incarnation.
        incarnation: Incarnation,
    },
    /// The member has cut itself off; every handler is cancelled. It rejoins when they have ended.
    Fenced {
        /// Why.
        reason: FenceReason,
    },
    /// A new assignment is in force.
    Assigned {
        /// Its version.
        generation: Generation,
        /// The partitions that are this member's.
        partitions: Vec<Partition>,
    },
    /// This member planned and wrote an assignment.
    Planned {
        /// Its version.
        generation: Generation,
        /// How many partitions changed their owner.
        moved: usize,
    },
    /// This member declared another one dead.
    DeclaredDead {
        /// The other one.
        member: MemberId,
    },
    /// A partition cannot be taken yet.
    Waiting {
        /// The partition.
        partition: Partition,
        /// Who holds it; `None` when that is not known.
        owner: Option<MemberId>,
    },
    /// A partition is served by this member from now on.
    Serving {
        /// The partition.
        partition: Partition,
        /// The tenure.
        token: FencingToken,
    },
    /// A partition is being handed over: its running handlers end.
    Draining {
        /// The partition.
        partition: Partition,
    },
    /// A partition's handlers did not end within `drain_timeout` and are cancelled. The partition stays here until they have.
    DrainOverdue {
        /// The partition.
        partition: Partition,
    },
    /// A partition was handed over: nothing of it runs here, its progress is saved.
    Released {
        /// The partition.
        partition: Partition,
    },
    /// A partition is this member's no more, because another one has it or because the lease is over.
    Lost {
        /// The partition.
        partition: Partition,
    },
    /// A filter's consumer is being replaced.
    Reopening {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// Why.
        reason: ReopenReason,
    },
    /// A step towards serving a partition failed and is tried again.
    Trouble {
        /// The partition.
        partition: Partition,
        /// What was tried and what came back.
        detail: String,
    },
}
