//! The records in the KV bucket, their one codec, and the one place that names their keys.
//!
//! Values are JSON objects with a version `v`. A record of a newer version than this crate writes is refused by
//! [`decode`], never guessed at: an older member must not act on rules it does not know. Unknown fields of the same version
//! are ignored, so that a field can be added without a new version.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::{FencingToken, Generation, GroupName, Incarnation, MemberId, Partition, Revision};
use crate::lanes::Filter;
use crate::lanes::Marks;

/// The version of the records that this crate writes, and the newest it reads.
pub const RECORD_VERSION: u64 = 1;

/// What a key of the bucket holds, with the revision to compare-and-set against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<T> {
    /// The record; `None` when the key was never written or has been deleted or purged.
    pub value: Option<T>,
    /// The revision of the newest write, also of a deletion; 0 when the key was never written.
    pub revision: Revision,
}

impl<T> Entry<T> {
    /// A key that was never written.
    pub fn absent() -> Self {
        Self {
            value: None,
            revision: Revision(0),
        }
    }
}

/// A record that cannot be read. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The record was written by a newer jetring.
    #[error(
        "the record {key} has version {found}, this jetring reads up to version {RECORD_VERSION}; upgrade this member \
         before others write newer records"
    )]
    Newer {
        /// The KV key.
        key: String,
        /// The version found.
        found: u64,
    },
    /// The value is not a record at all.
    #[error("the record {key} cannot be read: {reason}; was it written by something other than jetring?")]
    Malformed {
        /// The KV key.
        key: String,
        /// What the decoder said.
        reason: String,
    },
}

/// Only the version: read first, so that a newer record is named as such instead of as malformed.
#[derive(Deserialize)]
struct Versioned {
    v: std::num::NonZeroU64,
}

/// A record with its version in front.
#[derive(Serialize)]
struct Tagged<'a, T> {
    v: u64,
    #[serde(flatten)]
    record: &'a T,
}

/// Encodes a record.
///
/// # Panics
/// Never: the record types have string keys and no failing serializer.
#[expect(clippy::expect_used, reason = "the message proves why it cannot fail")]
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(&Tagged {
        v: RECORD_VERSION,
        record,
    })
    .expect("records are plain structs with string map keys, which JSON can always hold")
}

/// Decodes the value of `key`.
///
/// # Errors
/// [`RecordError`] when the value is of a newer version or not a record.
pub fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, RecordError> {
    let malformed = |error: serde_json::Error| RecordError::Malformed {
        key: key.to_owned(),
        reason: error.to_string(),
    };
    let Versioned { v } = serde_json::from_slice(value).map_err(malformed)?;
    let v = v.get();
    if v > RECORD_VERSION {
        return Err(RecordError::Newer {
            key: key.to_owned(),
            found: v,
        });
    }
    serde_json::from_slice(value).map_err(malformed)
}

/// `config`: what all members of a group must agree on. Written once, by the first joiner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRecord {
    /// `token`, `transformed`, ...
    pub strategy: String,
    /// P.
    pub partitions: u16,
    /// The subject pattern of the original subjects.
    pub subject: String,
    /// The 1-based numbers of the pattern's `*` that form the key.
    pub key_tokens: Vec<usize>,
    /// The stream.
    pub stream: String,
    /// The stream's creation time, in nanoseconds since the Unix epoch: its identity.
    pub stream_created: u64,
    /// The first stream sequence that the group handles. `StartFrom::New` is resolved to it once, at group creation.
    pub start_sequence: u64,
    /// The seed of the ring and of the key hash.
    pub ring_seed: u64,
    /// Points per member on the ring.
    pub virtual_nodes: u16,
    /// The session timeout in milliseconds: observers and holders must agree on it.
    pub session_timeout_ms: u64,
}

