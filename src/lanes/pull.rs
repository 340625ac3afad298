//! How much to pull, and when.
//!
//! A filter asks for little while nothing comes, and for more with everything that does, up to its share: what is asked for is reserved,
//! and must not be kept from others for nothing.
//!
//! Each filter has a share of the room: of its partition's bounds among the partition's filters, and of the member's bounds among all
//! filters, whichever is less. It asks when a quarter of its share is free, so that requests are few and large, and takes no more
//! than half of what the member has free, so that a partition opened later finds some. Where the room is all taken, filters wait
//! for it in turn.
//!
//! A request also bounds the bytes. They stay reserved until the request is known to be over, so it asks for some times the average
//! size and not for all there is. A message larger than that ends the request at once; it is then asked for alone and without a
//! bound, or it would never come.

use std::ops::Bound;

use super::Lanes;
use super::action::{Action, PullEnd};
use super::filter::Filter;
use super::partition::{FilterId, FilterState, Phase, Tenure};
use super::room::Amount;
use crate::ids::{Epoch, Partition};

/// How many times the average size a request may use per message.
const SLACK: usize = 4;

/// The least that a request may use is the share divided by this: some room for a message above the average.
const LEAST: usize = 64;

/// What became of a look for room.
enum Look {
    /// Nothing to ask for until something changes in the filter itself.
    Content,
    /// Others hold the room.
    Waits,
    /// Ask for so many, and for so many bytes.
    Ask(usize, Option<usize>),
}

impl<M: Clone> Lanes<M> {
    /// A pull request has ended (expired, or refused) with so much left of it.
    pub fn pull_ended(&mut self, partition: Partition, filter: &Filter, epoch: Epoch, end: PullEnd) {
        let Some(id) = self.current(partition, filter, epoch) else {
            return;
        };
        if let Some(filter) = self.filters.get_mut(id) {
            if end.too_large {
                filter.next_above = filter.next_above.max(Some(end.bytes));
            } else if end.messages > 0 {
                // It expired: there was less to come than was asked for.
                filter.pace = self.settings.idle_pull.get();
            }
        }
        self.give_back(id, Amount::new(end.messages, end.bytes));
    }

    /// No pull request of the consumer is alive any more, for example after a reconnect.
    pub fn pulls_lost(&mut self, partition: Partition, filter: &Filter, epoch: Epoch) {
        if let Some(id) = self.current(partition, filter, epoch) {
            self.give_back_all(id);
        }
    }

    /// A message was delivered.
    pub(super) fn arrived(&mut self, id: FilterId, bytes: usize) {
        if let Some(filter) = self.filters.get_mut(id) {
            filter.next_above = None;
            // Doubles with every request that is delivered in full; the filter's share is the limit.
            filter.pace = filter.pace.saturating_add(1);
            // A moving average over some sixteen messages.
            filter.average_bytes = match filter.average_bytes {
                0 => bytes,
                average => (average * 15 + bytes).div_ceil(16),
            };
        }
        self.give_back(id, Amount::one(bytes));
    }

    /// Asks for messages wherever there is room.
    pub(super) fn pull(&mut self) {
        if self.wanting.is_empty() {
            return;
        }
        let turn: Vec<_> = self
            .wanting
            .range((Bound::Excluded(self.pulled_last), Bound::Unbounded))
            .chain(self.wanting.range(..=self.pulled_last))
            .copied()
            .collect();
        for id in turn {
            match self.look(id) {
                Look::Content => {
                    self.wanting.remove(&id);
                    self.note_starved(id);
                }
                Look::Waits => self.note_starved(id),
                Look::Ask(messages, bytes) => {
                    self.wanting.remove(&id);
                    self.pulled_last = id;
                    self.ask(id, messages, bytes);
                }
            }
        }
    }

    /// Nothing is asked for, so that nothing may be expected.
    fn note_starved(&mut self, id: FilterId) {
        if let Some(filter) = self.filters.get_mut(id) {
            filter.watched.starved |= filter.load.outstanding.messages == 0;
        }
    }

