//! What is held and what is asked for, counted in messages and bytes: per filter, per partition and for the member.

use super::Lanes;
use super::partition::FilterId;

/// A number of messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Messages.
    pub messages: usize,
    /// Their size: subjects, headers and payloads.
    pub bytes: usize,
}

impl Amount {
    pub(super) const fn new(messages: usize, bytes: usize) -> Self {
        Self { messages, bytes }
    }

    /// One message of a size.
    pub(super) const fn one(bytes: usize) -> Self {
        Self::new(1, bytes)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self::new(
            self.messages.saturating_add(other.messages),
            self.bytes.saturating_add(other.bytes),
        )
    }

    /// Never below zero.
    pub(super) fn minus(self, other: Self) -> Self {
        Self::new(
            self.messages.saturating_sub(other.messages),
            self.bytes.saturating_sub(other.bytes),
        )
    }

    /// The lesser of both, of each.
    pub(super) fn min(self, other: Self) -> Self {
        Self::new(self.messages.min(other.messages), self.bytes.min(other.bytes))
    }

    /// One of `parts` equal shares, and at least one message and one byte.
    pub(super) fn share(self, parts: usize) -> Self {
        let parts = parts.max(1);
        Self::new((self.messages / parts).max(1), (self.bytes / parts).max(1))
    }

    /// Half, rounded up.
    pub(super) fn half(self) -> Self {
        Self::new(self.messages.div_ceil(2), self.bytes.div_ceil(2))
    }

    /// Whether it is at least `other`, in both.
    pub(super) fn covers(self, other: Self) -> bool {
        self.messages >= other.messages && self.bytes >= other.bytes
    }
}

/// What is held in memory, or on its way there, and what was asked of the server and not yet delivered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) held: Amount,
    pub(super) outstanding: Amount,
}

impl Load {
    pub(super) fn total(self) -> Amount {
        self.held.plus(self.outstanding)
    }
}

impl<M: Clone> Lanes<M> {
    /// Applies a change to the counts of a filter, its partition, and the member.
    pub(super) fn count(&mut self, id: FilterId, change: impl Fn(&mut Load)) {
        let Some(filter) = self.filters.get_mut(id) else {
            return;
        };
        change(&mut filter.load);
        change(&mut self.load);
        if let Some(tenure) = self.tenures.get_mut(&filter.partition) {
            change(&mut tenure.load);
        }
    }

    /// A message of that size comes into memory.
    pub(super) fn take_room(&mut self, id: FilterId, bytes: usize) {
        self.count(id, |load| load.held = load.held.plus(Amount::one(bytes)));
    }

    /// A message of that size leaves memory.
    pub(super) fn free_room(&mut self, id: FilterId, bytes: usize) {
        self.count(id, |load| load.held = load.held.minus(Amount::one(bytes)));
        self.wanting.insert(id);
    }

    /// So much was asked for.
    pub(super) fn expect(&mut self, id: FilterId, amount: Amount) {
        self.count(id, |load| load.outstanding = load.outstanding.plus(amount));
    }

    /// So much is no longer to be expected.
    pub(super) fn give_back(&mut self, id: FilterId, amount: Amount) {
        let Some(expected) = self.filters.get(id).map(|filter| filter.load.outstanding) else {
            return;
        };
        let mut amount = amount.min(expected);
        if amount.messages == expected.messages {
            // The last request is over, whatever it has left of its bytes.
            amount = expected;
        }
        self.count(id, |load| load.outstanding = load.outstanding.minus(amount));
        self.wanting.insert(id);
    }

    /// Nothing is to be expected any more.
    pub(super) fn give_back_all(&mut self, id: FilterId) {
        self.give_back(id, Amount::new(usize::MAX, usize::MAX));
    }
}
