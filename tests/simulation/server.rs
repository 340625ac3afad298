//! What the server does with what reaches it, and the network to it and back.

use jetring::engine::{
    Command, Event, Fault as Unreadable, Prepared, Refusal, Reply, Retention, StreamState, Survey, Ticket, WriteFault,
};
use jetring::ids::{GroupName, Partition};
use jetring::names::ConsumerName;

use crate::bucket::{covers, read};
use crate::member::Input;
use crate::planted::Plant;
use crate::stream::{Pull, STREAM_CREATED, filter};
use crate::world::{Happening, World};
use crate::{MILLI, SECOND};

/// Later than any sequence and earlier than any real date matters not: only that later buckets are later.
const EPOCH: u64 = 1_700_000_000 * SECOND;

impl World {
    /// Sends something to the server: it may be late, it may be lost, it may arrive long after it was given up.
    pub(crate) fn send(&mut self, slot: usize, happening: Happening) {
        let cut = self.slots[slot].cut_up;
        if let Some(at) = self.travel(cut) {
            self.at(at, happening);
        }
    }

    /// Sends something to a process.
    pub(crate) fn send_back(&mut self, slot: usize, life: u64, input: Input) {
        let cut = self.slots[slot].cut_down;
        if let Some(mut at) = self.travel(cut) {
            if matches!(input, Input::Delivered(..) | Input::Undelivered(..)) {
                // One connection keeps its order.
                at = at.max(self.slots[slot].last_delivery + 1);
                self.slots[slot].last_delivery = at;
            }
            self.at(at, Happening::Input(slot, life, input));
        }
    }

    /// When something sent now arrives on a link that is cut until `cut`.
    fn travel(&mut self, cut: u64) -> Option<u64> {
        let usual = self.random.between(200_000, 3 * MILLI);
        if self.calm {
            return Some(self.now + usual);
        }
        if self.now < cut {
            // Half of it waits in a buffer and arrives when the link is back.
            return self.random.percent(50).then_some(cut + usual);
        }
        Some(match self.random.between(0, 1_000) {
            0..5 => return None,
            5..25 => self.now + self.random.between(50, 1_500) * MILLI,
            25..30 => self.now + self.random.between(1_500, 6_000) * MILLI,
            _ => self.now + usual,
        })
    }

    pub(crate) fn at_server(&mut self, happening: Happening) {
        match happening {
            Happening::Request(slot, life, sent, ticket, command) => self.request(slot, life, sent, ticket, &command),
            Happening::Watch(slot, life, number, scope) => {
                self.watchers.retain(|(other, ..)| *other != slot);
                if self.slots[slot].life == life {
                    self.watchers.push((slot, life, number, scope));
                    self.show_all(slot);
                }
            }
            Happening::Pull(slot, life, partition, epoch, messages) => {
                let name = ConsumerName::new(&group(), partition, &filter(partition), epoch);
                self.pulls += 1;
                let id = self.pulls;
                let pull = Pull {
                    id,
                    to: (slot, life),
                    left: messages,
                };
                match self.stream.consumers.get_mut(&name) {
                    None => self.send_back(slot, life, Input::Missing(partition, epoch)),
                    Some(consumer) => {
                        consumer.pulls.push_back(pull);
                        self.check.consumer_used(&name);
                        self.after(5 * SECOND, Happening::PullExpires(name.clone(), id));
                        self.serve(&name);
                    }
                }
            }
            Happening::PullExpires(name, id) => {
                let Some(consumer) = self.stream.consumers.get_mut(&name) else {
                    return;
                };
                let Some(place) = consumer.pulls.iter().position(|pull| pull.id == id) else {
                    return;
                };
                if let Some(pull) = consumer.pulls.remove(place) {
                    let input = Input::Undelivered(name.partition, name.epoch, pull.left);
                    self.send_back(pull.to.0, pull.to.1, input);
                }
            }
            Happening::Ack(reply) => {
                if let Some((name, sequence)) = parse(&reply) {
                    self.check.acked(sequence);
                    self.stream.ack(&name, sequence, self.now);
                    self.serve(&name);
                }
            }
            Happening::InProgress(reply) => {
                if let Some((name, sequence)) = parse(&reply) {
                    self.stream.keep(&name, sequence, self.now);
                }
            }
            Happening::Redeliver(name) => {
                self.redeliveries.remove(&name);
                self.serve(&name);
            }
            _ => {}
        }
    }

    /// Delivers what a consumer can deliver now.
    pub(crate) fn serve(&mut self, name: &ConsumerName) {
        for ((slot, life), delivered) in self.stream.serve(name, self.now) {
            self.send_back(slot, life, Input::Delivered(name.partition, name.epoch, delivered));
        }
        if let Some(at) = self.stream.redelivers_at(name)
            && self.redeliveries.get(name).is_none_or(|planned| *planned > at)
        {
            let at = at.max(self.now + MILLI);
            self.redeliveries.insert(name.clone(), at);
            self.at(at, Happening::Redeliver(name.clone()));
        }
    }

    pub(crate) fn serve_partition(&mut self, partition: Partition) {
        let of_partition = |name: &&ConsumerName| name.partition == partition;
        let names: Vec<_> = self.stream.consumers.keys().filter(of_partition).cloned().collect();
        for name in names {
            self.serve(&name);
        }
    }

    /// Deletes a consumer, and tells the pulls that wait for it.
    pub(crate) fn delete_consumer(&mut self, name: &ConsumerName, quietly: bool) {
        let Some(pulls) = self.stream.delete(name) else { return };
        self.tell(|| format!("server deletes {name}"));
        self.check.consumer_deleted(name, self.now);
        for pull in pulls.into_iter().filter(|_| !quietly) {
            let missing = Input::Missing(name.partition, name.epoch);
            self.send_back(pull.to.0, pull.to.1, missing);
        }
    }

