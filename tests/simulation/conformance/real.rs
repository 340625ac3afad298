//! A history on a real server. Requests are made as the crate makes them.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull::Config as ConsumerConfig;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::kv::{Config as BucketConfig, Operation, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{
    Config as StreamConfig, ConsumerCreateStrictErrorKind, LastRawMessageErrorKind, RetentionPolicy, StorageType,
    Stream,
};
use async_nats::jetstream::{self, Context};
use futures_util::{StreamExt, TryStreamExt};

use super::ACK_WAIT;
use super::history::{Held, History, Outcome, Step, Told, start};
use crate::consumer::Info;
use crate::course::Kind;
use crate::stream::Purge;

/// How long a pull request waits for messages.
const EXPIRES: Duration = Duration::from_millis(120);

/// Between two requests that are about time, so that the server's timers tell them apart; and for what it does behind an answer.
const PAUSE: Duration = Duration::from_millis(15);

/// More time has passed than was meant to: what was not acked may have been delivered again.
#[derive(Debug)]
pub(super) struct Spoiled;

pub(super) struct Real {
    context: Context,
    name: String,
    kind: Kind,
    max_ack_pending: i64,
    stream: Stream,
    store: Store,
    /// The reply subject of every delivery.
    deliveries: Vec<String>,
    published: u64,
    written: u64,
    since_wait: Instant,
}

impl Real {
    pub(super) async fn new(client: &async_nats::Client, history: &History, tag: &str) -> Self {
        let context = jetstream::new(client.clone());
        let name = format!("S{tag}");
        let stream = StreamConfig {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            retention: match history.kind {
                Kind::Limits => RetentionPolicy::Limits,
                Kind::WorkQueue => RetentionPolicy::WorkQueue,
                Kind::Interest => RetentionPolicy::Interest,
            },
            storage: StorageType::Memory,
            ..StreamConfig::default()
        };
        let bucket = BucketConfig {
            bucket: name.clone(),
            storage: StorageType::Memory,
            ..BucketConfig::default()
        };
        Self {
            stream: context.create_stream(stream).await.unwrap(),
            store: context.create_key_value(bucket).await.unwrap(),
            context,
            name,
            kind: history.kind,
            max_ack_pending: history.max_ack_pending as i64,
            deliveries: Vec::new(),
            published: 0,
            written: 0,
            since_wait: Instant::now(),
        }
    }

    pub(super) async fn remove(self) {
        self.context.delete_stream(&self.name).await.unwrap();
        self.context.delete_key_value(&self.name).await.unwrap();
    }

    fn subject(&self, tokens: &str) -> String {
        format!("{}.{tokens}", self.name)
    }

