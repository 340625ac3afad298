//! Every side effect a member can have on the outside, in one place.
//!
//! The engine only ever returns these; the driver only ever carries them out. A command with a [`Ticket`] is answered by
//! exactly one [`Event::Done`](super::Event::Done) or [`Event::Unanswered`](super::Event::Unanswered) with the same ticket.

use crate::ids::{Epoch, FencingToken, Incarnation, MemberId, Partition, Revision};
use crate::lanes::{Filter, Mark, Marks};
use crate::names::ConsumerName;
use crate::records::{AssignmentRecord, ClaimRecord, MemberRecord, ProgressRecord};

use super::status::{Change, Stop};

/// Ties an answer to its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Which member records the watch must cover besides `assignment` and the claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WatchScope {
    /// Every member: this member is one of the oldest, which detect deaths and plan.
    AllMembers,
    /// The oldest members and this one.
    Members(Vec<MemberId>),
}

/// How a consumer is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsumerSpec {
    /// Its name.
    pub name: ConsumerName,
    /// Its only filter.
    pub filter: Filter,
    /// The first stream sequence it delivers; ignored on a work-queue stream, whose consumers start at what is left.
    pub start: u64,
}

/// One side effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Command {
    // ---- the bucket; every read is answered by its leader --------------------------------------------------------
    /// Make sure that bucket and config are there and fit. Answered by `Reply::Prepared`.
    Prepare(Ticket),
    /// Read one member record.
    ReadMember(Ticket, MemberId),
    /// Compare-and-set one member record.
    WriteMember(Ticket, MemberId, MemberRecord, Revision),
    /// Remove one member record if it is still at the revision: a record leaves a tombstone, and a tombstone leaves nothing.
    PurgeMember(Ticket, MemberId, Revision),
    /// Read all member records, and then the assignment.
    ReadGroup(Ticket),
    /// Read the assignment.
    ReadAssignment(Ticket),
    /// Compare-and-set the assignment.
    WriteAssignment(Ticket, AssignmentRecord, Revision),
    /// Read one claim.
    ReadClaim(Ticket, Partition),
    /// Read all claims.
    ReadClaims(Ticket),
    /// Compare-and-set one claim.
    WriteClaim(Ticket, Partition, ClaimRecord, Revision),
    /// Read one progress record.
    ReadProgress(Ticket, Partition),
    /// Compare-and-set one progress record.
    WriteProgress(Ticket, Partition, ProgressRecord, Revision),
    /// (Re-)start the watch with this scope. What it shows are hints: `Event::Seen`.
    Watch(WatchScope),

    // ---- the stream ----------------------------------------------------------------------------------------------
    /// List the group's consumers on the stream and the filters that have messages.
    Survey(Ticket),
    /// Ask whether other messages have taken, or are about to take, the place of finished ones of this filter: the lowest sequence at
    /// or below the mark under which the stream holds, or will hold, a message that is newer than the mark.
    FindReplaced(Ticket, Filter, Mark),
    /// Ask how far one consumer is.
    InspectConsumer(Ticket, ConsumerName),
    /// Create a consumer, refusing to change one that exists.
    CreateConsumer(Ticket, ConsumerSpec),
    /// Delete a consumer; one that does not exist is fine.
    DeleteConsumer(Ticket, ConsumerName),

    // ---- delivery inside this member -----------------------------------------------------------------------------
    /// Serve a filter of a partition: open its lanes and start pulling.
    Open {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The epoch, which with group, partition and filter names the consumer to pull from.
        epoch: Epoch,
        /// What is finished already.
        marks: Marks,
        /// Up to here, a member that died may have begun with any message and not have said so. 0: nobody died.
        careful_until: u64,
    },
    /// Pull a filter from a new consumer, keeping what the lanes know.
    Reopen {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The new epoch.
        epoch: Epoch,
    },
    /// The stream ends at this sequence, below what a partition has finished: forget what lies beyond, and report every filter that
    /// this touches by `Event::Reopen`.
    Truncate(Partition, u64),
    /// The progress record of this tenure holds the marks that the lanes had at this number of changes.
    Recorded(Partition, FencingToken, u64),
    /// A process that was counted as dead is alive, in this incarnation: tell the lanes to take back what was counted against messages.
    Absolve(Partition, Incarnation),
    /// Stop pulling and dispatching a partition; running handlers end. Answered by `Event::Drained`.
    Drain(Partition),
    /// Cancel the running handlers of a partition that is being drained.
    CancelHandlers(Partition),
    /// Ownership is lost: drop what is held, cancel what runs. Answered by `Event::Ended` when the last handler has ended.
    Close(Partition, FencingToken),

    // ---- the embedding service -----------------------------------------------------------------------------------
    /// Tell listeners, status and logs.
    Notify(Change),
    /// Handlers still run although the lease is over: report, or abort the process, as configured.
    Overrun,
    /// The member has ended.
    Stop(Stop),
}

impl Command {
    /// What ties the answer to this command; `None` for one that is not answered.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Prepare(ticket)
            | Self::ReadMember(ticket, ..)
            | Self::WriteMember(ticket, ..)
            | Self::PurgeMember(ticket, ..)
            | Self::ReadGroup(ticket)
            | Self::ReadAssignment(ticket)
            | Self::WriteAssignment(ticket, ..)
            | Self::ReadClaim(ticket, ..)
            | Self::ReadClaims(ticket)
            | Self::WriteClaim(ticket, ..)
            | Self::ReadProgress(ticket, ..)
            | Self::WriteProgress(ticket, ..)
            | Self::Survey(ticket)
            | Self::FindReplaced(ticket, ..)
            | Self::InspectConsumer(ticket, ..)
            | Self::CreateConsumer(ticket, ..)
            | Self::DeleteConsumer(ticket, ..) => Some(*ticket),
            Self::Watch(_)
            | Self::Open { .. }
            | Self::Reopen { .. }
            | Self::Truncate(..)
            | Self::Recorded(..)
            | Self::Absolve(..)
            | Self::Drain(_)
            | Self::CancelHandlers(_)
            | Self::Close(..)
            | Self::Notify(_)
            | Self::Overrun
            | Self::Stop(_) => None,
        }
    }
}
