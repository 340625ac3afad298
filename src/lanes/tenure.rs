//! Beginning and end of tenures: open, re-open, stop, cancel, close.

use std::collections::BTreeMap;

use super::Lanes;
use super::action::Action;
use super::filter::Filter;
use super::marks::Marks;
use super::partition::{FilterId, FilterState, Phase, Tenure};
use crate::ids::{Epoch, FencingToken, Partition};

impl<M: Clone> Lanes<M> {
    /// A consumer of a filter was opened, the first one of this tenure. `marks` come from the progress record, with the floor raised
    /// to the position the consumer was opened at.
    ///
    /// A higher token than the one open closes the older tenure; a lower one, and a partition that is stopping, change nothing. A
    /// filter that is open already is re-opened: its own marks are younger than any record. While handlers of an older tenure still
    /// run, messages are held and none is run.
    pub fn open(&mut self, partition: Partition, filter: Filter, epoch: Epoch, marks: Marks) {
        if let Some(tenure) = self.tenures.get(&partition) {
            if epoch.token < tenure.token {
                return;
            }
            if epoch.token > tenure.token {
                self.close(partition);
            } else if let Some(&id) = tenure.filters.get(&filter) {
                return self.reopen_filter(id, epoch);
            }
        }
        let tenure = self
            .tenures
            .entry(partition)
            .or_insert_with(|| Tenure::new(epoch.token));
        if tenure.phase != Phase::Serving {
            return;
        }
        let mut marks = marks;
        marks.normalize();
        let idle_pull = self.settings.idle_pull.get();
        let state = FilterState::new(partition, filter.clone(), epoch, marks, idle_pull);
        let id = self.filters.insert(state);
        tenure.filters.insert(filter, id);
        tenure.changes += 1;
        self.wanting.insert(id);
        self.start_watching();
    }

    /// The next consumer of a filter was opened in the same tenure, at the filter's floor or below. What is held, running and
    /// finished stays known. An epoch that is not above the current one changes nothing.
    pub fn reopen(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        let tenure = self
            .tenures
            .get(&partition)
            .filter(|tenure| tenure.token == epoch.token);
        if let Some(&id) = tenure.and_then(|tenure| tenure.filters.get(filter)) {
            self.reopen_filter(id, epoch);
        }
    }

    fn reopen_filter(&mut self, id: FilterId, epoch: Epoch) {
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        if epoch > filter.epoch {
            filter.reopen(epoch);
            self.give_back_all(id);
        }
    }

    /// The stream ends at `last`, below what the filter has finished: it is younger than the marks. What they say above is
    /// forgotten; re-open the filter afterwards.
    pub fn truncate(&mut self, partition: Partition, filter: &Filter, last: u64) {
        let id = self
            .tenures
            .get(&partition)
            .and_then(|tenure| tenure.filters.get(filter));
        if let Some(state) = id.and_then(|id| self.filters.get_mut(*id)) {
            state.floor.truncate(last);
            state.forget_from(last.saturating_add(1));
            self.changed(partition);
        }
    }

    /// Gives a partition up gracefully: nothing more is pulled or dispatched, what runs is left to end, and
    /// [`Action::Drained`] follows. Messages held and not run stay unfinished.
    pub fn stop(&mut self, partition: Partition) {
        let Some(tenure) = self.tenures.get_mut(&partition) else {
            return;
        };
        if tenure.phase == Phase::Serving {
            tenure.phase = Phase::Draining;
            tenure.line.clear();
            self.drop_withheld(partition);
            self.drained(partition);
        }
    }

    /// Cancels every handler that runs for the partition, once.
    pub fn cancel(&mut self, partition: Partition) {
        self.drop_withheld(partition);
        let runs = self
            .runs
            .iter_mut()
            .filter(|(_, run)| run.partition == partition && !run.cancelled);
        for (&run, running) in runs {
            running.cancelled = true;
            self.actions.push_back(Action::Cancel { run });
        }
    }