impl ConfigRecord {
    /// The first field in which `self` (what this member wants) differs from `found` (what the group has), as
    /// `(field, wanted, found)`. The start sequence is not compared: it is the group's, resolved once.
    pub fn difference(&self, found: &Self) -> Option<(&'static str, String, String)> {
        let fields: [(&'static str, String, String); 9] = [
            ("strategy", self.strategy.clone(), found.strategy.clone()),
            ("partitions", self.partitions.to_string(), found.partitions.to_string()),
            ("subject", self.subject.clone(), found.subject.clone()),
            (
                "key_tokens",
                format!("{:?}", self.key_tokens),
                format!("{:?}", found.key_tokens),
            ),
            ("stream", self.stream.clone(), found.stream.clone()),
            (
                "stream_created",
                self.stream_created.to_string(),
                found.stream_created.to_string(),
            ),
            ("ring_seed", self.ring_seed.to_string(), found.ring_seed.to_string()),
            (
                "virtual_nodes",
                self.virtual_nodes.to_string(),
                found.virtual_nodes.to_string(),
            ),
            (
                "session_timeout_ms",
                self.session_timeout_ms.to_string(),
                found.session_timeout_ms.to_string(),
            ),
        ];
        fields.into_iter().find(|(_, wanted, found)| wanted != found)
    }
}

/// What a member is doing, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Takes part.
    Active,
    /// Drains, gets nothing new; its key is purged when it holds nothing any more.
    Leaving,
    /// Written by an observer that saw no heartbeat for a session timeout.
    Dead,
}

/// `members.<id>`: one member, re-written with every heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// This life of the member.
    pub incarnation: Incarnation,
    /// Counts the writes of this incarnation, so that a write whose reply was lost is recognised when it is read.
    pub beat: u64,
    /// The revision of the incarnation's first write, which orders members by age. Absent in that first write itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Revision>,
    /// The member's share relative to others.
    pub weight: u16,
    /// What it is doing.
    pub state: MemberState,
    /// Free text for operators, for example a host name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The crate version, for operators.
    pub version: String,
}

/// A member with its weight, as the plan saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The member.
    pub id: MemberId,
    /// Its weight.
    pub weight: u16,
}

/// `assignment`: which member each partition belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    /// Its version.
    pub generation: Generation,
    /// The members of the plan, sorted by id.
    pub members: Vec<Share>,
    /// For each partition the index of its owner in `members`.
    pub owners: Vec<u16>,
}

impl AssignmentRecord {
    /// The owner of a partition; `None` when the record does not cover it.
    pub fn owner(&self, partition: Partition) -> Option<&MemberId> {
        let index = *self.owners.get(usize::from(partition.0))?;
        self.members.get(usize::from(index)).map(|share| &share.id)
    }
}

/// Whether a claim is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimState {
    /// The owner serves the partition, or is about to.
    Held,
    /// The owner has ended everything and saved its progress.
    Released,
}

/// `claims.<p>`: who owns a partition. Written on win and release only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The owner.
    pub owner: MemberId,
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The generation of the assignment that named the owner.
    pub generation: Generation,
    /// Whether it is in force.
    pub state: ClaimState,
    /// The least fencing token of the tenure. The token itself is [`ClaimRecord::token_at`]: it cannot stand in the very
    /// write whose revision it contains.
    pub token: FencingToken,
}

impl ClaimRecord {
    /// The fencing token of the tenure that a write of this record at `revision` began, in a bucket created at
    /// `bucket_created` (nanoseconds since the Unix epoch).
    ///
    /// The revision makes it grow within a bucket, the creation time over a re-created bucket, and the stored least token
    /// over everything else that was ever seen. A released claim keeps the token that its tenure had.
    pub fn token_at(&self, revision: Revision, bucket_created: u64) -> FencingToken {
        match self.state {
            ClaimState::Held => FencingToken(self.token.0.max(bucket_created.saturating_add(revision.0))),
            ClaimState::Released => self.token,
        }
    }
}

/// `progress.<p>`: what is finished, per filter. Written by the holder only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressRecord {
    /// The tenure that wrote it; closed to any lower one.
    pub token: FencingToken,
    /// What is finished, by filter subject. A filter that is not named starts at the group's start.
    pub filters: BTreeMap<Filter, Marks>,
}

/// The keys of one group.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

/// What a key of a group is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// The group's shared configuration.
    Config,
    /// The assignment.
    Assignment,
    /// A member.
    Member(MemberId),
    /// A claim.
    Claim(Partition),
    /// A partition's progress.
    Progress(Partition),
}

impl Keys {
    /// The keys of `group`.
    pub fn new(group: &GroupName) -> Self {
        Self {
            prefix: group.encoded(),
        }
    }

    /// The shared configuration.
    pub fn config(&self) -> String {
        format!("{}.config", self.prefix)
    }

    /// The assignment.
    pub fn assignment(&self) -> String {
        format!("{}.assignment", self.prefix)
    }

