//! What the server does with a request, and what must never happen there.

use std::sync::Arc;

use jetring::engine::{Command, ConsumerSpec, CreateFault, Prepared, Reply, StreamState, Survey};
use jetring::ids::{Epoch, FencingToken, Partition};
use jetring::names::ConsumerName;
use jetring::records::{ClaimRecord, ClaimState, ProgressRecord};

use crate::bucket::{Bucket, covers, read};
use crate::planted::Plant;
use crate::process::Life;
use crate::properties::Origin;
use crate::properties::Violation;
use crate::stream::{STREAM_CREATED, User, filter};
use crate::world::World;

/// The bucket is as old as it can be, so that fencing tokens are small: revisions.
const BUCKET_CREATED: u64 = 1;

/// The token that all consumers bear whose takers do not raise it.
const REUSED: FencingToken = FencingToken(1);

impl World {
    /// Carries out a request of a process, which may be gone by now.
    pub(crate) fn execute(&mut self, plant: Option<Plant>, life: Life, command: &Command) -> Reply {
        match command.clone() {
            Command::Prepare(_) => {
                let created = self.bucket_mut().create(BUCKET_CREATED);
                let younger = plant == Some(Plant::TokensForgotten) && life.slot == 0;
                Reply::Prepared(Ok(Prepared {
                    bucket_created: if younger { created + 1_000_000 } else { created },
                    start_sequence: 1,
                    stream_created: STREAM_CREATED,
                }))
            }
            Command::ReadMember(_, id) => Reply::Member(Ok(read(&self.bucket.members, &id))),
            Command::WriteMember(_, id, record, at) => {
                Reply::Written(self.bucket_mut().write_member(&id, Some(record), at))
            }
            // The server does not tell the revision of a tombstone.
            Command::PurgeMember(_, id, at) => {
                Reply::Written(self.bucket_mut().write_member(&id, None, at).map(|_| at))
            }
            Command::ReadGroup(_) => Reply::Group(Ok(self.bucket.group())),
            Command::ReadAssignment(_) => Reply::Assignment(Ok(read(&self.bucket.assignment, &()))),
            Command::WriteAssignment(_, record, at) => Reply::Written(self.bucket_mut().write_assignment(record, at)),
            Command::ReadClaim(_, partition) => Reply::Claim(Ok(read(&self.bucket.claims, &partition))),
            Command::ReadClaims(_) => Reply::Claims(Ok(self.bucket.claims.clone())),
            Command::WriteClaim(_, partition, record, at) => {
                let former = read(&self.bucket.claims, &partition).value;
                let written = self.bucket_mut().write_claim(partition, record.clone(), at);
                if written.is_ok() && record.state == ClaimState::Held {
                    self.note_origin(partition, former.as_ref());
                }
                Reply::Written(written)
            }
            Command::ReadProgress(_, partition) => {
                let mut found = read(&self.bucket.progress, &partition);
                match (plant, &mut found.value) {
                    (Some(Plant::FloorSkipped), Some(record)) => {
                        let next = u64::from(self.stream.partitions);
                        record
                            .filters
                            .values_mut()
                            .for_each(|marks| marks.floor.sequence += next);
                    }
                    (Some(Plant::TokensForgotten), Some(record)) => record.token = FencingToken(0),
                    _ => {}
                }
                Reply::Progress(Ok(found))
            }
            Command::WriteProgress(_, partition, record, at) => {
                let written = self.bucket_mut().write_progress(partition, record.clone(), at);
                if written.is_ok() {
                    self.check_progress(partition, &record);
                }
                Reply::Written(written)
            }
            Command::Survey(_) => Reply::Survey(Ok(self.survey(plant))),
            // The stream keeps what it has.
            Command::FindReplaced(..) => Reply::Replaced(Ok(None)),
            Command::InspectConsumer(_, name) => Reply::Consumer(Ok(self.stream.position(&wire(plant, &name)))),
            Command::CreateConsumer(..) if plant == Some(Plant::NeverOpened) => {
                Reply::Created(Err(CreateFault::Unknown("no".to_owned())))
            }
            Command::CreateConsumer(_, spec) => {
                let epoch = spec.name.epoch;
                let spec = ConsumerSpec {
                    name: wire(plant, &spec.name),
                    ..spec
                };
                Reply::Created(self.stream.create(&spec, User { life, epoch }))
            }
            Command::DeleteConsumer(_, name) => {
                self.check_deletion(plant, life, &name);
                self.stream.consumers.remove(&wire(plant, &name));
                Reply::Deleted(Ok(()))
            }
            other => panic!("the model's server does not know {other:?}"),
        }
    }

