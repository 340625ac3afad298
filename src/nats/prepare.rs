//! What has to be right before a member may enter its group: the stream fits, the bucket is there, the settings agree.
//!
//! Everything is checked before anything is created, and the first thing created is the bucket.

use crate::config::{Settings, StartFrom};
use crate::engine::{Prepared, Retention};
use crate::error::Error;
use crate::records::{ConfigRecord, Keys, decode, encode};

use super::bucket::Bucket;
use super::streams::StreamFacts;
use super::{Nats, no_answer};

/// A group that a member may enter.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) bucket: Bucket,
    pub(crate) prepared: Prepared,
    pub(crate) retention: Retention,
}

impl Nats {
    /// Checks the stream, and finds or creates the bucket and the group's config.
    ///
    /// `start_sequence` is the group's if it is known already: a bucket that was deleted meanwhile must not make it begin anew.
    pub(crate) async fn prepare(&self, settings: &Settings, start_sequence: Option<u64>) -> Result<Ready, Error> {
        self.bounded(
            || format!("preparing the group {}", self.group),
            self.prepare_unbounded(settings, start_sequence),
        )
        .await
    }

    async fn prepare_unbounded(&self, settings: &Settings, start_sequence: Option<u64>) -> Result<Ready, Error> {
        let facts = self.check_stream(settings.start).await?;
        if let Some(letters) = &settings.dead_letters {
            self.check_dead_letters(letters).await?;
        }
        let wanted = self.config_record(settings, &facts, start_sequence);
        let key = Keys::new(&self.group).config();
        let bucket = match Bucket::open(&self.context, &settings.bucket).await? {
            Some(bucket) => bucket,
            None => Bucket::create(&self.context, &settings.bucket, settings.bucket_replicas).await?,
        };
        let config = self.agree(&bucket, &key, wanted).await?;
        if let Some(letters) = &settings.dead_letters {
            self.provision_dead_letters(letters).await?;
        }
        Ok(Ready {
            prepared: Prepared {
                bucket_created: bucket.created().await?,
                start_sequence: config.start_sequence,
                stream_created: facts.created,
            },
            bucket,
            retention: facts.retention,
        })
    }

    fn config_record(&self, settings: &Settings, facts: &StreamFacts, start_sequence: Option<u64>) -> ConfigRecord {
        let start = match settings.start {
            StartFrom::First => facts.first_sequence.max(1),
            StartFrom::New => facts.last_sequence + 1,
            StartFrom::Sequence(sequence) => sequence.max(1),
        };
        ConfigRecord {
            strategy: self.strategy.name().to_owned(),
            partitions: self.strategy.partitions().get(),
            subject: self.strategy.pattern().as_str().to_owned(),
            key_tokens: self.strategy.pattern().key_tokens().to_vec(),
            stream: self.stream.to_string(),
            stream_created: facts.created,
            start_sequence: start_sequence.unwrap_or(start),
            ring_seed: settings.ring_seed,
            virtual_nodes: settings.virtual_nodes.get(),
            session_timeout_ms: u64::try_from(settings.session_timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The group's config: written by whoever comes first, compared by everybody else.
    async fn agree(&self, bucket: &Bucket, key: &str, wanted: ConfigRecord) -> Result<ConfigRecord, Error> {
        let entry = bucket.read(key).await?;
        let found: ConfigRecord = match entry.value {
            Some(value) => decode(key, &value)?,
            None => match bucket.write(key, encode(&wanted), entry.revision).await {
                Ok(_) => return Ok(wanted),
                // Somebody else was first, or nothing is known: what stands there decides.
                Err(fault) => match bucket.read(key).await?.value {
                    Some(value) => decode(key, &value)?,
                    None => return Err(no_answer(format!("writing the key {key}"), fault)),
                },
            },
        };
        match wanted.difference(&found) {
            None => Ok(found),
            Some((field, wanted, found)) => Err(Error::ConfigMismatch {
                group: self.group.clone(),
                field,
                wanted,
                found,
            }),
        }
    }
}
