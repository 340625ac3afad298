//! A simulated consumer: explicit acks, one filter, redelivery after the ack wait. Its numbers move as the server's do.

use std::collections::{BTreeMap, VecDeque};

/// A pull request that waits at the server.
#[derive(Debug, Clone)]
pub(crate) struct Pull {
    pub(crate) id: u64,
    /// The slot and its life that wait for an answer.
    pub(crate) to: (usize, u64),
    pub(crate) left: usize,
}

/// A delivery that is not acked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    /// The consumer sequence of its first delivery.
    pub(crate) first: u64,
    /// When it was last delivered or kept.
    pub(crate) since: u64,
}

/// How far a consumer is, in the words of the server's info.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info {
    /// Consumer and stream sequence of the last delivery.
    pub(crate) delivered: (u64, u64),
    /// Consumer and stream sequence up to which everything is acked.
    pub(crate) ack_floor: (u64, u64),
    pub(crate) pending: usize,
    pub(crate) ack_pending: usize,
    pub(crate) redelivered: usize,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) filter: String,
    /// The start sequence it was made with; `None`: what is left.
    pub(crate) start: Option<u64>,
    /// Where the next look for a message begins.
    pub(crate) next: u64,
    /// How many deliveries there were.
    pub(crate) deliveries: u64,
    /// The highest stream sequence delivered.
    pub(crate) delivered: u64,
    ack_floor: (u64, u64),
    /// The date of the last ack; 0: there was none.
    pub(crate) acked_at: u64,
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// How often again.
    redelivered: BTreeMap<u64, u64>,
    /// To be delivered again, in this order.
    pub(crate) again: VecDeque<u64>,
    pub(crate) pulls: VecDeque<Pull>,
    /// A fault: it delivers nothing any more.
    pub(crate) stuck: bool,
    /// How many unacked messages it may have out.
    pub(crate) max_ack_pending: usize,
}

impl Consumer {
    /// One that begins to look at `next`.
    pub(crate) fn new(filter: &str, start: Option<u64>, next: u64, max_ack_pending: usize) -> Self {
        Self {
            filter: filter.to_owned(),
            start,
            next,
            deliveries: 0,
            delivered: next - 1,
            ack_floor: (0, next - 1),
            acked_at: 0,
            pending: BTreeMap::new(),
            redelivered: BTreeMap::new(),
            again: VecDeque::new(),
            pulls: VecDeque::new(),
            stuck: false,
            max_ack_pending,
        }
    }

    /// Without the number of messages still to come, which the stream knows.
    pub(crate) fn info(&self, pending: usize) -> Info {
        // As long as there is nothing to tell, the server tells how far it has looked.
        let delivered = if self.deliveries == 0 && self.delivered == 0 {
            self.next - 1
        } else {
            self.delivered
        };
        Info {
            delivered: (self.deliveries, delivered),
            ack_floor: self.ack_floor,
            pending,
            ack_pending: self.pending.len(),
            redelivered: self.redelivered.len(),
        }
    }

    pub(crate) fn ack_floor(&self) -> u64 {
        self.ack_floor.1
    }

    /// Whether a message of its filter must stay for it, on a stream that forgets what is acked.
    pub(crate) fn needs(&self, sequence: u64) -> bool {
        let unacked = sequence >= self.next || self.pending.contains_key(&sequence);
        sequence > self.ack_floor.1 && unacked || self.redelivered.contains_key(&sequence)
    }

    /// Notes a delivery, and gives its consumer sequence.
    pub(crate) fn deliver(&mut self, sequence: u64, now: u64) -> u64 {
        self.deliveries += 1;
        let first = self.deliveries;
        let pending = self.pending.entry(sequence).or_insert(Pending { first, since: now });
        pending.since = now;
        self.delivered = self.delivered.max(sequence);
        self.deliveries
    }

    /// Notes that a delivery is one more of the same message.
    pub(crate) fn count_again(&mut self, sequence: u64) {
        *self.redelivered.entry(sequence).or_default() += 1;
    }

    /// How often a message was delivered, this time included.
    pub(crate) fn count(&self, sequence: u64) -> u64 {
        1 + self.redelivered.get(&sequence).copied().unwrap_or(0)
    }

    /// Whether it awaited the ack.
    pub(crate) fn ack(&mut self, sequence: u64) -> bool {
        if sequence >= self.next {
            return false;
        }
        self.again.retain(|other| *other != sequence);
        self.redelivered.remove(&sequence);
        let Some(acked) = self.pending.remove(&sequence) else {
            return false;
        };
        match self.pending.first_key_value() {
            None => self.ack_floor = (self.deliveries, self.delivered),
            Some((&next, pending)) if acked.first == self.ack_floor.0 + 1 => {
                self.ack_floor = (pending.first - 1, next - 1);
            }
            Some(_) => {}
        }
        true
    }

    pub(crate) fn nak(&mut self, sequence: u64) {
        if self.pending.contains_key(&sequence) && !self.again.contains(&sequence) {
            self.again.push_back(sequence);
        }
    }

    /// An in-progress ack.
    pub(crate) fn keep(&mut self, sequence: u64, now: u64) {
        if let Some(pending) = self.pending.get_mut(&sequence) {
            pending.since = now;
        }
    }

    /// Lines up what was not acked in time. Its time begins anew with that.
    pub(crate) fn expire(&mut self, now: u64, ack_wait: u64) {
        let due = |(sequence, pending): (&u64, &Pending)| {
            (now >= pending.since + ack_wait && !self.again.contains(sequence)).then_some((pending.since, *sequence))
        };
        let mut due: Vec<(u64, u64)> = self.pending.iter().filter_map(due).collect();
        due.sort_unstable();
        for (_, sequence) in due {
            self.again.push_back(sequence);
            self.keep(sequence, now);
        }
    }

    /// When the next unacked message is due again.
    pub(crate) fn expires_at(&self, ack_wait: u64) -> Option<u64> {
        let waiting = self
            .pending
            .iter()
            .filter(|(sequence, _)| !self.again.contains(sequence));
        waiting.map(|(_, pending)| pending.since + ack_wait).min()
    }

    /// The stream was purged: what it has of this filter begins at `first`.
    pub(crate) fn purged(&mut self, first: u64) {
        self.next = self.next.max(first);
        if self.ack_floor.1 < first {
            let gone: Vec<(u64, u64)> = self
                .pending
                .range(..first)
                .map(|(&sequence, pending)| (sequence, pending.first))
                .collect();
            for (sequence, delivery) in gone {
                self.ack(sequence);
                self.ack_floor.0 = self.ack_floor.0.max(delivery);
            }
            self.ack_floor.1 = self.ack_floor.1.max(first - 1);
        }
        if self.pending.is_empty() {
            self.redelivered.clear();
            self.ack_floor = (self.deliveries, self.next - 1);
        }
        let next = self.next;
        self.again.retain(|sequence| *sequence >= next);
        self.delivered = self.next - 1;
    }
}
