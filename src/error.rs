//! Everything that can go wrong for the embedding service, with what was found and what to do.

use crate::config::SettingsError;
use crate::ids::{GroupName, Incarnation, MemberId, NameError};
use crate::partitioning::{PartitionsError, PatternError};
use crate::records::RecordError;

/// An error of jetring.
///
/// [`Error::is_retryable`] tells passing faults from what somebody has to mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A group name or member id cannot be used. Nothing was created or changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A subject pattern cannot be used. Nothing was created or changed.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A number of partitions cannot be used. Nothing was created or changed.
    #[error(transparent)]
    Partitions(#[from] PartitionsError),
    /// A setting cannot be used. Nothing was created or changed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The stream does not exist. Nothing was created or changed.
    #[error("the stream {stream} does not exist; create it, or have it provisioned with Group::provision")]
    StreamMissing {
        /// The stream.
        stream: String,
    },
    /// The stream name cannot be one. Nothing was created or changed.
    #[error(
        "{stream:?} cannot be the name of a stream; it must not be empty nor hold white space or any of . * > / \\"
    )]
    StreamName {
        /// The name as given.
        stream: String,
    },
    /// The stream does not take the group's subjects. Nothing was created or changed.
    #[error(
        "the stream {stream} does not take {subject}, it takes {found:?}; add the subject to it or change the group's pattern"
    )]
    StreamDoesNotCover {
        /// The stream.
        stream: String,
        /// The subject it has to take.
        subject: String,
        /// The subjects it takes.
        found: Vec<String>,
    },
    /// The stream cannot be used in this way. Nothing was created or changed.
    #[error("the stream {stream} cannot be used: {reason}")]
    StreamUnsuitable {
        /// The stream.
        stream: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The bucket cannot be used in this way. Nothing was created or changed.
    #[error("the bucket {bucket} cannot be used: {reason}")]
    BucketUnsuitable {
        /// The bucket.
        bucket: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The group exists with other settings. Nothing was created or changed.
    #[error(
        "the group {group} has {field} = {found}, but this member wants {wanted}; give the member the group's value, or use \
         another group name, as `jetring::docs::protocol` tells under Repartitioning"
    )]
    ConfigMismatch {
        /// The group.
        group: GroupName,
        /// The field.
        field: &'static str,
        /// This member's value.
        wanted: String,
        /// The group's value.
        found: String,
    },
    /// Another live member has the same id. It is not disturbed.
    #[error(
        "a live member has the id {member} already (incarnation {incarnation}); give every instance its own id, for example \
         the pod or host name"
    )]
    DuplicateMember {
        /// The id.
        member: MemberId,
        /// The incarnation of the other one.
        incarnation: Incarnation,
    },
    /// A record in the bucket cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The server cannot do what is needed.
    #[error("{what} was refused by the server: {reason}")]
    Refused {
        /// What was tried.
        what: String,
        /// What the server said.
        reason: String,
    },
    /// The server did not answer, or not in time. Whether a change took effect is not known.
    #[error("{what} got no answer from the server: {reason}")]
    NoAnswer {
        /// What was tried.
        what: String,
        /// What came instead.
        reason: String,
    },
    /// The member has ended because the group, the stream or the bucket does not fit any more.
    #[error("the member has ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::NoAnswer { .. })
    }
}