    /// Drops a partition at once, because ownership is lost or was given up: what runs is cancelled and can no longer finish
    /// anything. [`Action::Ended`] follows when its last handler has ended, and those of older tenures of the partition.
    pub fn close(&mut self, partition: Partition) {
        self.cancel(partition);
        let Some(tenure) = self.tenures.get(&partition) else {
            return;
        };
        let (token, running) = (tenure.token, tenure.running);
        self.drop_held(partition);
        self.tenures.remove(&partition);
        self.line.retain(|&other| other != partition);
        self.leftover.insert((partition, token), running);
        self.say_ended(partition);
        // Each of the others may hold more now.
        self.wanting.extend(self.filters.keys());
    }

    /// Closes every partition, as a member that is fenced must.
    pub fn close_all(&mut self) {
        let partitions: Vec<_> = self.tenures.keys().copied().collect();
        for partition in partitions {
            self.close(partition);
        }
    }

    /// Whether no partition is open and no handler runs.
    pub fn is_idle(&self) -> bool {
        self.tenures.is_empty() && self.runs.is_empty()
    }

    /// How many handlers run for a partition, those of older tenures included.
    pub fn running(&self, partition: Partition) -> usize {
        self.runs.values().filter(|run| run.partition == partition).count()
    }

    /// Says that a partition is drained, if it is.
    pub(super) fn drained(&mut self, partition: Partition) {
        let leftover = self.has_leftover(partition);
        let Some(tenure) = self.tenures.get_mut(&partition) else {
            return;
        };
        if tenure.phase != Phase::Draining || !tenure.is_quiet() || leftover {
            return;
        }
        tenure.phase = Phase::Drained;
        let token = tenure.token;
        let marks = self.progress(partition);
        self.actions.push_back(Action::Drained {
            partition,
            token,
            marks,
        });
        self.release_held(partition);
    }

    /// What the progress record is to hold, per filter.
    pub fn progress(&self, partition: Partition) -> BTreeMap<Filter, Marks> {
        let filters = self
            .tenures
            .get(&partition)
            .into_iter()
            .flat_map(|tenure| &tenure.filters);
        filters
            .filter_map(|(name, id)| Some((name.clone(), self.filters.get(*id)?.marks())))
            .collect()
    }

    /// A number that grows whenever [`progress`](Self::progress) changes: a checkpoint that stored the marks of this number need not
    /// be written again.
    pub fn changes(&self, partition: Partition) -> u64 {
        self.tenures.get(&partition).map_or(0, |tenure| tenure.changes)
    }

    /// A handler of a closed tenure has ended.
    pub(super) fn leftover_ended(&mut self, partition: Partition, token: FencingToken) {
        let Some(running) = self.leftover.get_mut(&(partition, token)) else {
            return;
        };
        *running -= 1;
        self.say_ended(partition);
        self.line_up_partition(partition);
        self.drained(partition);
    }

    /// Says which closed tenures have ended: a younger one not before an older one.
    fn say_ended(&mut self, partition: Partition) {
        while let Some((&(other, token), &0)) = self.leftover.range((partition, FencingToken(0))..).next()
            && other == partition
        {
            self.leftover.remove(&(partition, token));
            self.actions.push_back(Action::Ended { partition, token });
        }
    }

    /// Forgets the filters of a partition with all they hold.
    fn drop_held(&mut self, partition: Partition) {
        self.release_held(partition);
        let Some(tenure) = self.tenures.get(&partition) else {
            return;
        };
        let ids: Vec<_> = tenure.filters.values().copied().collect();
        for id in ids {
            self.filters.remove(id);
            self.wanting.remove(&id);
        }
    }

    /// Lets go of every message of a partition; marks stay.
    fn release_held(&mut self, partition: Partition) {
        let Some(tenure) = self.tenures.get_mut(&partition) else {
            return;
        };
        tenure.line.clear();
        tenure.gathering.clear();
        let ids: Vec<_> = tenure.filters.values().copied().collect();
        for id in ids {
            self.give_back_all(id);
            let Some(filter) = self.filters.get_mut(id) else {
                continue;
            };
            filter.spillable.clear();
            let entries = std::mem::take(&mut filter.entries);
            let keys = std::mem::take(&mut filter.keys);
            for (sequence, entry) in entries {
                self.let_go(id, sequence, &entry);
            }
            for lane in keys.into_values() {
                self.drop_lane(lane);
            }
        }
    }
}
