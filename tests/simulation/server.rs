//! What the server does with what reaches it.

use std::collections::{BTreeMap, BTreeSet};

use jetring::engine::{
    Command, CreateFault, Event, Position, Prepared, Refusal, Reply, Retention, StreamState, Survey, Ticket,
};
use jetring::ids::Partition;
use jetring::lanes::{ConsumerView, Filter, Found, Mark};
use jetring::names::ConsumerName;

use crate::consumer::Pull;
use crate::course::Kind;
use crate::member::{Input, Of};
use crate::planted::Plant;
use crate::stream::{NotMade, Stored, Stream, matches};
use crate::subjects::{delivered, filter_of, name_of, parse, partition_of, subject};
use crate::world::{Happening, Request, World};
use crate::{ACK_WAIT, MILLI, SECOND};

/// Later than any sequence and earlier than any real date matters not: only that later buckets are later.
const EPOCH: u64 = 1_700_000_000 * SECOND;

/// How many unacked messages a consumer may have out: what a partition may hold and have spilled.
const MAX_ACK_PENDING: usize = 64;

/// What the group does not own.
pub(crate) struct Server {
    pub(crate) stream: Stream<ConsumerName>,
    /// How far its date is off, in nanoseconds.
    pub(crate) date_off: i64,
    pub(crate) pulls: u64,
    pub(crate) redeliveries: BTreeMap<ConsumerName, u64>,
    pub(crate) dead_letters: BTreeSet<u64>,
    pub(crate) refuses_dead_letters_until: u64,
}

impl Server {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            stream: Stream::new(kind.into(), EPOCH, ACK_WAIT, MAX_ACK_PENDING),
            date_off: 0,
            pulls: 0,
            redeliveries: BTreeMap::new(),
            dead_letters: BTreeSet::new(),
            refuses_dead_letters_until: 0,
        }
    }

    /// The date, in nanoseconds since the Unix epoch.
    pub(crate) fn date(&self, now: u64) -> u64 {
        (EPOCH + now).saturating_add_signed(self.date_off)
    }

    /// Stores a message. Its sequence and time.
    pub(crate) fn publish(&mut self, of: Partition, key: u64, id: u64, now: u64, astray: bool) -> (u64, u64) {
        let time = self.date(now);
        let subject = if astray { "nowhere".to_owned() } else { subject(of, key) };
        (self.stream.publish(Stored { subject, time, id }), time)
    }

    /// The lowest sequence at or below the mark that has, or will have, a message newer than the mark.
    fn replaced(&self, filter: &Filter, mark: Mark) -> Option<u64> {
        let newer = |stored: &Stored| stored.time > mark.time && matches(filter.as_str(), &stored.subject);
        let mut messages = self.stream.messages.range(..=mark.sequence);
        let stored = messages
            .find(|(_, stored)| newer(stored))
            .map(|(&sequence, _)| sequence);
        let end = (self.stream.last < mark.sequence).then_some(self.stream.last + 1);
        stored.into_iter().chain(end).min()
    }

    /// The filters that have messages, by partition.
    fn filters(&self, partitions: u16, by_key: bool) -> BTreeMap<Partition, Vec<Filter>> {
        if !by_key {
            let fixed = |p| (Partition(p), vec![Filter::new(filter_of(Partition(p), 0, false))]);
            return (0..partitions).map(fixed).collect();
        }
        let subjects: BTreeSet<&str> = self
            .stream
            .messages
            .values()
            .map(|stored| stored.subject.as_str())
            .collect();
        let mut filters: BTreeMap<Partition, Vec<Filter>> = BTreeMap::new();
        for subject in subjects.into_iter().filter(|subject| subject.starts_with("t.")) {
            let of_partition = filters.entry(partition_of(subject).0).or_default();
            of_partition.push(Filter::new(subject));
        }
        filters
    }
}

impl World {
    pub(crate) fn at_server(&mut self, slot: usize, life: u64, request: Request) {
        match request {
            Request::Command(sent, ticket, command) => self.request(slot, life, sent, ticket, &command),
            Request::Watch(number, scope) => {
                self.watchers.retain(|(other, ..)| *other != slot);
                if self.slots[slot].life == life {
                    self.watchers.push((slot, life, number, scope));
                    self.show_all(slot);
                }
            }
            Request::Pull(of, messages) => self.pull(slot, life, of, messages),
            Request::Inspect(of) => {
                let info = self.server.stream.info(&name_of(&of));
                let view = info.map(|info| ConsumerView {
                    delivered: info.delivered.0,
                    pending: info.pending as u64,
                    ack_pending: info.ack_pending as u64,
                    ack_floor: info.ack_floor.0,
                });
                self.send_back(slot, life, Input::Inspected(of, view));
            }
            Request::Ack(reply) => self.ack(&reply),
            Request::InProgress(reply) => {
                if let Some((name, sequence)) = parse(&reply)
                    && let Some(consumer) = self.server.stream.consumers.get_mut(&name)
                {
                    consumer.keep(sequence, self.now);
                }
            }
            Request::Read(read, sequence) => {
                let found = self.server.stream.messages.get(&sequence);
                let found = found.map_or(Found::Gone, |stored| Found::Message {
                    time: stored.time,
                    message: stored.id,
                });
                self.send_back(slot, life, Input::Read(read, found));
            }
            Request::DeadLetter(run, number, id) => {
                let stored = self.store_dead_letter(id);
                self.send_back(slot, life, Input::DeadLettered(run, number, stored));
            }
            Request::Discover => {
                let filters = self.server.filters(self.course.partitions, self.course.by_key);
                self.send_back(slot, life, Input::Event(Event::Discovered(filters)));
            }
        }
    }

