//! The records of the group in the simulated bucket.

use std::collections::BTreeMap;

use jetring::engine::{Fault, GroupView, Seen, WatchScope, WriteFault};
use jetring::ids::{MemberId, Partition, Revision};
use jetring::records::{AssignmentRecord, ClaimRecord, Entry, KeyKind, Keys, MemberRecord, ProgressRecord};

use crate::kv::{Kv, Refused};
use crate::subjects::group;

/// What a key holds. The config is no more here than the stream it is for.
#[derive(Debug, Clone)]
enum Record {
    Config(u64),
    Member(MemberRecord),
    Claim(ClaimRecord),
    Progress(ProgressRecord),
    Assignment(AssignmentRecord),
}

/// Takes a record for what its key says it is.
macro_rules! typed {
    ($read:expr, $kind:ident) => {{
        let (value, revision) = $read;
        Entry {
            value: match value {
                Some(Record::$kind(record)) => Some(record),
                _ => None,
            },
            revision: Revision(revision),
        }
    }};
}

#[derive(Debug)]
pub(crate) struct Bucket {
    kv: Kv<Record>,
    keys: Keys,
}

impl Bucket {
    pub(crate) fn new() -> Self {
        Self {
            kv: Kv::default(),
            keys: Keys::new(&group()),
        }
    }

    pub(crate) fn is_there(&self) -> Result<(), Fault> {
        let missing = || Fault("there is no bucket".to_owned());
        self.kv.created.map(drop).ok_or_else(missing)
    }

    /// Creates it if it is not there, for a stream. Gives its creation time and the stream of the group that is there.
    pub(crate) fn prepare(&mut self, date: u64, stream: u64) -> (u64, u64) {
        let created = self.kv.create(date);
        let key = self.keys.config();
        if let (Some(Record::Config(found)), _) = self.kv.read(&key) {
            return (created, found);
        }
        self.kv.write(&key, Some(Record::Config(stream)), 0).ok();
        (created, stream)
    }

    pub(crate) fn delete(&mut self) {
        self.kv.delete();
    }

    fn write(&mut self, key: &str, record: Option<Record>, expected: Revision) -> Result<Revision, WriteFault> {
        match self.kv.write(key, record, expected.0) {
            Ok(revision) => Ok(Revision(revision)),
            Err(Refused::Conflict) => Err(WriteFault::Conflict),
            Err(Refused::Missing) => Err(WriteFault::Unknown("there is no bucket".to_owned())),
        }
    }

    pub(crate) fn member(&self, id: &MemberId) -> Entry<MemberRecord> {
        typed!(self.kv.read(&self.keys.member(id)), Member)
    }

    pub(crate) fn claim(&self, partition: Partition) -> Entry<ClaimRecord> {
        typed!(self.kv.read(&self.keys.claim(partition)), Claim)
    }

    pub(crate) fn progress(&self, partition: Partition) -> Entry<ProgressRecord> {
        typed!(self.kv.read(&self.keys.progress(partition)), Progress)
    }

    pub(crate) fn assignment(&self) -> Entry<AssignmentRecord> {
        typed!(self.kv.read(&self.keys.assignment()), Assignment)
    }

    pub(crate) fn write_member(
        &mut self,
        id: &MemberId,
        record: MemberRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let key = self.keys.member(id);
        self.write(&key, Some(Record::Member(record)), expected)
    }

    /// A record leaves a tombstone, whose revision is not told, and a tombstone leaves nothing.
    pub(crate) fn purge_member(&mut self, id: &MemberId, expected: Revision) -> Result<Revision, WriteFault> {
        let key = self.keys.member(id);
        let (value, revision) = self.kv.read(&key);
        if revision != expected.0 {
            return Err(WriteFault::Conflict);
        }
        if value.is_none() {
            self.kv.erase(&key, revision);
            return Ok(expected);
        }
        self.write(&key, None, expected).map(|_| expected)
    }

    pub(crate) fn write_claim(
        &mut self,
        partition: Partition,
        record: ClaimRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let key = self.keys.claim(partition);
        self.write(&key, Some(Record::Claim(record)), expected)
    }

    pub(crate) fn write_progress(
        &mut self,
        partition: Partition,
        record: ProgressRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let key = self.keys.progress(partition);
        self.write(&key, Some(Record::Progress(record)), expected)
    }

    pub(crate) fn write_assignment(
        &mut self,
        record: AssignmentRecord,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let key = self.keys.assignment();
        self.write(&key, Some(Record::Assignment(record)), expected)
    }

    pub(crate) fn group(&self) -> GroupView {
        let pattern = self.keys.members();
        let listed = self.kv.list(pattern.trim_end_matches('*'));
        let member = |(key, value, revision): (String, Option<Record>, u64)| match self.keys.kind(&key) {
            Some(KeyKind::Member(id)) => Some((id, typed!((value, revision), Member))),
            _ => None,
        };
        GroupView {
            members: listed.into_iter().filter_map(member).collect(),
            assignment: self.assignment(),
        }
    }

    pub(crate) fn claims(&self) -> BTreeMap<Partition, Entry<ClaimRecord>> {
        let pattern = self.keys.claims();
        let listed = self.kv.list(pattern.trim_end_matches('*'));
        let claim = |(key, value, revision): (String, Option<Record>, u64)| match self.keys.kind(&key) {
            Some(KeyKind::Claim(partition)) => Some((partition, typed!((value, revision), Claim))),
            _ => None,
        };
        listed.into_iter().filter_map(claim).collect()
    }

    fn seen(&self, (key, value, revision): (String, Option<Record>, u64)) -> Option<Seen> {
        Some(match self.keys.kind(&key)? {
            KeyKind::Member(id) => Seen::Member(id, typed!((value, revision), Member)),
            KeyKind::Claim(partition) => Seen::Claim(partition, typed!((value, revision), Claim)),
            KeyKind::Assignment => Seen::Assignment(typed!((value, revision), Assignment)),
            KeyKind::Config | KeyKind::Progress(_) => return None,
        })
    }

    /// What has changed and no watch has shown yet.
    pub(crate) fn changes(&mut self) -> Vec<Seen> {
        let changes = self.kv.changes();
        changes.into_iter().filter_map(|change| self.seen(change)).collect()
    }

    /// What a new watch shows first.
    pub(crate) fn snapshot(&self, scope: &WatchScope) -> Vec<Seen> {
        let all = self.kv.list("").into_iter().filter_map(|entry| self.seen(entry));
        all.filter(|seen| covers(scope, seen)).collect()
    }
}

/// Whether a watch with this scope shows that.
pub(crate) fn covers(scope: &WatchScope, seen: &Seen) -> bool {
    match (scope, seen) {
        (WatchScope::Members(ids), Seen::Member(id, _)) => ids.contains(id),
        _ => true,
    }
}
