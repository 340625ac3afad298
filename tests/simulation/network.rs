//! The way to the server and back: late, lost, cut off, and in another order.

use jetring::engine::Seen;

use crate::MILLI;
use crate::bucket::covers;
use crate::member::Input;
use crate::world::{Happening, Request, World};

impl World {
    /// Sends something to the server: it may be late, it may be lost, it may arrive long after it was given up.
    pub(crate) fn send(&mut self, slot: usize, life: u64, request: Request) {
        let cut = self.slots[slot].cut_up;
        if let Some(at) = self.travel(cut) {
            self.at(at, Happening::At(slot, life, request));
        }
    }

    /// Sends something to a process.
    pub(crate) fn send_back(&mut self, slot: usize, life: u64, input: Input) {
        let cut = self.slots[slot].cut_down;
        if let Some(mut at) = self.travel(cut) {
            if matches!(input, Input::Delivered(..) | Input::Undelivered(..)) {
                // One connection keeps its order.
                at = at.max(self.slots[slot].last_delivery + 1);
                self.slots[slot].last_delivery = at;
            }
            self.at(at, Happening::Input(slot, life, input));
        }
    }

    /// When something sent now arrives on a link that is cut until `cut`.
    fn travel(&mut self, cut: u64) -> Option<u64> {
        let usual = self.random.between(200_000, 3 * MILLI);
        if self.now < cut {
            // Half of it waits in a buffer and arrives when the link is back.
            return self.random.percent(50).then_some(cut + usual);
        }
        if self.calm || !self.course.noise {
            return Some(self.now + usual);
        }
        Some(match self.random.between(0, 1_000) {
            0..5 => return None,
            5..25 => self.now + self.random.between(50, 1_500) * MILLI,
            25..30 => self.now + self.random.between(1_500, 6_000) * MILLI,
            _ => self.now + usual,
        })
    }

    /// Shows every watch what has changed in the bucket.
    pub(crate) fn show_changes(&mut self) {
        for seen in self.bucket.changes() {
            for (slot, life, number, scope) in self.watchers.clone() {
                if covers(&scope, &seen) {
                    self.show(slot, life, number, seen.clone());
                }
            }
        }
    }

    /// A watch that begins, or begins again, shows what there is.
    pub(crate) fn show_all(&mut self, slot: usize) {
        let watcher = self.watchers.iter().find(|(other, ..)| *other == slot).cloned();
        let Some((slot, life, number, scope)) = watcher else {
            return;
        };
        for seen in self.bucket.snapshot(&scope) {
            self.show(slot, life, number, seen);
        }
    }

    fn show(&mut self, slot: usize, life: u64, watch: u64, seen: Seen) {
        if self.now >= self.slots[slot].stalled {
            self.send_back(slot, life, Input::Seen(watch, seen));
        }
    }
}