    fn pull(&mut self, slot: usize, life: u64, of: Of, messages: usize) {
        let name = name_of(&of);
        self.server.pulls += 1;
        let id = self.server.pulls;
        let pull = Pull {
            id,
            to: (slot, life),
            left: messages,
        };
        match self.server.stream.consumers.get_mut(&name) {
            None => self.send_back(slot, life, Input::Missing(of)),
            Some(consumer) => {
                consumer.pulls.push_back(pull);
                self.check.consumer_used(&name);
                self.after(5 * SECOND, Happening::PullExpires(name.clone(), id));
                self.serve(&name);
            }
        }
    }

    pub(crate) fn pull_expires(&mut self, name: &ConsumerName, id: u64) {
        let Some(consumer) = self.server.stream.consumers.get_mut(name) else {
            return;
        };
        let place = consumer.pulls.iter().position(|pull| pull.id == id);
        if let Some(pull) = place.and_then(|place| consumer.pulls.remove(place)) {
            let of = (name.partition, Filter::new(consumer.filter.as_str()), name.epoch);
            self.send_back(pull.to.0, pull.to.1, Input::Undelivered(of, pull.left));
        }
    }

    fn ack(&mut self, reply: &str) {
        let Some((name, sequence)) = parse(reply) else { return };
        let stream = &mut self.server.stream;
        let awaited = stream.consumers.get(&name).map(|consumer| &consumer.pending);
        if awaited.is_some_and(|pending| pending.contains_key(&sequence))
            && let Some(stored) = stream.messages.get(&sequence)
        {
            self.check.acked(stored.id);
        }
        stream.ack(&name, sequence);
        let date = self.server.date(self.now);
        if let Some(consumer) = self.server.stream.consumers.get_mut(&name) {
            consumer.acked_at = date;
        }
        self.serve(&name);
    }

    fn store_dead_letter(&mut self, id: u64) -> Result<(), String> {
        let refused = self.now < self.server.refuses_dead_letters_until;
        if refused && !self.calm {
            return Err("there is no room".to_owned());
        }
        // A second one of the same message is recognised by its id.
        if self.server.dead_letters.insert(id) {
            self.tell(|| format!("server stores message {id} as a dead letter"));
            let rejected = self.is_rejected(id);
            self.check.buried(id, rejected, self.course.attempts);
        }
        Ok(())
    }

    pub(crate) fn redeliver(&mut self, name: &ConsumerName) {
        self.server.redeliveries.remove(name);
        self.serve(name);
    }

    /// Delivers what a consumer can deliver now.
    pub(crate) fn serve(&mut self, name: &ConsumerName) {
        for (pull, delivery) in self.server.stream.serve(name, self.now) {
            let input = delivered(name, &delivery, self.course.by_key);
            self.send_back(pull.to.0, pull.to.1, input);
        }
        let consumer = self.server.stream.consumers.get(name);
        if let Some(at) = consumer.and_then(|consumer| consumer.expires_at(ACK_WAIT))
            && self.server.redeliveries.get(name).is_none_or(|planned| *planned > at)
        {
            let at = at.max(self.now + MILLI);
            self.server.redeliveries.insert(name.clone(), at);
            self.at(at, Happening::Redeliver(name.clone()));
        }
    }

    /// Deletes a consumer, and tells the pulls that wait for it.
    pub(crate) fn delete_consumer(&mut self, name: &ConsumerName, quietly: bool) {
        let consumer = self.server.stream.consumers.get(name);
        let filter = consumer.map(|consumer| Filter::new(consumer.filter.as_str()));
        let (Some(filter), Some(pulls)) = (filter, self.server.stream.delete(name)) else {
            return;
        };
        self.tell(|| format!("server deletes {name}"));
        self.check.consumer_deleted(name, self.now);
        for pull in pulls.into_iter().filter(|_| !quietly) {
            let of = (name.partition, filter.clone(), name.epoch);
            self.send_back(pull.to.0, pull.to.1, Input::Missing(of));
        }
    }

    fn request(&mut self, slot: usize, life: u64, sent: u64, ticket: Ticket, command: &Command) {
        let reply = self.answer(sent, command);
        self.show_changes();
        self.send_back(slot, life, Input::Event(Event::Done(ticket, reply)));
    }

