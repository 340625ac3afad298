//! A server small enough to be right at a glance: records with compare-and-set, and the names of consumers.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::{
    Command, CreateFault, GroupView, Position, Prepared, Reply, Retention, Seen, StreamState, Survey, WriteFault,
};
use crate::ids::{MemberId, Partition, Revision};
use crate::lanes::{Filter, Mark};
use crate::names::ConsumerName;
use crate::records::{AssignmentRecord, ClaimRecord, Entry, MemberRecord, ProgressRecord};

/// When the bucket was created: every token of a new bucket is above it.
pub(super) const BUCKET_CREATED: u64 = 1_000_000;

/// When the stream was created: its identity.
pub(super) const STREAM_CREATED: u64 = 2_000_000;

/// Keys of one kind.
pub(super) type Table<K, T> = BTreeMap<K, Entry<T>>;

/// Bucket and stream.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) revision: u64,
    pub(super) members: Table<MemberId, MemberRecord>,
    pub(super) claims: Table<Partition, ClaimRecord>,
    pub(super) progress: Table<Partition, ProgressRecord>,
    pub(super) assignment: Table<(), AssignmentRecord>,
    pub(super) consumers: BTreeMap<ConsumerName, Position>,
    pub(super) filters: BTreeMap<Partition, Vec<Filter>>,
    pub(super) start_sequence: u64,
    /// The sequence of the stream's newest message.
    pub(super) last_sequence: u64,
    /// The first message, of every filter, that is newer than whatever was finished.
    pub(super) newer_from: Option<u64>,
    pub(super) retention: Retention,
    /// Every name a consumer was ever created under.
    pub(super) names: BTreeSet<ConsumerName>,
    /// What a watch would show next.
    pub(super) hints: Vec<Seen>,
}

/// Compare-and-set.
fn write<K: Ord, T>(
    table: &mut Table<K, T>,
    counter: &mut u64,
    key: K,
    value: Option<T>,
    expected: Revision,
) -> Result<Revision, WriteFault> {
    let found = table.get(&key).map_or(Revision(0), |entry| entry.revision);
    if found != expected {
        return Err(WriteFault::Conflict);
    }
    *counter += 1;
    let revision = Revision(*counter);
    table.insert(key, Entry { value, revision });
    Ok(revision)
}

fn read<K: Ord, T: Clone>(table: &Table<K, T>, key: &K) -> Entry<T> {
    table.get(key).cloned().unwrap_or_else(Entry::absent)
}

impl Server {
    pub(super) fn new(partitions: u16, retention: Retention) -> Self {
        let fixed = |p: u16| (Partition(p), vec![filter(Partition(p))]);
        Self {
            revision: 0,
            members: BTreeMap::new(),
            claims: BTreeMap::new(),
            progress: BTreeMap::new(),
            assignment: BTreeMap::new(),
            consumers: BTreeMap::new(),
            filters: (0..partitions).map(fixed).collect(),
            start_sequence: 1,
            last_sequence: 1_000_000,
            newer_from: None,
            retention,
            names: BTreeSet::new(),
            hints: Vec::new(),
        }
    }

    pub(super) fn member(&self, id: &MemberId) -> Entry<MemberRecord> {
        read(&self.members, id)
    }

    pub(super) fn claim(&self, partition: Partition) -> Entry<ClaimRecord> {
        read(&self.claims, &partition)
    }

    pub(super) fn put_member(&mut self, id: &MemberId, value: Option<MemberRecord>) -> Revision {
        let expected = self.member(id).revision;
        self.write_member(id.clone(), value, expected).unwrap()
    }

    pub(super) fn put_claim(&mut self, partition: Partition, value: Option<ClaimRecord>) -> Revision {
        let expected = self.claim(partition).revision;
        self.write_claim(partition, value, expected).unwrap()
    }

    pub(super) fn put_progress(&mut self, partition: Partition, value: ProgressRecord) -> Revision {
        let expected = read(&self.progress, &partition).revision;
        write(&mut self.progress, &mut self.revision, partition, Some(value), expected).unwrap()
    }

    pub(super) fn put_assignment(&mut self, value: AssignmentRecord) -> Revision {
        let expected = read(&self.assignment, &()).revision;
        self.write_assignment(value, expected).unwrap()
    }

    fn write_member(
        &mut self,
        id: MemberId,
        value: Option<MemberRecord>,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let written = write(&mut self.members, &mut self.revision, id.clone(), value, expected)?;
        self.hints.push(Seen::Member(id.clone(), self.member(&id)));
        Ok(written)
    }