    fn look(&self, id: FilterId) -> Look {
        let Some(filter) = self.filters.get(id).filter(|filter| !filter.lost) else {
            return Look::Content;
        };
        let Some(tenure) = self
            .tenures
            .get(&filter.partition)
            .filter(|tenure| tenure.phase == Phase::Serving)
        else {
            return Look::Content;
        };
        let share = self.share(filter);
        let used = filter.load.total();
        // A filter that has nothing takes what it can get.
        let least = match used.messages {
            0 => Amount::new(1, 1),
            _ => Amount::new(share.messages.min(filter.pace).div_ceil(4), (share.bytes / 16).max(1)),
        };
        let pace = filter.pace.saturating_sub(filter.load.outstanding.messages);
        let wanted = share.minus(used).min(Amount::new(pace, usize::MAX));
        if !wanted.covers(least) || self.too_many_ranges(filter) {
            return Look::Content;
        }
        let room = wanted.min(self.shared_room(tenure));
        if room.covers(least) {
            self.request(filter, share, room)
        } else {
            Look::Waits
        }
    }

    /// A filter's part of the bounds.
    pub(super) fn share(&self, filter: &FilterState<M>) -> Amount {
        let filters = self
            .tenures
            .get(&filter.partition)
            .map_or(1, |tenure| tenure.filters.len());
        self.bound_of_partition()
            .share(filters)
            .min(self.bound_of_member().share(self.filters.len()))
    }

    /// What one filter of a partition may take of the room that it shares with others.
    fn shared_room(&self, tenure: &Tenure) -> Amount {
        let of_partition = self.bound_of_partition().minus(tenure.load.total());
        let of_partition = if self.settings.several_filters {
            of_partition.half()
        } else {
            of_partition
        };
        let of_member = self.bound_of_member().minus(self.load.total()).half();
        // Whatever is delivered may be for a key that waits.
        let to_park = Amount::new(self.room_to_park(tenure), usize::MAX);
        of_partition.min(of_member).min(to_park)
    }

    /// How many messages may still be asked for before too many are spilled.
    pub(super) fn room_to_park(&self, tenure: &Tenure) -> usize {
        let parked = tenure.spilled + tenure.load.outstanding.messages;
        self.settings.max_parked.get().saturating_sub(parked)
    }

    /// Whether the progress record must not grow any more. Loaded ranges ahead do not count before the consumer has reached them: it
    /// must deliver what lies between them, or they would stay for ever.
    pub(super) fn too_many_ranges(&self, filter: &FilterState<M>) -> bool {
        filter.floor.range_count() >= self.settings.max_ranges.get() && filter.floor.has_passed_all()
    }

    fn request(&self, filter: &FilterState<M>, share: Amount, room: Amount) -> Look {
        let usual = filter
            .average_bytes
            .saturating_mul(room.messages)
            .saturating_mul(SLACK)
            .max(share.bytes / LEAST)
            .max(1);
        let Some(above) = filter.next_above else {
            return Look::Ask(room.messages, Some(usual.min(room.bytes)));
        };
        let bytes = usual.max(above.saturating_mul(2)).min(room.bytes);
        if bytes > above {
            Look::Ask(room.messages, Some(bytes))
        } else if filter.load.outstanding.messages == 0 {
            Look::Ask(1, None)
        } else {
            Look::Content
        }
    }

    fn ask(&mut self, id: FilterId, messages: usize, bytes: Option<usize>) {
        self.expect(id, Amount::new(messages, bytes.unwrap_or(0)));
        if let Some(filter) = self.filters.get(id) {
            self.actions.push_back(Action::Pull {
                partition: filter.partition,
                filter: filter.name.clone(),
                epoch: filter.epoch,
                messages,
                bytes,
            });
        }
    }

    pub(super) fn bound_of_partition(&self) -> Amount {
        Amount::new(self.settings.max_held.get(), self.settings.max_bytes.get())
    }

    pub(super) fn bound_of_member(&self) -> Amount {
        Amount::new(self.settings.max_held_total.get(), self.settings.max_bytes_total.get())
    }
}
