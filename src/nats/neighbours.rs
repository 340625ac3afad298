//! Whether the group's consumers find a place on the stream beside those that are there already.

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use futures_util::StreamExt;

use crate::engine::Fault;
use crate::error::Error;
use crate::names::ConsumerName;

use super::consumers::BUCKET;
use super::streams::overlaps;
use super::{Nats, no_answer};

/// How many handovers at once must have room for two consumers each. More wait for it, so this only keeps them quick.
const SPARE: usize = 16;

/// How many of the group's own consumers are looked at, and how many consumers at a time.
const SAMPLE: usize = 16;

/// The first nats-server that limits the consumers of a stream which sets no limit.
const FIRST_WITH_LIMIT: (u32, u32) = (2, 15);

impl Nats {
    /// Looks at the consumers of the stream. One that nobody answers for is passed over: its server may be away for long, and while it
    /// is members have to be able to join.
    pub(super) async fn check_consumers(&self, config: &Config) -> Result<(), Error> {
        let what = || format!("listing the consumers of the stream {}", self.stream);
        let names = self.consumer_names().await.map_err(|fault| no_answer(what(), fault))?;
        let (mut asked, others): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| self.is_ours(name));
        // They all name the same bucket: whoever came with another one was refused.
        asked.truncate(SAMPLE);
        let room = self.check_room(config, others.len());
        if config.retention == RetentionPolicy::WorkQueue {
            asked.extend(others);
        }
        let answers: Vec<_> = asked.into_iter().map(|name| self.clone().ask_about(name)).collect();
        let mut answers = futures_util::stream::iter(answers).buffer_unordered(SAMPLE);
        while let Some((name, answer)) = answers.next().await {
            match answer {
                Ok(Some(info)) if self.is_ours(&name) => self.check_same_bucket(&info)?,
                Ok(Some(info)) => self.check_overlap(&info)?,
                Ok(None) => {}
                Err(fault) => {
                    tracing::warn!(%fault, name, "a consumer of the stream is passed over: nobody answers for it")
                }
            }
        }
        room
    }

    fn is_ours(&self, consumer: &str) -> bool {
        ConsumerName::parse(consumer).is_some_and(|name| name.group == self.group)
    }

    async fn ask_about(self, consumer: String) -> (String, Result<Option<Info>, Fault>) {
        let answer = self.any_consumer_info(&consumer).await;
        (consumer, answer)
    }

    /// Members of one group that use different buckets know nothing of each other: each would have all partitions. The bucket cannot
    /// tell, but the consumers can.
    fn check_same_bucket(&self, info: &Info) -> Result<(), Error> {
        match info.config.metadata.get(BUCKET) {
            Some(found) if *found != self.bucket => Err(Error::ConfigMismatch {
                group: self.group.clone(),
                field: "bucket",
                wanted: self.bucket.clone(),
                found: found.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// On a work-queue stream a filter belongs to one consumer: who has ours?
    fn check_overlap(&self, info: &Info) -> Result<(), Error> {
        let mut filters = info.config.filter_subjects.clone();
        filters.push(info.config.filter_subject.clone());
        filters.retain(|filter| !filter.is_empty());
        if filters.is_empty() {
            filters.push(">".to_owned());
        }
        let Some(taken) = filters.iter().find(|filter| self.wants_any_of(filter)) else {
            return Ok(());
        };
        Err(self.unsuitable(format!(
            "it has work-queue retention, where a subject belongs to one consumer, and the consumer {} has {taken} already; use \
             another stream, or limits or interest retention, for a second group",
            info.name
        )))
    }

    fn wants_any_of(&self, filter: &str) -> bool {
        if self.strategy.needs_discovery() {
            return overlaps(filter, self.strategy.pattern().as_str());
        }
        let mut filters = self
            .strategy
            .partitions()
            .iter()
            .filter_map(|p| self.strategy.fixed_filter(p));
        filters.any(|own| overlaps(filter, &own))
    }

    /// Whether the stream allows as many consumers as the group needs beside `others`. How many keys there will be nobody knows.
    pub(super) fn check_room(&self, config: &Config, others: usize) -> Result<(), Error> {
        if self.strategy.needs_discovery() {
            return Ok(());
        }
        let set = usize::try_from(config.max_consumers).ok().filter(|limit| *limit > 0);
        let Some(limit) = set.or_else(|| self.limit_of_server()) else {
            return Ok(());
        };
        let partitions = usize::from(self.strategy.partitions().get());
        // But on a work queue a partition's next consumer is made before its last one is deleted.
        let needed = match config.retention {
            RetentionPolicy::WorkQueue => partitions,
            RetentionPolicy::Limits | RetentionPolicy::Interest => partitions + partitions.min(SPARE),
        };
        if others + needed <= limit {
            return Ok(());
        }
        let what = match set {
            Some(_) => format!("it allows {limit} consumers"),
            None => format!("this server allows {limit} consumers of a stream that does not set max_consumers"),
        };
        Err(self.unsuitable(format!(
            "{what}, others have {others}, and this group of {partitions} partitions needs {needed}, for at a handover both owners \
             have one; raise the stream's max_consumers or use fewer partitions"
        )))
    }

    /// How many consumers the server allows where the stream says nothing, as far as that is known of its version.
    fn limit_of_server(&self) -> Option<usize> {
        let version = self.context.client().server_info().version;
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let version = (numbers.next()?, numbers.next()?);
        (version >= FIRST_WITH_LIMIT).then_some(1000)
    }
}