    /// A record leaves a tombstone, and a tombstone leaves nothing.
    fn purge_member(&mut self, id: MemberId, expected: Revision) -> Result<Revision, WriteFault> {
        let found = self.member(&id);
        if found.value.is_none() && found.revision == expected {
            self.members.remove(&id);
            return Ok(expected);
        }
        self.write_member(id, None, expected)?;
        // As with the real server, the tombstone's own revision is not told.
        Ok(expected)
    }

    fn write_claim(
        &mut self,
        partition: Partition,
        value: Option<ClaimRecord>,
        expected: Revision,
    ) -> Result<Revision, WriteFault> {
        let written = write(&mut self.claims, &mut self.revision, partition, value, expected)?;
        self.hints.push(Seen::Claim(partition, self.claim(partition)));
        Ok(written)
    }

    fn write_assignment(&mut self, value: AssignmentRecord, expected: Revision) -> Result<Revision, WriteFault> {
        let written = write(&mut self.assignment, &mut self.revision, (), Some(value), expected)?;
        self.hints.push(Seen::Assignment(read(&self.assignment, &())));
        Ok(written)
    }

    /// Does what a command asks for, and gives the answer.
    pub(super) fn answer(&mut self, command: &Command) -> Reply {
        match command.clone() {
            Command::Prepare(_) => Reply::Prepared(Ok(Prepared {
                bucket_created: BUCKET_CREATED,
                start_sequence: self.start_sequence,
                stream_created: STREAM_CREATED,
            })),
            Command::ReadMember(_, id) => Reply::Member(Ok(self.member(&id))),
            Command::WriteMember(_, id, record, expected) => {
                Reply::Written(self.write_member(id, Some(record), expected))
            }
            Command::PurgeMember(_, id, expected) => Reply::Written(self.purge_member(id, expected)),
            Command::ReadGroup(_) => Reply::Group(Ok(GroupView {
                members: self.members.clone(),
                assignment: read(&self.assignment, &()),
            })),
            Command::ReadAssignment(_) => Reply::Assignment(Ok(read(&self.assignment, &()))),
            Command::WriteAssignment(_, record, expected) => Reply::Written(self.write_assignment(record, expected)),
            Command::ReadClaim(_, partition) => Reply::Claim(Ok(self.claim(partition))),
            Command::ReadClaims(_) => Reply::Claims(Ok(self.claims.clone())),
            Command::WriteClaim(_, partition, record, expected) => {
                Reply::Written(self.write_claim(partition, Some(record), expected))
            }
            Command::ReadProgress(_, partition) => Reply::Progress(Ok(read(&self.progress, &partition))),
            Command::WriteProgress(_, partition, record, expected) => Reply::Written(write(
                &mut self.progress,
                &mut self.revision,
                partition,
                Some(record),
                expected,
            )),
            Command::Survey(_) => Reply::Survey(Ok(Survey {
                stream: StreamState {
                    created: STREAM_CREATED,
                    last_sequence: self.last_sequence,
                },
                consumers: self.consumers.keys().cloned().collect(),
                filters: self.filters.clone(),
            })),
            Command::FindReplaced(_, _, mark) => Reply::Replaced(Ok(self.find_replaced(mark))),
            Command::InspectConsumer(_, name) => Reply::Consumer(Ok(self.consumers.get(&name).copied())),
            Command::CreateConsumer(_, spec) => Reply::Created(self.create(spec.name, spec.start)),
            Command::DeleteConsumer(_, name) => {
                self.consumers.remove(&name);
                Reply::Deleted(Ok(()))
            }
            other => panic!("{other:?} asks for nothing"),
        }
    }

    fn find_replaced(&self, mark: Mark) -> Option<u64> {
        let end = self.last_sequence + 1;
        let first = self.newer_from.map_or(end, |first| first.min(end));
        (first <= mark.sequence).then_some(first)
    }

    fn create(&mut self, name: ConsumerName, start: u64) -> Result<(), CreateFault> {
        let overlap = |other: &&ConsumerName| other.partition == name.partition && **other != name;
        if self.retention == Retention::WorkQueue && self.consumers.keys().any(|other| overlap(&other)) {
            return Err(CreateFault::Overlap("filtered consumer not unique".to_owned()));
        }
        match self.consumers.get(&name) {
            Some(found) if found.start == start => return Ok(()),
            Some(_) => return Err(CreateFault::Exists),
            None => {}
        }
        assert!(self.names.insert(name.clone()), "{name} is created a second time");
        let position = Position {
            ack_floor: start.saturating_sub(1),
            acked_at: 1_000,
            start,
            delivered: start.saturating_sub(1),
        };
        self.consumers.insert(name, position);
        Ok(())
    }
}

/// The one filter of a partition.
pub(super) fn filter(partition: Partition) -> Filter {
    Filter::new(format!("t.{partition}.>"))
}
