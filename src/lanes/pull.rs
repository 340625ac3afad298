//! Room, and how much to pull.
//!
//! Each filter has a share of the room: of its partition's bound among the partition's filters, and of the member's bound among all
//! filters, whichever is less. It asks when a quarter of its share is free, so that requests are few and large, and takes no more
//! than half of what the member has free, so that a partition opened later finds some. Where the room is all taken, filters wait
//! for it in turn.

use super::Lanes;
use super::action::Action;
use super::filter::Filter;
use super::partition::{FilterId, Phase};
use crate::ids::{Epoch, Partition};

/// What became of a look for room.
enum Look {
    /// Nothing to ask for until something changes in the filter itself.
    Content,
    /// Others hold the room.
    Waits,
    /// Ask for so many.
    Ask(usize),
}

impl<M: Clone> Lanes<M> {
    /// A pull request has ended (expired, or refused) without having delivered so many of its messages.
    pub fn pull_ended(&mut self, partition: Partition, filter: &Filter, epoch: Epoch, undelivered: usize) {
        if let Some(id) = self.current(partition, filter, epoch) {
            self.give_back(id, undelivered);
        }
    }

    /// No pull request of the consumer is alive any more, for example after a reconnect.
    pub fn pulls_lost(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        if let Some(id) = self.current(partition, filter, epoch) {
            self.give_back_all(id);
        }
    }

    pub(super) fn give_back_all(&mut self, id: FilterId) {
        self.give_back(id, usize::MAX);
    }

    /// So many messages are no longer to be expected.
    pub(super) fn give_back(&mut self, id: FilterId, messages: usize) {
        let Some(filter) = self.filters.get_mut(&id) else {
            return;
        };
        let messages = messages.min(filter.outstanding);
        filter.outstanding -= messages;
        self.outstanding -= messages;
        if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
            tenure.outstanding -= messages;
        }
        self.wanting.insert(id);
    }

    /// Asks for messages wherever there is room.
    pub(super) fn pull(&mut self) {
        if self.wanting.is_empty() {
            return;
        }
        let after = FilterId(self.pulled_last.0 + 1);
        let turn: Vec<_> = self
            .wanting
            .range(after..)
            .chain(self.wanting.range(..after))
            .copied()
            .collect();
        for id in turn {
            match self.look(id) {
                Look::Content => {
                    self.wanting.remove(&id);
                }
                Look::Waits => {}
                Look::Ask(messages) => {
                    self.wanting.remove(&id);
                    self.pulled_last = id;
                    self.ask(id, messages);
                }
            }
        }
    }

    fn look(&self, id: FilterId) -> Look {
        let Some(filter) = self.filters.get(&id).filter(|filter| !filter.lost) else {
            return Look::Content;
        };
        let Some(tenure) = self
            .tenures
            .get(&filter.partition)
            .filter(|tenure| tenure.phase == Phase::Serving)
        else {
            return Look::Content;
        };
        let of_partition = self.settings.max_held.get();
        let of_member = self.settings.max_held_total.get();
        let share = (of_partition / tenure.filters.len())
            .min(of_member / self.filters.len())
            .max(1);
        let used = filter.entries.len() + filter.outstanding;
        let wanted = share.saturating_sub(used);
        // A filter that has nothing takes what it can get.
        let least = if used == 0 { 1 } else { (share / 4).max(1) };
        if wanted < least {
            return Look::Content;
        }
        let partition_room = of_partition.saturating_sub(tenure.held + tenure.outstanding);
        let partition_room = if self.settings.several_filters {
            partition_room.div_ceil(2)
        } else {
            partition_room
        };
        let member_room = of_member.saturating_sub(self.held + self.outstanding).div_ceil(2);
        let messages = wanted.min(partition_room).min(member_room);
        if messages < least {
            Look::Waits
        } else {
            Look::Ask(messages)
        }
    }

    fn ask(&mut self, id: FilterId, messages: usize) {
        let Some(filter) = self.filters.get_mut(&id) else {
            return;
        };
        filter.outstanding += messages;
        self.outstanding += messages;
        if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
            tenure.outstanding += messages;
        }
        self.actions.push_back(Action::Pull {
            partition: filter.partition,
            filter: filter.name.clone(),
            epoch: filter.epoch,
            messages,
        });
    }
}
