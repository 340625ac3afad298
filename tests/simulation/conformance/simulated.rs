//! A history on the simulated server.

use super::ACK_WAIT;
use super::history::{Held, History, Outcome, Step, Told, start};
use crate::MILLI;
use crate::consumer::Pull;
use crate::kv::{Kv, Refused};
use crate::stream::{NotMade, Stored, Stream};

pub(super) struct Simulated {
    now: u64,
    stream: Stream<u64>,
    kv: Kv<String>,
    /// Consumer and sequence of every delivery.
    deliveries: Vec<(u64, u64)>,
    published: u64,
    written: u64,
}

impl Simulated {
    pub(super) fn new(history: &History) -> Self {
        let ack_wait = ACK_WAIT.as_nanos() as u64;
        let mut kv = Kv::default();
        kv.create(1);
        Self {
            now: 0,
            stream: Stream::new(history.kind.into(), 1, ack_wait, history.max_ack_pending),
            kv,
            deliveries: Vec::new(),
            published: 0,
            written: 0,
        }
    }

    pub(super) fn apply(&mut self, step: &Step) -> Outcome {
        self.now += MILLI;
        match step.clone() {
            Step::Publish(subject) => {
                let id = self.published;
                self.published += 1;
                Outcome::Stored(self.stream.publish(Stored {
                    subject: subject.to_owned(),
                    time: self.now,
                    id,
                }))
            }
            Step::Create { name, filter, back } => {
                let start = back.map(|back| start(self.stream.last, back));
                match self.stream.create(&name, filter, start) {
                    Ok(_) => Outcome::Done,
                    Err(NotMade::Exists) => Outcome::Exists,
                    Err(NotMade::Overlap) => Outcome::Overlaps,
                }
            }
            Step::Delete(name) => self.stream.delete(&name).map_or(Outcome::Missing, |_| Outcome::Done),
            Step::Pull { name, messages } => self.pull(name, messages),
            Step::Ack(number) | Step::Terminate(number) => self.answer(number, |stream, name, sequence, _| {
                stream.ack(&name, sequence);
            }),
            Step::Nak(number) => self.answer(number, |stream, name, sequence, _| {
                stream.consumers.get_mut(&name).unwrap().nak(sequence);
            }),
            Step::InProgress(number) => self.answer(number, |stream, name, sequence, now| {
                stream.consumers.get_mut(&name).unwrap().keep(sequence, now);
            }),
            Step::Purge(purge) => {
                self.stream.purge(&purge);
                Outcome::Done
            }
            Step::Info(name) => self.stream.info(&name).map_or(Outcome::Missing, Outcome::Info),
            Step::Stream => Outcome::Stream {
                first: self.stream.first,
                last: self.stream.last,
                messages: self.stream.messages.len(),
            },
            Step::Wait => {
                self.now += ACK_WAIT.as_nanos() as u64;
                for consumer in self.stream.consumers.values_mut() {
                    consumer.expire(self.now, ACK_WAIT.as_nanos() as u64);
                }
                Outcome::Done
            }
            Step::Write { key, off } => {
                self.written += 1;
                let value = Some(format!("value {}", self.written));
                self.write(key, value, off)
            }
            Step::Remove { key, off } => self.write(key, None, off),
            Step::Erase { key, up_to } => {
                self.kv.erase(key, up_to);
                Outcome::Done
            }
            Step::Read(key) => {
                let (value, revision) = self.kv.read(key);
                Outcome::Held(vec![(key.to_owned(), value, revision)])
            }
            Step::List => Outcome::Held(self.kv.list("k.")),
            Step::Watch => {
                let mut held: Vec<Held> = self.kv.list("");
                held.sort_by_key(|(_, _, revision)| *revision);
                Outcome::Held(held)
            }
        }
    }

    fn write(&mut self, key: &str, value: Option<String>, off: u64) -> Outcome {
        let expected = self.kv.read(key).1 + off;
        match self.kv.write(key, value, expected) {
            Ok(revision) => Outcome::Written(revision),
            Err(Refused::Conflict | Refused::Missing) => Outcome::Conflict,
        }
    }

    fn pull(&mut self, name: u64, messages: usize) -> Outcome {
        let Some(consumer) = self.stream.consumers.get_mut(&name) else {
            return Outcome::Missing;
        };
        consumer.pulls.push_back(Pull {
            id: 0,
            to: (0, 0),
            left: messages,
        });
        let sent = self.stream.serve(&name, self.now);
        // What is left of the request expires.
        self.stream.consumers.get_mut(&name).unwrap().pulls.clear();
        let told = sent.into_iter().map(|(_, delivery)| {
            self.deliveries.push((name, delivery.sequence));
            Told {
                sequence: delivery.sequence,
                consumer_sequence: delivery.consumer_sequence,
                count: delivery.count,
                subject: delivery.stored.subject,
                id: delivery.stored.id,
            }
        });
        Outcome::Pulled(told.collect())
    }

    fn answer(&mut self, number: usize, answer: impl Fn(&mut Stream<u64>, u64, u64, u64)) -> Outcome {
        if self.deliveries.is_empty() {
            return Outcome::Done;
        }
        // Acks name the consumer, not which of that name: one made again takes those of its predecessor for its own.
        let (name, sequence) = self.deliveries[number % self.deliveries.len()];
        if self.stream.consumers.contains_key(&name) {
            answer(&mut self.stream, name, sequence, self.now);
        }
        Outcome::Done
    }
}
