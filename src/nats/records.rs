//! The typed records of one group, on top of the bucket.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::{Fault, GroupView, Seen, WatchScope, WriteFault};
use crate::error::Error;
use crate::ids::{MemberId, Partition, Revision};
use crate::records::{
    AssignmentRecord, ClaimRecord, Entry, KeyKind, Keys, MemberRecord, ProgressRecord, decode, encode,
};

use super::bucket::{Bucket, RawEntry};

/// The records of one group.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    bucket: Bucket,
    keys: Keys,
}

impl Records {
    pub(crate) fn new(bucket: Bucket, keys: Keys) -> Self {
        Self { bucket, keys }
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Entry<T>, Fault> {
        typed(&self.bucket.read(key).await.map_err(fault)?)
    }

    async fn write<T: Serialize>(&self, key: &str, record: &T, expected: Revision) -> Result<Revision, WriteFault> {
        self.bucket.write(key, encode(record), expected).await
    }

    pub(crate) async fn read_member(&self, id: &MemberId) -> Result<Entry<MemberRecord>, Fault> {
        self.read(&self.keys.member(id)).await
    }

    pub(crate) async fn write_member(
        &self,
        id: &MemberId,
        record: &MemberRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        self.write(&self.keys.member(id), record, expected).await
    }

    pub(crate) async fn purge_member(&self, id: &MemberId, expected: Revision) -> Result<Revision, WriteFault> {
        let key = self.keys.member(id);
        let unknown = |error: Error| WriteFault::Unknown(error.to_string());
        let found = self.bucket.read(&key).await.map_err(unknown)?;
        if found.revision != expected {
            return Err(WriteFault::Conflict);
        }
        if found.value.is_some() {
            return self.bucket.purge(&key, expected).await;
        }
        self.bucket.erase(&key, expected).await.map_err(unknown)?;
        Ok(expected)
    }

    pub(crate) async fn read_group(&self) -> Result<GroupView, Fault> {
        let mut members = BTreeMap::new();
        for entry in self.bucket.list(&self.keys.members()).await.map_err(fault)? {
            if let Some(KeyKind::Member(id)) = self.keys.kind(&entry.key) {
                members.insert(id, typed(&entry)?);
            }
        }
        let assignment = self.read_assignment().await?;
        Ok(GroupView { members, assignment })
    }

    /// Whether this version can read what the group's members have written.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        for entry in self.bucket.list(&self.keys.members()).await? {
            if let Some(value) = entry.value {
                decode::<MemberRecord>(&entry.key, &value)?;
            }
        }
        let key = self.keys.assignment();
        if let Some(value) = self.bucket.read(&key).await?.value {
            decode::<AssignmentRecord>(&key, &value)?;
        }
        Ok(())
    }

    pub(crate) async fn read_assignment(&self) -> Result<Entry<AssignmentRecord>, Fault> {
        self.read(&self.keys.assignment()).await
    }

    pub(crate) async fn write_assignment(
        &self,
        record: &AssignmentRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        self.write(&self.keys.assignment(), record, expected).await
    }

    pub(crate) async fn read_claim(&self, partition: Partition) -> Result<Entry<ClaimRecord>, Fault> {
        self.read(&self.keys.claim(partition)).await
    }

    pub(crate) async fn read_claims(&self) -> Result<BTreeMap<Partition, Entry<ClaimRecord>>, Fault> {
        let mut claims = BTreeMap::new();
        for entry in self.bucket.list(&self.keys.claims()).await.map_err(fault)? {
            if let Some(KeyKind::Claim(partition)) = self.keys.kind(&entry.key) {
                claims.insert(partition, typed(&entry)?);
            }
        }
        Ok(claims)
    }

    pub(crate) async fn write_claim(
        &self,
        partition: Partition,
        record: &ClaimRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        self.write(&self.keys.claim(partition), record, expected).await
    }

    pub(crate) async fn read_progress(&self, partition: Partition) -> Result<Entry<ProgressRecord>, Fault> {
        self.read(&self.keys.progress(partition)).await
    }

    pub(crate) async fn write_progress(
        &self,
        partition: Partition,
        record: &ProgressRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let key = self.keys.progress(partition);
        let limit = self.bucket.largest_value();
        let value = encode(record);
        if value.len() <= limit {
            return self.bucket.write(&key, value, expected).await;
        }
        let (fitting, size) = (fitting(record.clone(), limit), value.len());
        tracing::warn!(
            key,
            size,
            limit,
            "progress does not fit into a message: some of what is finished is not saved and would be repeated by the next owner"
        );
        self.bucket.write(&key, encode(&fitting), expected).await
    }

    /// Watches the group for ever. What cannot be read is logged and left out: the reads from the leader report it.
    pub(crate) async fn watch(&self, scope: &WatchScope, mut on_seen: impl FnMut(Seen)) {
        let mut patterns = vec![self.keys.assignment(), self.keys.claims()];
        match scope {
            WatchScope::AllMembers => patterns.push(self.keys.members()),
            WatchScope::Members(ids) => patterns.extend(ids.iter().map(|id| self.keys.member(id))),
        }
        let on_entry = |entry: RawEntry| {
            // What cannot be read is logged already.
            if let Ok(Some(seen)) = self.seen(&entry) {
                on_seen(seen);
            }
        };
        self.bucket.watch(&patterns, on_entry).await;
    }

    fn seen(&self, entry: &RawEntry) -> Result<Option<Seen>, Fault> {
        Ok(match self.keys.kind(&entry.key) {
            Some(KeyKind::Member(id)) => Some(Seen::Member(id, typed(entry)?)),
            Some(KeyKind::Assignment) => Some(Seen::Assignment(typed(entry)?)),
            Some(KeyKind::Claim(partition)) => Some(Seen::Claim(partition, typed(entry)?)),
            Some(KeyKind::Config | KeyKind::Progress(_)) | None => None,
        })
    }
}

/// As much of a progress record as fits. Of every filter the ranges go that lie highest, and at last the counts of attempts: without
/// them something is repeated, but without the record its partition could never be handed over.
fn fitting(mut record: ProgressRecord, limit: usize) -> ProgressRecord {
    while encode(&record).len() > limit {
        let longest = record.filters.values_mut().max_by_key(|marks| marks.ranges.len());
        match longest {
            Some(marks) if !marks.ranges.is_empty() => marks.ranges.truncate(marks.ranges.len() / 2),
            _ => {
                let counts = record.filters.values_mut().map(|marks| &mut marks.attempts);
                counts.for_each(std::collections::BTreeMap::clear);
                break;
            }
        }
    }
    record
}

pub(crate) fn typed<T: DeserializeOwned>(entry: &RawEntry) -> Result<Entry<T>, Fault> {
    let value = match &entry.value {
        Some(text) => Some(decode(&entry.key, text).map_err(|error| {
            // Nothing that needs this record goes on before somebody sees to it.
            tracing::warn!(key = entry.key, %error, "a record cannot be read");
            Fault(error.to_string())
        })?),
        None => None,
    };
    Ok(Entry {
        value,
        revision: entry.revision,
    })
}

fn fault(error: Error) -> Fault {
    Fault(error.to_string())
}