    /// The answer to a step. What the server counts behind its answers is looked at until it is as `expected`, for a while.
    pub(super) async fn apply(&mut self, step: &Step, expected: &Outcome) -> Result<Outcome, Spoiled> {
        let outcome = match step.clone() {
            Step::Publish(tokens) => {
                let id = self.published.to_string();
                self.published += 1;
                let subject = self.subject(tokens);
                let published = self.context.publish(subject, id.into()).await.unwrap();
                Outcome::Stored(published.await.unwrap().sequence)
            }
            Step::Create { name, filter, back } => self.create(name, filter, back).await,
            Step::Delete(name) => match self.stream.delete_consumer(&name.to_string()).await {
                Ok(_) => Outcome::Done,
                Err(_) => Outcome::Missing,
            },
            Step::Pull { name, messages } => {
                tokio::time::sleep(PAUSE).await;
                self.pull(name, messages).await
            }
            Step::Ack(number) => self.answer(number, "+ACK").await,
            Step::Nak(number) => self.answer(number, "-NAK").await,
            Step::Terminate(number) => self.answer(number, "+TERM").await,
            Step::InProgress(number) => self.answer(number, "+WPI").await,
            Step::Purge(purge) => self.purge(purge).await,
            Step::Info(_) | Step::Stream => self.look(step, expected).await,
            Step::Wait => {
                self.check_time()?;
                tokio::time::sleep(ACK_WAIT + Duration::from_millis(300)).await;
                self.since_wait = Instant::now();
                Outcome::Done
            }
            Step::Write { key, off } => {
                self.written += 1;
                let value = format!("value {}", self.written);
                let expected = self.held(key).await.2 + off;
                match self.store.update(key, value.into(), expected).await {
                    Ok(revision) => Outcome::Written(revision),
                    Err(error) => refused(error.kind()),
                }
            }
            Step::Remove { key, off } => {
                let expected = self.held(key).await.2 + off;
                match self.store.purge_expect_revision(key, Some(expected)).await {
                    // The tombstone's revision is not told.
                    Ok(()) => Outcome::Written(self.held(key).await.2),
                    Err(error) => refused(error.kind()),
                }
            }
            Step::Erase { key, up_to } => {
                let purge = self.store.stream.purge().filter(format!("{}{key}", self.store.prefix));
                purge.sequence(up_to + 1).await.unwrap();
                Outcome::Done
            }
            Step::Read(key) => Outcome::Held(vec![self.held(key).await]),
            Step::List => self.list().await,
            Step::Watch => self.watch(expected).await,
        };
        self.check_time()?;
        Ok(outcome)
    }

    fn check_time(&self) -> Result<(), Spoiled> {
        let spent = self.since_wait.elapsed();
        if spent < ACK_WAIT - Duration::from_millis(100) {
            Ok(())
        } else {
            Err(Spoiled)
        }
    }

    async fn create(&self, name: u64, filter: &str, back: Option<u64>) -> Outcome {
        let last = self.stream.get_info().await.unwrap().state.last_sequence;
        let start = back.map(|back| start(last, back));
        let config = ConsumerConfig {
            durable_name: Some(name.to_string()),
            filter_subject: self.subject(filter),
            deliver_policy: match start {
                None => DeliverPolicy::All,
                Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            },
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_deliver: -1,
            max_ack_pending: self.max_ack_pending,
            memory_storage: self.kind != Kind::Interest,
            num_replicas: usize::from(self.kind == Kind::Limits),
            ..ConsumerConfig::default()
        };
        match self.stream.create_consumer_strict(config).await {
            Ok(_) => Outcome::Done,
            Err(error) => match error.kind() {
                ConsumerCreateStrictErrorKind::AlreadyExists => Outcome::Exists,
                ConsumerCreateStrictErrorKind::JetStream(inner) if inner.error_code().0 == 10_100 => Outcome::Overlaps,
                _ => panic!("{error}"),
            },
        }
    }

    async fn pull(&mut self, name: u64, messages: usize) -> Outcome {
        let client = self.context.client();
        let inbox = client.new_inbox();
        let mut deliveries = client.subscribe(inbox.clone()).await.unwrap();
        let request = format!(r#"{{"batch":{messages},"expires":{}}}"#, EXPIRES.as_nanos());
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{name}", self.name);
        client.publish_with_reply(subject, inbox, request.into()).await.unwrap();
        let mut told = Vec::new();
        while told.len() < messages {
            let message = deliveries.next().await.unwrap();
            match message.status {
                Some(async_nats::StatusCode::NO_RESPONDERS) => return Outcome::Missing,
                Some(_) => break,
                None => {}
            }
            let message = jetstream::Message {
                message,
                context: self.context.clone(),
            };
            let info = message.info().unwrap();
            told.push(Told {
                sequence: info.stream_sequence,
                consumer_sequence: info.consumer_sequence,
                count: info.delivered as u64,
                subject: message.subject.strip_prefix(&self.subject("")).unwrap().to_owned(),
                id: std::str::from_utf8(&message.payload).unwrap().parse().unwrap(),
            });
            self.deliveries.push(message.reply.clone().unwrap().to_string());
        }
        Outcome::Pulled(told)
    }

    async fn answer(&self, number: usize, what: &'static str) -> Outcome {
        if !self.deliveries.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let reply = self.deliveries[number % self.deliveries.len()].clone();
            let request = async_nats::client::Request::new()
                .payload(what.into())
                .timeout(Some(Duration::from_millis(500)));
            // Nobody answers for a consumer that is gone.
            self.context.client().send_request(reply, request).await.ok();
        }
        Outcome::Done
    }