    fn answer(&mut self, sent: u64, command: &Command) -> Reply {
        let bucket = &mut self.bucket;
        let there = bucket.is_there();
        match command.clone() {
            Command::Prepare(_) => self.prepare(),
            Command::ReadMember(_, id) => Reply::Member(there.map(|()| bucket.member(&id))),
            Command::WriteMember(_, id, record, at) => Reply::Written(bucket.write_member(&id, record, at)),
            Command::PurgeMember(_, id, at) => Reply::Written(bucket.purge_member(&id, at)),
            Command::ReadGroup(_) => Reply::Group(there.map(|()| bucket.group())),
            Command::ReadAssignment(_) => Reply::Assignment(there.map(|()| bucket.assignment())),
            Command::WriteAssignment(_, record, at) => {
                let previous = bucket.assignment().value;
                let written = bucket.write_assignment(record.clone(), at);
                if written.is_ok() {
                    self.check.planned(previous.as_ref(), &record);
                }
                Reply::Written(written)
            }
            Command::ReadClaim(_, p) => Reply::Claim(there.map(|()| bucket.claim(p))),
            Command::ReadClaims(_) => Reply::Claims(there.map(|()| bucket.claims())),
            Command::WriteClaim(_, p, record, at) => Reply::Written(bucket.write_claim(p, record, at)),
            Command::ReadProgress(_, p) => Reply::Progress(there.map(|()| bucket.progress(p))),
            Command::WriteProgress(_, p, record, at) => {
                let written = bucket.write_progress(p, record.clone(), at);
                if written.is_ok() {
                    self.check.saved(p, &record);
                }
                Reply::Written(written)
            }
            Command::FindReplaced(_, filter, mark) => Reply::Replaced(Ok(self.server.replaced(&filter, mark))),
            Command::Survey(_) => Reply::Survey(Ok(self.survey())),
            Command::InspectConsumer(_, name) => {
                let stream = &self.server.stream;
                let found = stream.consumers.get(&name).zip(stream.info(&name));
                Reply::Consumer(Ok(found.map(|(consumer, info)| Position {
                    ack_floor: info.ack_floor.1,
                    acked_at: consumer.acked_at,
                    start: consumer.start.unwrap_or(0),
                    delivered: info.delivered.1,
                })))
            }
            Command::CreateConsumer(_, spec) => {
                let refused = self.course.plant == Some(Plant::NeverOpened) && spec.name.partition == Partition(0);
                if refused {
                    return Reply::Created(Err(CreateFault::Unknown("no".to_owned())));
                }
                Reply::Created(self.create(&spec, sent))
            }
            Command::DeleteConsumer(_, name) => {
                if self.course.plant != Some(Plant::DeletionsLost) {
                    self.delete_consumer(&name, false);
                }
                Reply::Deleted(Ok(()))
            }
            other => unreachable!("{other:?} is no request"),
        }
    }

    fn prepare(&mut self) -> Reply {
        let forgets = self.course.plant == Some(Plant::TokensForgotten) && self.now > 9 * SECOND;
        let date = if forgets { 1 } else { self.server.date(self.now) };
        if self.course.noise && !self.calm && self.random.percent(3) {
            return Reply::Prepared(Err(Refusal::Retry("no answer".to_owned())));
        }
        let stream_created = self.server.stream.created;
        let (bucket_created, found) = self.bucket.prepare(date, stream_created);
        Reply::Prepared(if found == stream_created {
            Ok(Prepared {
                bucket_created,
                start_sequence: 1,
                stream_created,
            })
        } else {
            Err(Refusal::Final(format!("the group is for the stream of {found}")))
        })
    }

    fn survey(&self) -> Survey {
        let forgets = self.course.plant == Some(Plant::TokensForgotten);
        let stream = &self.server.stream;
        Survey {
            stream: StreamState {
                created: stream.created,
                last_sequence: stream.last,
            },
            consumers: stream.consumers.keys().filter(|_| !forgets).cloned().collect(),
            filters: self.server.filters(self.course.partitions, self.course.by_key),
        }
    }

    fn create(&mut self, spec: &jetring::engine::ConsumerSpec, sent: u64) -> Result<(), CreateFault> {
        let work_queue = self.server.stream.retention == Retention::WorkQueue;
        let start = (!work_queue).then_some(spec.start.max(1));
        if self.course.plant == Some(Plant::DeletedBeforeCreated) {
            let older = |name: &&ConsumerName| name.serves(&spec.filter) && **name != spec.name;
            let older: Vec<_> = self.server.stream.consumers.keys().filter(older).cloned().collect();
            older.iter().for_each(|name| self.delete_consumer(name, false));
        }
        match self.server.stream.create(&spec.name, spec.filter.as_str(), start) {
            Ok(new) => {
                if new {
                    self.tell(|| format!("server creates {} from {start:?}", spec.name));
                    self.check.consumer_created(&spec.name, sent);
                    self.check.positioned(spec.filter.as_str(), start.unwrap_or(0));
                }
                Ok(())
            }
            Err(NotMade::Exists) => Err(CreateFault::Exists),
            Err(NotMade::Overlap) => Err(CreateFault::Overlap("filtered consumer not unique".to_owned())),
        }
    }
}
