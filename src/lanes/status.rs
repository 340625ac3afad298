//! A snapshot for status pages and metrics.

use std::sync::Arc;

use super::Lanes;
use super::action::Parked;
use super::filter::Filter;
use super::lane::{Lane, State};
use super::marks::Mark;
use super::partition::{FilterId, FilterState, Phase};
use crate::ids::{Epoch, FencingToken, Partition};

/// What a member's lanes hold and do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Handlers that run, of closed tenures too.
    pub running: usize,
    /// Messages held over all partitions.
    pub held: usize,
    /// Messages asked for and not yet delivered, over all partitions.
    pub outstanding: usize,
    /// Every open partition, ascending.
    pub partitions: Vec<PartitionStatus>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    /// The partition.
    pub partition: Partition,
    /// The tenure.
    pub token: FencingToken,
    /// How far the tenure is.
    pub phase: Phase,
    /// Messages held: queued, running or waiting.
    pub held: usize,
    /// Handlers that run in this tenure.
    pub running: usize,
    /// Keys with messages held.
    pub keys: usize,
    /// Keys that wait for a retry.
    pub waiting: usize,
    /// Keys whose dead letter cannot be stored.
    pub parked: Vec<Parked>,
    /// The key with the most messages held.
    pub deepest: Option<KeyDepth>,
    /// Every filter, ascending.
    pub filters: Vec<FilterStatus>,
}

/// How many messages a key has held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDepth {
    /// The key.
    pub key: Arc<str>,
    /// Messages held.
    pub depth: usize,
}

/// One filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterStatus {
    /// The filter.
    pub filter: Filter,
    /// Its consumer.
    pub epoch: Epoch,
    /// Whether a gap ended the epoch and the re-open is awaited.
    pub reopening: bool,
    /// Everything up to here is finished.
    pub floor: Mark,
    /// How many ranges are finished above the floor.
    pub ranges: usize,
    /// Messages held.
    pub held: usize,
    /// Messages asked for and not yet delivered.
    pub outstanding: usize,
}

impl<M: Clone> Lanes<M> {
    /// A snapshot. It looks at every lane: for a period, not for every message.
    pub fn status(&self) -> Status {
        Status {
            running: self.runs.len(),
            held: self.held,
            outstanding: self.outstanding,
            partitions: self
                .tenures
                .keys()
                .filter_map(|&partition| self.partition_status(partition))
                .collect(),
        }
    }

    /// A snapshot of one partition.
    pub fn partition_status(&self, partition: Partition) -> Option<PartitionStatus> {
        let tenure = self.tenures.get(&partition)?;
        let lanes = || tenure.filters.values().flat_map(|&id| self.lanes_of(id));
        Some(PartitionStatus {
            partition,
            token: tenure.token,
            phase: tenure.phase,
            held: tenure.held,
            running: tenure.running,
            keys: lanes().count(),
            waiting: lanes()
                .filter(|lane| matches!(lane.state, State::Waiting { .. }))
                .count(),
            parked: lanes().filter_map(|lane| self.parked(lane)).collect(),
            deepest: lanes().max_by_key(|lane| lane.len()).map(|lane| KeyDepth {
                key: lane.key.clone(),
                depth: lane.len(),
            }),
            filters: tenure
                .filters
                .values()
                .filter_map(|id| self.filters.get(id))
                .map(filter_status)
                .collect(),
        })
    }

    /// Everything of the filter up to this sequence is finished. `None` if it is not open.
    pub fn floor(&self, partition: Partition, filter: &Filter) -> Option<u64> {
        let id = self.tenures.get(&partition)?.filters.get(filter)?;
        self.filters.get(id).map(|filter| filter.floor.mark().sequence)
    }

    fn lanes_of(&self, id: FilterId) -> impl Iterator<Item = &Lane> {
        let keys = self
            .filters
            .get(&id)
            .into_iter()
            .flat_map(|filter| filter.keys.values());
        keys.filter_map(|lane| self.lanes.get(lane))
    }

    /// A key is parked from the first time that its dead letter could not be stored until it is.
    fn parked(&self, lane: &Lane) -> Option<Parked> {
        let (State::Parked { burial, .. } | State::Burying(burial)) = &lane.state else {
            return None;
        };
        let filter = self.filters.get(&lane.filter)?;
        (burial.failures > 0).then(|| Parked {
            partition: filter.partition,
            filter: filter.name.clone(),
            key: lane.key.clone(),
            stream_sequence: burial.sequence,
            error: burial.error.clone(),
            store_error: burial.store_error.clone(),
        })
    }
}

fn filter_status<M>(filter: &FilterState<M>) -> FilterStatus {
    FilterStatus {
        filter: filter.name.clone(),
        epoch: filter.epoch,
        reopening: filter.lost,
        floor: filter.floor.mark(),
        ranges: filter.floor.range_count(),
        held: filter.entries.len(),
        outstanding: filter.outstanding,
    }
}