    /// One member.
    pub fn member(&self, id: &MemberId) -> String {
        format!("{}.members.{}", self.prefix, id.encoded())
    }

    /// The pattern of all members.
    pub fn members(&self) -> String {
        format!("{}.members.*", self.prefix)
    }

    /// One claim.
    pub fn claim(&self, partition: Partition) -> String {
        format!("{}.claims.{partition}", self.prefix)
    }

    /// The pattern of all claims.
    pub fn claims(&self) -> String {
        format!("{}.claims.*", self.prefix)
    }

    /// One partition's progress.
    pub fn progress(&self, partition: Partition) -> String {
        format!("{}.progress.{partition}", self.prefix)
    }

    /// What `key` is about; `None` when it is not a key of this group.
    pub fn kind(&self, key: &str) -> Option<KeyKind> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix('.')?;
        // `+3` and `03` are numbers to Rust, but not what a member writes.
        let partition = |text: &str| {
            let partition = Partition(text.parse().ok()?);
            (partition.to_string() == text).then_some(partition)
        };
        match rest.split_once('.') {
            None if rest == "config" => Some(KeyKind::Config),
            None if rest == "assignment" => Some(KeyKind::Assignment),
            Some(("members", id)) => Some(KeyKind::Member(MemberId::new(crate::ids::decode(id)?).ok()?)),
            Some(("claims", number)) => partition(number).map(KeyKind::Claim),
            Some(("progress", number)) => partition(number).map(KeyKind::Progress),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(state: ClaimState, token: u64) -> ClaimRecord {
        ClaimRecord {
            owner: MemberId::new("a").unwrap(),
            incarnation: Incarnation("i".into()),
            generation: Generation(1),
            state,
            token: FencingToken(token),
        }
    }

    #[test]
    fn records_round_trip_and_carry_their_version() {
        let record = claim(ClaimState::Held, 7);
        let text = encode(&record);
        assert!(String::from_utf8(text.clone()).unwrap().starts_with("{\"v\":1,"));
        assert_eq!(decode::<ClaimRecord>("k", &text), Ok(record));
    }

    #[test]
    fn a_newer_record_is_named_as_such_even_if_its_fields_are_unknown() {
        let found = decode::<ClaimRecord>("g.claims.0", br#"{"v":2,"something":"else"}"#);
        assert_eq!(
            found,
            Err(RecordError::Newer {
                key: "g.claims.0".into(),
                found: 2
            })
        );
    }

    #[test]
    fn text_that_is_no_record_is_malformed() {
        for text in [&b""[..], b"null", b"{}", b"{\"v\":1}", b"\xff"] {
            assert!(matches!(
                decode::<ClaimRecord>("k", text),
                Err(RecordError::Malformed { .. })
            ));
        }
    }

    #[test]
    fn a_token_grows_with_the_revision_the_bucket_and_the_stored_least() {
        assert_eq!(claim(ClaimState::Held, 0).token_at(Revision(5), 100), FencingToken(105));
        assert_eq!(
            claim(ClaimState::Held, 900).token_at(Revision(5), 100),
            FencingToken(900)
        );
        // A release is a later write, but it does not begin a tenure.
        assert_eq!(
            claim(ClaimState::Released, 105).token_at(Revision(6), 100),
            FencingToken(105)
        );
    }

    #[test]
    fn keys_are_parsed_back_and_foreign_ones_are_not() {
        let keys = Keys::new(&GroupName::new("pay.ments").unwrap());
        let id = MemberId::new("pod 1/x").unwrap();
        assert_eq!(keys.kind(&keys.member(&id)), Some(KeyKind::Member(id)));
        assert_eq!(
            keys.kind(&keys.claim(Partition(31))),
            Some(KeyKind::Claim(Partition(31)))
        );
        assert_eq!(
            keys.kind(&keys.progress(Partition(3))),
            Some(KeyKind::Progress(Partition(3)))
        );
        assert_eq!(keys.kind(&keys.config()), Some(KeyKind::Config));
        assert_eq!(keys.kind(&keys.assignment()), Some(KeyKind::Assignment));
        let other = Keys::new(&GroupName::new("pay").unwrap());
        assert_eq!(other.kind(&keys.config()), None);
        assert_eq!(keys.kind("pay=2Ements.members.=zz"), None);
    }
}
