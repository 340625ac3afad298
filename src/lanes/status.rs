//! A snapshot for status pages and metrics.

use std::sync::Arc;

use super::Lanes;
use super::action::Parked;
use super::filter::Filter;
use super::lane::{Lane, State};
use super::marks::Mark;
use super::partition::{FilterId, FilterState, Phase, Tenure};
use super::room::Amount;
use crate::ids::{Epoch, FencingToken, Partition};

/// What a member's lanes hold and do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Handlers that run, of closed tenures too.
    pub running: usize,
    /// What is held in memory over all partitions.
    pub held: Amount,
    /// What was asked for and not yet delivered, over all partitions.
    pub outstanding: Amount,
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
    /// What is held in memory: queued, running or waiting.
    pub held: Amount,
    /// What was asked for and not yet delivered.
    pub outstanding: Amount,
    /// Messages of waiting keys that are kept as sequences only.
    pub spilled: usize,
    /// Why nothing more is pulled, if a key has brought that about.
    pub stalled: Option<Stalled>,
    /// Handlers that run in this tenure.
    pub running: usize,
    /// Keys with unfinished messages.
    pub keys: usize,
    /// Keys that wait for a retry.
    pub waiting: usize,
    /// Keys whose dead letter cannot be stored, or that were told to wait.
    pub parked: Vec<Parked>,
    /// The key with the most unfinished messages.
    pub deepest: Option<KeyDepth>,
    /// Every filter, ascending.
    pub filters: Vec<FilterStatus>,
}

/// A partition that pulls no more until a key gets on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// The bound that is reached.
    pub why: Stall,
    /// The key that must get on.
    pub key: Arc<str>,
}

/// The bounds at which a partition stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// `max_parked`: too many messages of waiting keys; named is the one that has the most.
    Parked,
    /// `max_ranges`: too much is finished above an unfinished message; named is its key.
    Ranges,
}

/// How many messages a key has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDepth {
    /// The key.
    pub key: Arc<str>,
    /// Unfinished messages, spilled ones included.
    pub depth: usize,
}

/// One filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterStatus {
    /// The filter.
    pub filter: Filter,
    /// Its consumer.
    pub epoch: Epoch,
    /// How many deliveries of that consumer were accepted. A consumer that says it delivered more, while nothing is under way, has
    /// lost one that no later delivery shows.
    pub delivered: u64,
    /// Whether a gap ended the epoch and the re-open is awaited.
    pub reopening: bool,
    /// Everything up to here is finished.
    pub floor: Mark,
    /// How many ranges are finished above the floor.
    pub ranges: usize,
    /// What is held in memory.
    pub held: Amount,
    /// What was asked for and not yet delivered.
    pub outstanding: Amount,
}

impl<M: Clone> Lanes<M> {
    /// A snapshot. It looks at every lane: for a period, not for every message.
    pub fn status(&self) -> Status {
        Status {
            running: self.runs.len(),
            held: self.load.held,
            outstanding: self.load.outstanding,
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
            held: tenure.load.held,
            outstanding: tenure.load.outstanding,
            spilled: tenure.spilled,
            stalled: self.stalled(tenure),
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
                .filter_map(|id| self.filters.get(*id))
                .map(filter_status)
                .collect(),
        })
    }

    /// Everything of the filter up to here is finished. `None` if it is not open.
    pub fn floor(&self, partition: Partition, filter: &Filter) -> Option<Mark> {
        let id = self.tenures.get(&partition)?.filters.get(filter)?;
        self.filters.get(*id).map(|filter| filter.floor.mark())
    }

    fn stalled(&self, tenure: &Tenure) -> Option<Stalled> {
        let filters = || tenure.filters.values().filter_map(|id| self.filters.get(*id));
        if let Some(filter) = filters().find(|filter| self.too_many_ranges(filter)) {
            let (_, first) = filter.entries.first_key_value()?;
            let key = self.lanes.get(first.lane)?.key.clone();
            return Some(Stalled {
                why: Stall::Ranges,
                key,
            });
        }
        let least = filters().map(|filter| self.share(filter).messages / 4).min()?.max(1);
        if tenure.spilled == 0 || self.room_to_park(tenure) >= least {
            return None;
        }
        let lanes = tenure.filters.values().flat_map(|&id| self.lanes_of(id));
        let key = lanes.max_by_key(|lane| lane.spilled())?.key.clone();
        Some(Stalled {
            why: Stall::Parked,
            key,
        })
    }

    fn lanes_of(&self, id: FilterId) -> impl Iterator<Item = &Lane> {
        let keys = self.filters.get(id).into_iter().flat_map(|filter| filter.keys.values());
        keys.filter_map(|lane| self.lanes.get(*lane))
    }

    pub(super) fn parked(&self, lane: &Lane) -> Option<Parked> {
        let burial = lane.parked()?;
        let filter = self.filters.get(lane.filter)?;
        Some(Parked {
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
        delivered: filter.expected - 1,
        reopening: filter.lost,
        floor: filter.floor.mark(),
        ranges: filter.floor.range_count(),
        held: filter.load.held,
        outstanding: filter.load.outstanding,
    }
}