    async fn purge(&self, purge: Purge) -> Outcome {
        let request = self.stream.purge();
        // The builder has a type for each.
        let purged = match (purge.subject, purge.below, purge.keep) {
            (Some(tokens), _, _) => request.filter(self.subject(&tokens)).await,
            (None, Some(below), _) => request.sequence(below).await,
            (None, None, Some(keep)) => request.keep(keep as u64).await,
            (None, None, None) => request.await,
        };
        purged.unwrap();
        tokio::time::sleep(PAUSE).await;
        Outcome::Done
    }

    async fn look(&self, step: &Step, expected: &Outcome) -> Outcome {
        for _ in 0..20 {
            let found = self.look_once(step).await;
            if found == *expected {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.look_once(step).await
    }

    async fn look_once(&self, step: &Step) -> Outcome {
        let Step::Info(name) = step else {
            let state = self.stream.get_info().await.unwrap().state;
            return Outcome::Stream {
                // A stream that never had any says 0.
                first: state.first_sequence.max(1),
                last: state.last_sequence,
                messages: state.messages as usize,
            };
        };
        match self.stream.consumer_info(name.to_string()).await {
            Ok(info) => Outcome::Info(Info {
                delivered: (info.delivered.consumer_sequence, info.delivered.stream_sequence),
                ack_floor: (info.ack_floor.consumer_sequence, info.ack_floor.stream_sequence),
                pending: info.num_pending as usize,
                ack_pending: info.num_ack_pending,
                redelivered: info.num_redelivered,
            }),
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => Outcome::Missing,
                kind => panic!("{kind:?}"),
            },
        }
    }

    async fn held(&self, key: &str) -> Held {
        let subject = format!("{}{key}", self.store.prefix);
        match self.store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => {
                let deleted = message.headers.get("KV-Operation").is_some();
                let value = String::from_utf8(message.payload.to_vec()).unwrap();
                (key.to_owned(), (!deleted).then_some(value), message.sequence)
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => (key.to_owned(), None, 0),
            Err(error) => panic!("{error}"),
        }
    }

    async fn list(&self) -> Outcome {
        let pattern = format!("{}k.*", self.store.prefix);
        let subjects = self.store.stream.info_with_subjects(pattern).await.unwrap();
        let mut subjects: Vec<(String, usize)> = subjects.try_collect().await.unwrap();
        subjects.sort();
        let mut held = Vec::new();
        for (subject, _) in subjects {
            held.push(self.held(subject.strip_prefix(&self.store.prefix).unwrap()).await);
        }
        Outcome::Held(held)
    }

    /// An empty bucket gives no sign that there is nothing.
    async fn watch(&self, expected: &Outcome) -> Outcome {
        let Outcome::Held(wanted) = expected else {
            panic!("{expected:?} is no answer to a watch")
        };
        let mut watch = self.store.watch_with_history(">").await.unwrap();
        let mut held = Vec::new();
        while held.len() < wanted.len() {
            let entry = watch.next().await.unwrap().unwrap();
            let value = String::from_utf8(entry.value.to_vec()).unwrap();
            let kept = entry.operation == Operation::Put;
            held.push((entry.key, kept.then_some(value), entry.revision));
        }
        Outcome::Held(held)
    }
}

fn refused(kind: UpdateErrorKind) -> Outcome {
    match kind {
        UpdateErrorKind::WrongLastRevision => Outcome::Conflict,
        kind => panic!("{kind:?}"),
    }
}