    fn request(&mut self, slot: usize, life: u64, sent: u64, ticket: Ticket, command: &Command) {
        let reply = self.answer(sent, command);
        self.show_changes();
        self.send_back(slot, life, Input::Event(Event::Done(ticket, reply)));
    }

    fn show_changes(&mut self) {
        for seen in std::mem::take(&mut self.bucket.changes) {
            for (slot, life, number, scope) in self.watchers.clone() {
                if covers(&scope, &seen) && self.now >= self.slots[slot].stalled {
                    self.send_back(slot, life, Input::Seen(number, seen.clone()));
                }
            }
        }
    }

    /// A watch that begins, or begins again, shows what there is.
    pub(crate) fn show_all(&mut self, slot: usize) {
        let watcher = self.watchers.iter().find(|(other, ..)| *other == slot).cloned();
        let Some((slot, life, number, scope)) = watcher else {
            return;
        };
        if self.now < self.slots[slot].stalled {
            return;
        }
        for seen in self.bucket.snapshot(&scope) {
            self.send_back(slot, life, Input::Seen(number, seen));
        }
    }

    fn answer(&mut self, sent: u64, command: &Command) -> Reply {
        let forgets = self.options.plant == Some(Plant::TokensForgotten);
        if let Command::Prepare(_) = command {
            let date = if forgets && self.now > 9 * SECOND {
                1
            } else {
                EPOCH + self.now
            };
            return if self.random.percent(3) && !self.calm {
                Reply::Prepared(Err(Refusal::Retry("no answer".to_owned())))
            } else {
                Reply::Prepared(Ok(Prepared {
                    bucket_created: self.bucket.create(date),
                    start_sequence: 1,
                    stream_created: STREAM_CREATED,
                }))
            };
        }
        let gone = self.bucket.created.is_none();
        let no = || Unreadable("there is no bucket".to_owned());
        let bucket = &mut self.bucket;
        match command.clone() {
            Command::ReadMember(_, id) if !gone => Reply::Member(Ok(read(&bucket.members, &id))),
            Command::ReadMember(..) => Reply::Member(Err(no())),
            Command::WriteMember(_, id, record, at) => Reply::Written(bucket.write_member(&id, Some(record), at)),
            // The server does not tell the revision of a tombstone.
            Command::PurgeMember(_, id, at) => Reply::Written(bucket.write_member(&id, None, at).map(|_| at)),
            Command::ReadGroup(_) => Reply::Group(if gone { Err(no()) } else { Ok(bucket.group()) }),
            Command::ReadAssignment(_) => Reply::Assignment(if gone {
                Err(no())
            } else {
                Ok(read(&bucket.assignment, &()))
            }),
            Command::WriteAssignment(_, record, at) => Reply::Written(bucket.write_assignment(record, at)),
            Command::ReadClaim(_, p) => Reply::Claim(if gone { Err(no()) } else { Ok(read(&bucket.claims, &p)) }),
            Command::ReadClaims(_) => Reply::Claims(if gone { Err(no()) } else { Ok(bucket.claims.clone()) }),
            Command::WriteClaim(_, p, record, at) => Reply::Written(bucket.write_claim(p, record, at)),
            Command::ReadProgress(..) if gone => Reply::Progress(Err(no())),
            Command::ReadProgress(_, p) => Reply::Progress(Ok(read(&bucket.progress, &p))),
            Command::WriteProgress(_, p, record, at) => {
                let written = bucket.write_progress(p, record.clone(), at);
                if written.is_ok() {
                    self.check.saved(p, &record);
                }
                Reply::Written(written)
            }
            Command::Survey(_) => Reply::Survey(Ok(Survey {
                stream: StreamState {
                    created: STREAM_CREATED,
                    last_sequence: self.stream.last,
                },
                consumers: self.stream.consumers.keys().filter(|_| !forgets).cloned().collect(),
                filters: (0..self.options.partitions)
                    .map(|p| (Partition(p), vec![filter(Partition(p))]))
                    .collect(),
            })),
            Command::FindReplaced(_, filter, mark) => Reply::Replaced(Ok(self.stream.replaced(&filter, mark))),
            Command::InspectConsumer(_, name) => Reply::Consumer(Ok(self.stream.position(&name))),
            Command::CreateConsumer(_, spec) => {
                if self.options.plant == Some(Plant::NeverOpened) && spec.name.partition == Partition(0) {
                    let refused = jetring::engine::CreateFault::Unknown("no".to_owned());
                    return Reply::Created(Err(refused));
                }
                let created = self.stream.create(&spec);
                if created == Ok(true) {
                    self.tell(|| format!("server creates {} from {}", spec.name, spec.start));
                    self.check.consumer_created(&spec.name, sent);
                }
                Reply::Created(created.map(drop))
            }
            Command::DeleteConsumer(_, name) => {
                self.delete_consumer(&name, false);
                Reply::Deleted(Ok(()))
            }
            other => {
                let unknown = WriteFault::Unknown(format!("{other:?}"));
                Reply::Written(Err(unknown))
            }
        }
    }

    /// Whether losing a consumer loses nothing else.
    pub(crate) fn consumers_are_disposable(&self) -> bool {
        self.options.retention != Retention::Interest
    }
}

pub(crate) fn group() -> GroupName {
    GroupName::new("g").unwrap()
}

fn parse(reply: &str) -> Option<(ConsumerName, u64)> {
    let (name, sequence) = reply.split_once(' ')?;
    Some((ConsumerName::parse(name)?, sequence.parse().ok()?))
}