    fn bucket_mut(&mut self) -> &mut Bucket {
        Arc::make_mut(&mut self.bucket)
    }

    fn survey(&self, plant: Option<Plant>) -> Survey {
        let hidden = matches!(plant, Some(Plant::ConsumerShared | Plant::TokensForgotten));
        Survey {
            stream: StreamState {
                created: STREAM_CREATED,
                last_sequence: self.stream.last,
            },
            consumers: self.stream.consumers.keys().filter(|_| !hidden).cloned().collect(),
            filters: (0..self.stream.partitions)
                .map(|p| (Partition(p), vec![filter(Partition(p))]))
                .collect(),
        }
    }

    /// Shows what was written to every watch that covers it.
    pub(crate) fn show_changes(&mut self) {
        if self.bucket.changes.is_empty() {
            return;
        }
        for seen in std::mem::take(&mut self.bucket_mut().changes) {
            for slot in 0..self.slots.len() {
                let watches = self.process(slot).is_some_and(|process| {
                    let scope = process.watch.as_ref();
                    !process.cut && scope.is_some_and(|scope| covers(scope, &seen))
                });
                if watches {
                    self.alter(slot, |process| process.show(seen.clone()));
                }
            }
        }
    }

    fn note_origin(&mut self, partition: Partition, former: Option<&ClaimRecord>) {
        let origin = match former.map(|claim| claim.state) {
            None => Origin::First,
            Some(ClaimState::Released) => Origin::Released,
            Some(ClaimState::Held) => Origin::Taken,
        };
        self.origins.insert(partition, origin);
    }

    fn check_progress(&mut self, partition: Partition, record: &ProgressRecord) {
        let marks = record.filters.get(&filter(partition));
        let highest = marks.map_or(0, jetring::lanes::Marks::highest);
        if self.stream.unfinished(partition).any(|sequence| sequence <= highest) {
            self.violate(Violation::AheadOfWork);
        }
    }

    /// A consumer that its holder serves from, or is about to, may be deleted by the holder only, and only by its own name.
    fn check_deletion(&mut self, plant: Option<Plant>, life: Life, name: &ConsumerName) {
        let Some(user) = self.stream.consumers.get(&wire(plant, name)).map(|found| found.user) else {
            return;
        };
        let meant = user.life == life && user.epoch == name.epoch;
        if !meant && self.is_holder(name.partition, user) {
            self.violate(Violation::LivingConsumerDeleted);
        }
    }

    /// Whether this is the tenure that the claim grants, of a process that lives.
    fn is_holder(&self, partition: Partition, user: User) -> bool {
        let claim = read(&self.bucket.claims, &partition);
        let Some(process) = self.process(user.life.slot) else {
            return false;
        };
        self.slots[user.life.slot].life == user.life.number
            && claim.value.is_some_and(|record| {
                record.state == ClaimState::Held
                    && record.incarnation == *process.engine.incarnation()
                    && record.token_at(claim.revision, BUCKET_CREATED) == user.epoch.token
            })
    }

    /// An ack arrives, from whoever ran the message in this epoch.
    pub(crate) fn acked(&mut self, plant: Option<Plant>, life: Life, name: &ConsumerName, sequence: u64) {
        let epoch = name.epoch;
        let hit = self.stream.ack(&wire(plant, name), sequence);
        if hit.is_some_and(|user| user != User { life, epoch }) {
            self.violate(Violation::ForeignAck);
        }
    }
}

/// The epoch that the server sees.
pub(crate) fn wire_epoch(plant: Option<Plant>, epoch: Epoch) -> Epoch {
    match plant {
        Some(Plant::NameReused | Plant::ConsumerShared) => Epoch { token: REUSED, ..epoch },
        _ => epoch,
    }
}

/// The name that the server sees.
pub(crate) fn wire(plant: Option<Plant>, name: &ConsumerName) -> ConsumerName {
    ConsumerName {
        epoch: wire_epoch(plant, name.epoch),
        ..name.clone()
    }
}
