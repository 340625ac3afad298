//! Whether a stream fits a group, and making one that does. An existing stream is never changed.

use std::sync::Arc;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamByNameErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, Info, RawMessageErrorKind, RetentionPolicy, SubjectTransform as ServerTransform,
};
use futures_util::TryStreamExt;

use crate::config::{Acks, DeadLetterSettings, StartFrom};
use crate::engine::Retention;
use crate::error::Error;
use crate::handler::Message;
use crate::lanes::Found;
use crate::partitioning::SubjectTransform;

use super::bucket::chain;
use super::{NO_MESSAGE, Nats, no_answer, refused, unix_nanos};

/// What matters of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamFacts {
    pub(crate) retention: Retention,
    /// Its identity, in nanoseconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
}

impl Nats {
    pub(super) fn unsuitable(&self, reason: impl Into<String>) -> Error {
        Error::StreamUnsuitable {
            stream: self.stream.to_string(),
            reason: reason.into(),
        }
    }

    pub(crate) async fn stream_info(&self) -> Result<Info, Error> {
        self.info_of(&self.stream).await
    }

    async fn info_of(&self, stream: &str) -> Result<Info, Error> {
        let found = self.context.get_stream(stream).await;
        match found {
            Ok(stream) => Ok(stream.cached_info().clone()),
            Err(error) => Err(match error.kind() {
                GetStreamErrorKind::JetStream(inner) if inner.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    Error::StreamMissing {
                        stream: stream.to_owned(),
                    }
                }
                GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => Error::StreamName {
                    stream: stream.to_owned(),
                },
                _ => no_answer(format!("asking about the stream {stream}"), chain(&error)),
            }),
        }
    }

    /// Checks that the stream can carry the group. Changes nothing.
    ///
    /// # Errors
    /// What does not fit, with what was found and what is needed.
    pub(crate) async fn check_stream(&self, start: StartFrom) -> Result<StreamFacts, Error> {
        let info = self.stream_info().await?;
        let config = &info.config;
        let retention = self.check_config(config, start)?;
        self.check_subjects(config)?;
        self.check_transform(&info, start).await?;
        self.check_consumers(config).await?;
        Ok(StreamFacts {
            retention,
            created: unix_nanos(info.created),
            first_sequence: info.state.first_sequence,
            last_sequence: info.state.last_sequence,
        })
    }

    /// Reads one message from the stream's leader. Only the server's own word says that it is gone.
    pub(crate) async fn read_message(&self, sequence: u64) -> Result<Found<Arc<Message>>, Error> {
        let what = || format!("reading message {sequence} of the stream {}", self.stream);
        let read = async {
            let stream = self.stream_handle().await?;
            match stream.get_raw_message(sequence).await {
                Ok(message) => Ok(Some(message)),
                Err(error) => match error.kind() {
                    RawMessageErrorKind::NoMessageFound => Ok(None),
                    RawMessageErrorKind::JetStream(inner) if inner.error_code().0 == NO_MESSAGE => Ok(None),
                    _ => Err(no_answer(what(), chain(&error))),
                },
            }
        };
        let Some(message) = self.bounded(what, read).await? else {
            return Ok(Found::Gone);
        };
        // One of another stream that bears the same sequence is told by its time.
        let resolved = self.strategy.resolve(&message.subject);
        let stray = resolved.is_none();
        let subject = resolved.map_or_else(|| message.subject.to_string(), |resolved| resolved.subject);
        Ok(Found::Message {
            time: unix_nanos(message.time),
            message: Arc::new(Message {
                subject: subject.into(),
                payload: message.payload,
                headers: message.headers,
                stray,
            }),
        })
    }

    fn check_subjects(&self, config: &Config) -> Result<(), Error> {
        for partition in self.strategy.partitions().iter() {
            let subject = self.strategy.covered_subject(partition);
            if !config.subjects.iter().any(|wider| covers(wider, &subject)) {
                return Err(Error::StreamDoesNotCover {
                    stream: self.stream.to_string(),
                    subject,
                    found: config.subjects.clone(),
                });
            }
        }
        Ok(())
    }

    /// What can be said of a stream from its configuration alone, be it there or to be made.
    fn check_config(&self, config: &Config, start: StartFrom) -> Result<Retention, Error> {
        if config.mirror.is_some() {
            return Err(self.unsuitable(
                "it is a mirror, and acks on a mirror do not reach its origin; use the stream that it mirrors",
            ));
        }
        let retention = match config.retention {
            RetentionPolicy::Limits => Retention::Limits,
            RetentionPolicy::WorkQueue => Retention::WorkQueue,
            RetentionPolicy::Interest => Retention::Interest,
        };
        self.check_retention(retention, start)?;
        let limit = config
            .consumer_limits
            .as_ref()
            .map_or(0, |limits| limits.max_ack_pending);
        if self.acks != Acks::None && limit > 0 && limit < self.max_ack_pending {
            return Err(self.unsuitable(format!(
                "its consumer limits allow {limit} unacked messages per consumer, and this member may have {}, which is twice \
                 max_held_per_partition and max_parked; raise the stream's consumer_limits.max_ack_pending or lower these settings",
                self.max_ack_pending
            )));
        }
        Ok(retention)
    }

    fn check_retention(&self, retention: Retention, start: StartFrom) -> Result<(), Error> {
        if retention == Retention::Interest && self.strategy.needs_discovery() {
            return Err(self.unsuitable(format!(
                "it has interest retention, which drops the first messages of a new key before a consumer can be made for it, \
                 and {} partitioning makes one consumer per key; use transformed partitioning or another retention",
                self.strategy.name()
            )));
        }
        if retention != Retention::Limits && self.acks == Acks::None {
            return Err(self.unsuitable(
                "it forgets messages by their acks, and the settings say Acks::None; use Acks::Plain or Acks::Confirmed",
            ));
        }
        if retention == Retention::WorkQueue && start != StartFrom::First {
            return Err(self.unsuitable(
                "it has work-queue retention, whose consumers begin with everything that is left; use StartFrom::First",
            ));
        }
        Ok(())
    }

    async fn check_transform(&self, info: &Info, start: StartFrom) -> Result<(), Error> {
        let found = info
            .config
            .subject_transform
            .as_ref()
            .map(|transform| SubjectTransform {
                source: transform.source.clone(),
                destination: transform.destination.clone(),
            });
        if self.strategy.transform().is_none() {
            return match found {
                None => Ok(()),
                Some(found) => Err(self.unsuitable(format!(
                    "it stores {} as {}, so its subjects are not the published ones; use transformed partitioning",
                    found.source, found.destination
                ))),
            };
        }
        let (pattern, partitions) = (self.strategy.pattern(), self.strategy.partitions());
        SubjectTransform::check_partitioning(found.as_ref(), pattern, partitions)
            .map_err(|mismatch| self.unsuitable(mismatch.to_string()))?;
        self.check_stored_before(start, info.state.last_sequence).await
    }

    /// Messages that were stored before the transform was set match no partition's filter: they would wait for ever, unseen.
    async fn check_stored_before(&self, start: StartFrom, last_sequence: u64) -> Result<(), Error> {
        let pattern = self.strategy.pattern().as_str();
        let what = || format!("asking the stream {} for messages without a partition", self.stream);
        let stream = self.stream_handle().await?;
        let subjects = stream.info_with_subjects(pattern).await;
        let subjects = subjects.map_err(|error| no_answer(what(), chain(&error)))?;
        let counted = subjects.try_fold(0_usize, |sum, (subject, count)| {
            // A pattern with a `>` also fits subjects that do have the partition.
            let stored_plainly = self.strategy.resolve(&subject).is_none();
            async move { Ok(if stored_plainly { sum + count } else { sum }) }
        });
        let count = counted.await.map_err(|error| no_answer(what(), chain(&error)))?;
        let skipped = match start {
            StartFrom::First => false,
            StartFrom::New => true,
            StartFrom::Sequence(sequence) => sequence > last_sequence,
        };
        if count == 0 || skipped {
            return Ok(());
        }
        Err(self.unsuitable(format!(
            "{count} of its messages were stored before its subject transform was set, and no partition's filter matches them; \
             consume or purge {pattern} first, or begin with StartFrom::New"
        )))
    }

    /// Checks that dead letters have a place to go to, or can get one. Changes nothing.
    pub(crate) async fn check_dead_letters(&self, letters: &DeadLetterSettings) -> Result<(), Error> {
        let subject = format!("{}.>", letters.prefix);
        let unsuitable = |reason: String| Error::StreamUnsuitable {
            stream: letters.stream.clone(),
            reason,
        };
        let pattern = self.strategy.pattern().as_str();
        if overlaps(&subject, pattern) {
            return Err(unsuitable(format!(
                "dead letters under {subject} would come back as messages of {pattern}; use another dead_letters.prefix"
            )));
        }
        match self.info_of(&letters.stream).await {
            Ok(info) if info.config.retention == RetentionPolicy::Interest => Err(unsuitable(
                "it has interest retention, so that a dead letter would be gone as soon as it is stored unless somebody \
                 consumes it; use another retention"
                    .to_owned(),
            )),
            Ok(info) if info.config.subjects.iter().any(|wider| covers(wider, &subject)) => Ok(()),
            Ok(info) => Err(Error::StreamDoesNotCover {
                stream: letters.stream.clone(),
                subject,
                found: info.config.subjects,
            }),
            Err(Error::StreamMissing { .. }) if letters.create_with_replicas.is_some() => {
                let taken = self.context.stream_by_subject(subject.as_str()).await;
                match taken {
                    Ok(other) => Err(unsuitable(format!(
                        "it would be created, but the stream {other} takes {subject} already; name that one as \
                         dead_letters.stream, or use another dead_letters.prefix"
                    ))),
                    Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Ok(()),
                    Err(error) => Err(no_answer(format!("asking who takes {subject}"), chain(&error))),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the stream for dead letters if it is not there and may be created.
    pub(crate) async fn provision_dead_letters(&self, letters: &DeadLetterSettings) -> Result<(), Error> {
        let (Some(num_replicas), Err(Error::StreamMissing { .. })) =
            (letters.create_with_replicas, self.info_of(&letters.stream).await)
        else {
            return Ok(());
        };
        self.create_stream(Config {
            name: letters.stream.clone(),
            description: Some(format!("dead letters of the jetring group {}", self.group)),
            subjects: vec![format!("{}.>", letters.prefix)],
            num_replicas,
            ..Config::default()
        })
        .await
    }

    /// Creates the stream if it is not there. One that is there is only checked.
    ///
    /// `template` says everything but name, subjects and transform.
    pub(crate) async fn provision_stream(&self, template: Config, start: StartFrom) -> Result<(), Error> {
        match self.stream_info().await {
            Ok(_) => return Ok(()),
            Err(Error::StreamMissing { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut subjects: Vec<String> = Vec::new();
        for partition in self.strategy.partitions().iter() {
            let subject = self.strategy.covered_subject(partition);
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        let transform = self.strategy.transform().map(|transform| ServerTransform {
            source: transform.source,
            destination: transform.destination,
        });
        let config = Config {
            name: self.stream.to_string(),
            subjects,
            subject_transform: transform,
            ..template
        };
        self.check_config(&config, start)?;
        self.check_room(&config, 0)?;
        self.create_stream(config).await
    }

    async fn create_stream(&self, config: Config) -> Result<(), Error> {
        let name = config.name.clone();
        let what = || format!("creating the stream {name}");
        match self.context.create_stream(config).await {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                CreateStreamErrorKind::TimedOut | CreateStreamErrorKind::JetStreamUnavailable => {
                    no_answer(what(), chain(&error))
                }
                _ => refused(what(), chain(&error)),
            }),
        }
    }
}

/// Whether every subject that `narrow` can match is matched by `wide`.
fn covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(wide), Some(token)) if wide == token => {}
            _ => return false,
        }
    }
}

/// Whether a subject exists that both filters match.
pub(super) fn overlaps(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == "*" || b == "*" || a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_subject_covers_a_narrower_one() {
        for (wide, narrow) in [
            (">", "a.*"),
            ("a.>", "a.*"),
            ("a.*", "a.*"),
            ("a.*", "a.b"),
            ("a.>", "a.*.>"),
            ("*.*", "a.*"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("a.b", "a.*"),
            ("a.*", "a.>"),
            ("a.*", "a.*.*"),
            ("a.*.*", "a.*"),
            ("a.>", "a"),
            ("b.*", "a.*"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn filters_overlap_when_a_subject_fits_both() {
        for (one, other) in [("a.*", "a.b"), ("a.>", "a.3.>"), ("*.b", "a.*"), (">", "x")] {
            assert!(overlaps(one, other) && overlaps(other, one), "{one} {other}");
        }
        for (one, other) in [("a.1.>", "a.2.>"), ("a.b", "a.c"), ("a.*", "a.b.c"), ("a.>", "a")] {
            assert!(!overlaps(one, other) && !overlaps(other, one), "{one} {other}");
        }
    }
}
