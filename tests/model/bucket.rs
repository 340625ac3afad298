//! The simulated KV bucket: revisions, compare-and-set, deletion, and what a watch shows.

use std::collections::BTreeMap;

use jetring::engine::{GroupView, Seen, WatchScope, WriteFault};
use jetring::ids::{MemberId, Partition, Revision};
use jetring::records::{AssignmentRecord, ClaimRecord, Entry, MemberRecord, ProgressRecord};

pub(crate) type Table<K, T> = BTreeMap<K, Entry<T>>;

/// A bucket; `created` is `None` while it is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Bucket {
    pub(crate) created: Option<u64>,
    pub(crate) revision: u64,
    pub(crate) members: Table<MemberId, MemberRecord>,
    pub(crate) claims: Table<Partition, ClaimRecord>,
    pub(crate) progress: Table<Partition, ProgressRecord>,
    pub(crate) assignment: Table<(), AssignmentRecord>,
    /// What has changed and no watch has shown yet.
    pub(crate) changes: Vec<Seen>,
}

pub(crate) fn read<K: Ord, T: Clone>(table: &Table<K, T>, key: &K) -> Entry<T> {
    table.get(key).cloned().unwrap_or_else(Entry::absent)
}

impl Bucket {
    /// Creates it if it is not there.
    pub(crate) fn create(&mut self, now: u64) -> u64 {
        *self.created.get_or_insert(now)
    }

    pub(crate) fn check(&self, expected: Revision, found: Revision) -> Result<Revision, WriteFault> {
        if self.created.is_none() {
            return Err(WriteFault::Unknown("there is no bucket".to_owned()));
        }
        if expected != found {
            return Err(WriteFault::Conflict);
        }
        Ok(Revision(self.revision + 1))
    }

    pub(crate) fn write_member(
        &mut self,
        id: &MemberId,
        value: Option<MemberRecord>,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let revision = self.check(expected, read(&self.members, id).revision)?;
        self.revision = revision.0;
        let entry = Entry { value, revision };
        self.members.insert(id.clone(), entry.clone());
        self.changes.push(Seen::Member(id.clone(), entry));
        Ok(revision)
    }

    pub(crate) fn write_claim(
        &mut self,
        partition: Partition,
        value: ClaimRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let revision = self.check(expected, read(&self.claims, &partition).revision)?;
        self.revision = revision.0;
        let entry = Entry {
            value: Some(value),
            revision,
        };
        self.claims.insert(partition, entry.clone());
        self.changes.push(Seen::Claim(partition, entry));
        Ok(revision)
    }

    pub(crate) fn write_progress(
        &mut self,
        partition: Partition,
        value: ProgressRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let revision = self.check(expected, read(&self.progress, &partition).revision)?;
        self.revision = revision.0;
        let value = Some(value);
        self.progress.insert(partition, Entry { value, revision });
        Ok(revision)
    }

    pub(crate) fn write_assignment(
        &mut self,
        value: AssignmentRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let revision = self.check(expected, read(&self.assignment, &()).revision)?;
        self.revision = revision.0;
        let entry = Entry {
            value: Some(value),
            revision,
        };
        self.assignment.insert((), entry.clone());
        self.changes.push(Seen::Assignment(entry));
        Ok(revision)
    }

    pub(crate) fn group(&self) -> GroupView {
        GroupView {
            members: self.members.clone(),
            assignment: read(&self.assignment, &()),
        }
    }

    /// What a new watch shows first.
    pub(crate) fn snapshot(&self, scope: &WatchScope) -> Vec<Seen> {
        let members = self
            .members
            .iter()
            .map(|(id, entry)| Seen::Member(id.clone(), entry.clone()));
        let claims = self.claims.iter().map(|(p, entry)| Seen::Claim(*p, entry.clone()));
        let assignment = self.assignment.values().cloned().map(Seen::Assignment);
        members
            .chain(claims)
            .chain(assignment)
            .filter(|seen| covers(scope, seen))
            .collect()
    }
}

/// Whether a watch with this scope shows that.
pub(crate) fn covers(scope: &WatchScope, seen: &Seen) -> bool {
    match (scope, seen) {
        (WatchScope::Members(ids), Seen::Member(id, _)) => ids.contains(id),
        _ => true,
    }
}
