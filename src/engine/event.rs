//! Everything a member can learn from the outside, in one place.

use std::collections::BTreeMap;

use crate::ids::{Epoch, FencingToken, MemberId, Partition, Revision};
use crate::lanes::{Filter, Mark, Marks};
use crate::names::ConsumerName;
use crate::records::{AssignmentRecord, ClaimRecord, Entry, MemberRecord, ProgressRecord};

use super::command::Ticket;
use super::status::Refusal;

/// Why a read, or a step on the stream, gave no answer. Nothing is known about its effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// Why a compare-and-set gave no new revision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteFault {
    /// The key is not at the expected revision any more. Nothing was written by this call.
    #[error("the key was changed by somebody else")]
    Conflict,
    /// No answer: the write may have taken effect, now or later.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// Why a consumer could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateFault {
    /// A consumer of this name exists with other settings.
    #[error("a consumer of that name exists with other settings")]
    Exists,
    /// The server's error 10100: another consumer of a work-queue stream has an overlapping filter.
    #[error("another consumer of the work-queue stream has an overlapping filter: {0}")]
    Overlap(String),
    /// No answer, or a passing fault.
    #[error("{0}")]
    Unknown(String),
}

/// What the bucket says at a (re-)join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The bucket's creation time, in nanoseconds since the Unix epoch.
    pub bucket_created: u64,
    /// The first stream sequence the group handles.
    pub start_sequence: u64,
    /// The stream's creation time, in nanoseconds since the Unix epoch: its identity.
    pub stream_created: u64,
}

/// All members and the assignment, read from the leader; the assignment last, so that it is no older than the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// The member records, also removed ones' tombstones.
    pub members: BTreeMap<MemberId, Entry<MemberRecord>>,
    /// The assignment.
    pub assignment: Entry<AssignmentRecord>,
}

/// How far the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamState {
    /// Its creation time, in nanoseconds since the Unix epoch: its identity.
    pub created: u64,
    /// The sequence of its newest message.
    pub last_sequence: u64,
}

/// The group's consumers on the stream, the filters worth a consumer, and how far the stream is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// The stream, asked for last.
    pub stream: StreamState,
    /// The names of the group's consumers.
    pub consumers: Vec<ConsumerName>,
    /// For each partition the filters that have messages; for strategies with one fixed filter per partition, that one.
    pub filters: BTreeMap<Partition, Vec<Filter>>,
}

/// How far a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Everything of the filter up to this stream sequence is acked.
    pub ack_floor: u64,
    /// When the newest ack came, nanoseconds since the Unix epoch: what is acked is older. 0 when the server does not remember, after
    /// a change of its leader; the ack floor is not used then.
    pub acked_at: u64,
    /// The stream sequence at which the consumer was told to start.
    pub start: u64,
    /// The highest stream sequence that it has delivered, to whomever.
    pub delivered: u64,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To `Prepare`.
    Prepared(Result<Prepared, Refusal>),
    /// To `ReadMember`.
    Member(Result<Entry<MemberRecord>, Fault>),
    /// To `ReadGroup`.
    Group(Result<GroupView, Fault>),
    /// To `ReadAssignment`.
    Assignment(Result<Entry<AssignmentRecord>, Fault>),
    /// To `ReadClaim`.
    Claim(Result<Entry<ClaimRecord>, Fault>),
    /// To `ReadClaims`.
    Claims(Result<BTreeMap<Partition, Entry<ClaimRecord>>, Fault>),
    /// To `ReadProgress`.
    Progress(Result<Entry<ProgressRecord>, Fault>),
    /// To every write and to `PurgeMember`.
    Written(Result<Revision, WriteFault>),
    /// To `Survey`.
    Survey(Result<Survey, Fault>),
    /// To `FindReplaced`.
    Replaced(Result<Option<u64>, Fault>),
    /// To `InspectConsumer`; `None` only on the server's word (error 10014) that there is no such consumer.
    Consumer(Result<Option<Position>, Fault>),
    /// To `CreateConsumer`.
    Created(Result<(), CreateFault>),
    /// To `DeleteConsumer`.
    Deleted(Result<(), Fault>),
}

/// A record as the watch, or a re-read of what is watched, showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A member record.
    Member(MemberId, Entry<MemberRecord>),
    /// The assignment.
    Assignment(Entry<AssignmentRecord>),
    /// A claim.
    Claim(Partition, Entry<ClaimRecord>),
}

/// Why a filter's consumer must be replaced by its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReopenReason {
    /// A delivery was lost on the way.
    Gap,
    /// The server says that the consumer is not there.
    Missing,
    /// The consumer has messages and does not deliver them.
    Stuck,
    /// Acks did not reach the server; what they were for is acked again when it is delivered again.
    LostAcks,
    /// Nobody answers for the consumer although the stream's leader answers: the server that has it is away.
    Leaderless,
    /// The stream has come back with less than is finished: its next messages bear sequences that were used before.
    StreamShrunk,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first event of all.
    Start,
    /// The engine's deadline has passed.
    Wake,
    /// The connection to the server was lost and made again.
    Reconnected,
    /// A hint from the watch.
    Seen(Seen),
    /// The answer to a command.
    Done(Ticket, Reply),
    /// A command was not answered in time. What it was to do may have happened, or may still happen.
    Unanswered(Ticket),
    /// The service wants the member to leave.
    Leave,
    /// A drained partition runs nothing any more; with the final marks of every filter that was open.
    Drained {
        /// The partition.
        partition: Partition,
        /// What is finished.
        marks: BTreeMap<Filter, Marks>,
    },
    /// A closed partition runs nothing any more.
    Ended {
        /// The partition.
        partition: Partition,
        /// The tenure it was closed for.
        token: FencingToken,
    },
    /// A filter's consumer must be replaced. Its marks are at `floor`.
    Reopen {
        /// The partition.
        partition: Partition,
        /// The filter.
        filter: Filter,
        /// The epoch that is over.
        epoch: Epoch,
        /// The lanes' floor.
        floor: Mark,
        /// Why.
        reason: ReopenReason,
    },
    /// It is time to save what the lanes have finished.
    Checkpoint {
        /// The partition.
        partition: Partition,
        /// What is finished.
        marks: BTreeMap<Filter, Marks>,
        /// The lanes' number of these marks.
        changes: u64,
        /// Whether the lanes wait for it: it is written as soon as can be, and as often as it takes.
        urgent: bool,
    },
    /// The stream's subjects have changed: filters that have messages now.
    Discovered(BTreeMap<Partition, Vec<Filter>>),
}
