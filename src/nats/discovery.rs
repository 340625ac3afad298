//! Which filters have messages: fixed for most strategies, found from the stream's subjects for others.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;

use crate::engine::{Fault, StreamState, Survey};
use crate::ids::Partition;
use crate::lanes::Filter;

use super::bucket::chain;
use super::{Nats, unix_nanos};

/// By partition, the filters worth a consumer.
pub(crate) type Filters = BTreeMap<Partition, Vec<Filter>>;

/// How far a stream was when its subjects were listed: if neither has moved, there is nothing new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Horizon {
    last_sequence: u64,
    subjects: u64,
}

impl Nats {
    /// The group's consumers, and the filters worth one. The filters are listed last: a message that came in between is seen.
    pub(crate) async fn survey(&self) -> Result<Survey, Fault> {
        let consumers = self.list_consumers().await?;
        let filters = if self.strategy.needs_discovery() {
            self.list_filters().await?
        } else {
            self.fixed_filters()
        };
        let info = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let info = info.get_info().await.map_err(|error| Fault(chain(&error)))?;
        Ok(Survey {
            stream: StreamState {
                created: unix_nanos(info.created),
                last_sequence: info.state.last_sequence,
            },
            consumers,
            filters,
        })
    }

    fn fixed_filters(&self) -> Filters {
        self.strategy
            .partitions()
            .iter()
            .filter_map(|partition| {
                let filter = self.strategy.fixed_filter(partition)?;
                Some((partition, vec![Filter::new(filter)]))
            })
            .collect()
    }

    /// The filters of all keys that the stream has messages of.
    async fn list_filters(&self) -> Result<Filters, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let subjects = stream
            .info_with_subjects(self.strategy.pattern().as_str())
            .await
            .map_err(|error| Fault(chain(&error)))?;
        let subjects: Vec<String> = subjects
            .map_ok(|(subject, _)| subject)
            .try_collect()
            .await
            .map_err(|error| Fault(chain(&error)))?;
        let mut found: BTreeMap<Partition, BTreeSet<Filter>> = BTreeMap::new();
        for subject in subjects {
            let Some(resolved) = self.strategy.resolve(&subject) else {
                continue;
            };
            if let Some(filter) = self.strategy.filter_for_key(&resolved.key) {
                found.entry(resolved.partition).or_default().insert(Filter::new(filter));
            }
        }
        let sorted = |(partition, filters): (Partition, BTreeSet<Filter>)| (partition, filters.into_iter().collect());
        Ok(found.into_iter().map(sorted).collect())
    }

    /// Looks for filters that are new since `known`. `None` if the stream has not moved.
    pub(crate) async fn discover(&self, known: Horizon) -> Result<Option<(Horizon, Filters)>, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let state = stream.get_info().await.map_err(|error| Fault(chain(&error)))?.state;
        let horizon = Horizon {
            last_sequence: state.last_sequence,
            subjects: state.subjects_count,
        };
        if horizon == known {
            return Ok(None);
        }
        Ok(Some((horizon, self.list_filters().await?)))
    }
}
