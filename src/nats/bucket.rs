//! The KV bucket: reads from the leader, compare-and-set, and a watch that gives hints.

use std::time::Duration;

use async_nats::jetstream::context::CreateKeyValueErrorKind;
use async_nats::jetstream::kv::{Config, Operation, Store, UpdateErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{Config as StreamConfig, DiscardPolicy, LastRawMessageErrorKind, StorageType};
use async_nats::jetstream::{Context, context::KeyValueErrorKind};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use crate::engine::WriteFault;
use crate::error::Error;
use crate::ids::Revision;

use super::{no_answer, refused, unix_nanos};

/// How many keys of a listing are read at a time.
const READS_IN_FLIGHT: usize = 32;

/// More than the headers of a write take.
const HEADERS: usize = 256;

/// How long a failed watch waits before it is started again.
const WATCH_RETRY: Duration = Duration::from_millis(250);

/// A value with its revision; `None` for a deletion.
#[derive(Debug, Clone)]
pub(crate) struct RawEntry {
    pub(crate) key: String,
    pub(crate) value: Option<Bytes>,
    pub(crate) revision: Revision,
}

/// An open bucket.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    store: Store,
    client: async_nats::Client,
}

impl Bucket {
    /// Opens a bucket; `None` if there is none.
    pub(crate) async fn open(context: &Context, name: &str) -> Result<Option<Self>, Error> {
        match context.get_key_value(name).await {
            Ok(store) => {
                check_bucket(name, &store.stream.cached_info().config)?;
                let client = context.client();
                Ok(Some(Self { store, client }))
            }
            Err(error) if error.kind() == KeyValueErrorKind::GetBucket && is_not_found(&error) => Ok(None),
            Err(error) => Err(no_answer(format!("opening the bucket {name}"), chain(&error))),
        }
    }

