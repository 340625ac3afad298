//! The choices of a world. Plain data, so that a child process can be handed them.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use jetring::config::DeadLetterSettings;
use jetring::partitioning::{Partitions, SubjectPattern};
use jetring::{Acks, Group, RetryPolicy, Settings, StartFrom, Token, Transformed};
use serde::{Deserialize, Serialize};

/// How the stream is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// One consumer per key.
    Token,
    /// One consumer per partition; the stream inserts the partition.
    Transformed,
}

/// What a world consists of. The times are short, but long enough for a machine with other things to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Names the stream, the bucket and the group, and begins every subject.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The part of the subject pattern behind the name.
    pub(crate) keys: String,
    /// Which of the pattern's wildcards are the key; none: all.
    pub(crate) key_tokens: Vec<usize>,
    pub(crate) partitions: u64,
    pub(crate) retention: RetentionPolicy,
    pub(crate) session_timeout: Duration,
    pub(crate) rebalance_delay: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) ack_wait: Duration,
    pub(crate) concurrency: usize,
    pub(crate) max_held_per_partition: usize,
    pub(crate) start_new: bool,
    /// Whether finished messages are acked.
    pub(crate) acked: bool,
    /// Whether what kills its process becomes a dead letter.
    pub(crate) dead_letter_killers: bool,
}

impl Setup {
    /// Transformed partitioning of a stream with limits retention.
    pub(crate) fn new(kind: Kind, retention: RetentionPolicy) -> Self {
        Self {
            name: format!("w{}", nuid::next()),
            kind,
            keys: "*".to_owned(),
            key_tokens: Vec::new(),
            partitions: 8,
            retention,
            session_timeout: Duration::from_secs(4),
            rebalance_delay: Duration::from_millis(50),
            drain_timeout: Duration::from_secs(10),
            checkpoint_interval: Duration::from_millis(200),
            ack_wait: Duration::from_secs(5),
            concurrency: 64,
            max_held_per_partition: 128,
            start_new: false,
            acked: true,
            dead_letter_killers: false,
        }
    }

    /// For members that are to die: others notice it soon.
    pub(crate) fn mortal(self) -> Self {
        Self {
            session_timeout: Duration::from_millis(1200),
            ..self
        }
    }

    /// The subject of a key's messages.
    pub(crate) fn subject(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(crate) fn pattern(&self) -> SubjectPattern {
        let pattern = SubjectPattern::parse(&self.subject(&self.keys)).unwrap();
        if self.key_tokens.is_empty() {
            pattern
        } else {
            pattern.with_key_tokens(&self.key_tokens).unwrap()
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            session_timeout: self.session_timeout,
            rebalance_delay: self.rebalance_delay,
            drain_timeout: self.drain_timeout,
            checkpoint_interval: self.checkpoint_interval,
            ack_wait: self.ack_wait,
            concurrency: NonZeroUsize::new(self.concurrency).unwrap(),
            max_held_per_partition: NonZeroUsize::new(self.max_held_per_partition).unwrap(),
            reconcile_interval: Duration::from_secs(2),
            discovery_interval: Duration::from_millis(50),
            bucket: self.name.clone(),
            retry: RetryPolicy {
                initial: Duration::from_millis(20),
                max: Duration::from_millis(200),
                max_attempts: None,
            },
            acks: if self.acked { Acks::Plain } else { Acks::None },
            dead_letter_killers: self.dead_letter_killers,
            dead_letters: self.dead_letter_killers.then(|| {
                let dead = format!("dead-{}", self.name);
                DeadLetterSettings::new(dead.clone(), dead)
            }),
            start: if self.start_new {
                StartFrom::New
            } else {
                StartFrom::First
            },
            ..Settings::default()
        }
    }

    /// The group, under its own name.
    pub(crate) fn group(&self) -> Group {
        self.group_named(&self.name)
    }

    pub(crate) fn group_named(&self, name: &str) -> Group {
        let partitions = Partitions::new(self.partitions).unwrap();
        let group = match self.kind {
            Kind::Token => Group::new(name, &self.name, Token::new(self.pattern(), partitions)),
            Kind::Transformed => Group::new(name, &self.name, Transformed::new(self.pattern(), partitions)),
        };
        group.unwrap().with_settings(self.settings()).unwrap()
    }

    /// What the stream is made from, besides what the partitioning needs.
    pub(crate) fn stream_template(&self) -> Config {
        Config {
            retention: self.retention,
            storage: StorageType::File,
            ..Config::default()
        }
    }
}