    /// Creates the bucket; one that somebody else creates at the same moment is as good.
    pub(crate) async fn create(context: &Context, name: &str, replicas: usize) -> Result<Self, Error> {
        let config = Config {
            bucket: name.to_owned(),
            description: "jetring: members, assignment, claims and progress of groups".to_owned(),
            history: 1,
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let what = || format!("creating the bucket {name}");
        match context.create_key_value(config).await {
            Ok(store) => Ok(Self {
                store,
                client: context.client(),
            }),
            Err(error) => match Self::open(context, name).await? {
                Some(bucket) => Ok(bucket),
                None if error.kind() == CreateKeyValueErrorKind::TimedOut => Err(no_answer(what(), chain(&error))),
                None => Err(refused(what(), chain(&error))),
            },
        }
    }

    /// When the bucket was created, in nanoseconds since the Unix epoch.
    pub(crate) async fn created(&self) -> Result<u64, Error> {
        let info = self.store.stream.get_info().await;
        let info =
            info.map_err(|error| no_answer(format!("asking about the bucket {}", self.store.name), chain(&error)))?;
        Ok(unix_nanos(info.created))
    }

    /// How large a value may be: as the server allows now, less room for its headers.
    pub(crate) fn largest_value(&self) -> usize {
        let message = self.client.max_payload();
        let bucket = usize::try_from(self.store.stream.cached_info().config.max_message_size).ok();
        let bucket = bucket.filter(|size| *size > 0).unwrap_or(usize::MAX);
        message.min(bucket).saturating_sub(HEADERS)
    }

    /// Reads a key from the leader.
    pub(crate) async fn read(&self, key: &str) -> Result<RawEntry, Error> {
        let subject = format!("{}{key}", self.store.prefix);
        match self.store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(self.entry(&message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(RawEntry {
                key: key.to_owned(),
                value: None,
                revision: Revision(0),
            }),
            Err(error) => Err(no_answer(format!("reading the key {key}"), chain(&error))),
        }
    }

    fn entry(&self, message: &StreamMessage) -> RawEntry {
        let subject = message.subject.as_str();
        let key = subject.strip_prefix(&self.store.prefix).unwrap_or(subject);
        let operation = message.headers.get("KV-Operation").map(|value| value.as_str());
        let marker = message.headers.get("Nats-Marker-Reason").is_some();
        // Deletions come as markers or as empty values, depending on who made them.
        let deleted = marker || matches!(operation, Some("DEL" | "PURGE")) || message.payload.is_empty();
        RawEntry {
            key: key.to_owned(),
            value: (!deleted).then(|| message.payload.clone()),
            revision: Revision(message.sequence),
        }
    }

    /// Reads every key that a pattern matches from the leader, deletions included.
    pub(crate) async fn list(&self, pattern: &str) -> Result<Vec<RawEntry>, Error> {
        let what = || format!("listing the keys {pattern}");
        let subjects = self
            .store
            .stream
            .info_with_subjects(format!("{}{pattern}", self.store.prefix))
            .await
            .map_err(|error| no_answer(what(), chain(&error)))?;
        let subjects: Vec<String> = subjects
            .map_ok(|(subject, _)| subject)
            .try_collect()
            .await
            .map_err(|error| no_answer(what(), chain(&error)))?;
        let reads = subjects.into_iter().map(|subject| async move {
            let key = subject.strip_prefix(&self.store.prefix).unwrap_or(&subject);
            self.read(key).await
        });
        futures_util::stream::iter(reads)
            .buffer_unordered(READS_IN_FLIGHT)
            .try_collect()
            .await
    }

    /// Writes a key if it is still at `expected` (0: never written).
    pub(crate) async fn write(&self, key: &str, value: Vec<u8>, expected: Revision) -> Result<Revision, WriteFault> {
        match self.store.update(key, value.into(), expected.0).await {
            Ok(revision) => Ok(Revision(revision)),
            Err(error) => Err(write_fault(&error.kind(), &error)),
        }
    }

    /// Purges a key if it is still at `expected`.
    pub(crate) async fn purge(&self, key: &str, expected: Revision) -> Result<Revision, WriteFault> {
        match self.store.purge_expect_revision(key, Some(expected.0)).await {
            // The tombstone's own revision is not told; whoever needs it reads the key.
            Ok(()) => Ok(expected),
            Err(error) => Err(write_fault(&error.kind(), &error)),
        }
    }

    /// Removes a key with its tombstone, up to and with `revision`. A newer value stays.
    pub(crate) async fn erase(&self, key: &str, revision: Revision) -> Result<(), Error> {
        let subject = format!("{}{key}", self.store.prefix);
        let purge = self.store.stream.purge().filter(subject).sequence(revision.0 + 1);
        match purge.await {
            Ok(_) => Ok(()),
            Err(error) => Err(no_answer(format!("removing the key {key}"), chain(&error))),
        }
    }

    /// Watches keys for ever: first what they hold now, then every change. A broken watch is started again. What it shows are
    /// hints; it may repeat, and it may be late.
    pub(crate) async fn watch(&self, patterns: &[String], mut on_entry: impl FnMut(RawEntry)) {
        loop {
            match self.store.watch_many_with_history(patterns).await {
                Err(error) => tracing::debug!(error = %chain(&error), "the watch could not be started"),
                Ok(mut watch) => {
                    while let Some(entry) = watch.next().await {
                        match entry {
                            Ok(entry) => {
                                let kept = entry.operation == Operation::Put && !entry.value.is_empty();
                                on_entry(RawEntry {
                                    value: kept.then_some(entry.value),
                                    key: entry.key,
                                    revision: Revision(entry.revision),
                                });
                            }
                            Err(error) => {
                                tracing::debug!(error = %chain(&error), "the watch broke");
                                break;
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(WATCH_RETRY).await;
        }
    }
}

/// Records must stay until they are removed, or a claim could lapse under its owner.
fn check_bucket(name: &str, config: &StreamConfig) -> Result<(), Error> {
    let bounded = config.max_bytes > 0 || config.max_messages > 0;
    let reason = if !config.max_age.is_zero() {
        format!(
            "it forgets records after {:?}; it has to be without a TTL",
            config.max_age
        )
    } else if config.mirror.is_some() {
        "it is a mirror; use the bucket that it mirrors".to_owned()
    } else if bounded && config.discard == DiscardPolicy::Old {
        "it drops old records when it is full; it has to refuse new ones".to_owned()
    } else if !config.allow_rollup {
        "it does not allow roll-ups, by which records are removed; create it as a KV bucket".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::BucketUnsuitable {
        bucket: name.to_owned(),
        reason: format!("{reason}, or let the group use another bucket"),
    })
}

fn write_fault(kind: &UpdateErrorKind, error: &dyn std::error::Error) -> WriteFault {
    match kind {
        UpdateErrorKind::WrongLastRevision => WriteFault::Conflict,
        _ => WriteFault::Unknown(chain(error)),
    }
}

/// Whether the server's word is behind an error: the stream of the bucket does not exist (error 10059).
fn is_not_found(error: &(dyn std::error::Error + 'static)) -> bool {
    chain(error).contains("10059") || chain(error).contains("stream not found")
}

/// An error with its sources, in one line. The library's errors tell most in their sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}
