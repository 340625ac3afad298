//! What goes wrong, and how it is mended.

use jetring::names::ConsumerName;

use crate::course::Step;
use crate::member::Input;
use crate::stream::{Purge, Stored, Stream};
use crate::world::{Happening, World};
use crate::{MILLI, SECOND};

impl World {
    pub(crate) fn step(&mut self, step: Step) {
        let harmless = matches!(step, Step::Start(_) | Step::Reconnect(_) | Step::Publish(_));
        if self.calm && !harmless {
            return;
        }
        if !matches!(step, Step::Publish(_)) {
            self.tell(|| format!("STEP {step:?}"));
        }
        match step {
            Step::Publish(key) => self.publish(key),
            Step::Start(slot) => self.start(slot),
            Step::Crash { slot, down } => {
                self.end(slot);
                self.after(down * MILLI, Happening::Step(Step::Start(slot)));
            }
            Step::Freeze { slot, long } => {
                if self.freeze(slot) {
                    let life = self.slots[slot].life;
                    self.after(long * MILLI, Happening::Thaw(slot, life));
                }
            }
            Step::Cut { slot, up, down, long } => self.cut(slot, up, down, long * MILLI),
            Step::Reconnect(slot) => self.reconnect(slot),
            Step::Stall { slot, long } => self.slots[slot].stalled = self.now + long * MILLI,
            Step::Leave { slot, back } => {
                self.slots[slot].back = back;
                let life = self.slots[slot].life;
                self.input(slot, life, Input::Leave);
            }
            Step::RestartServer { away, forgets } => self.restart_server(away * MILLI, forgets),
            Step::ChangeLeader { stuck } => self.change_leader(stuck),
            Step::JumpDate(seconds) => self.server.date_off += seconds * SECOND as i64,
            Step::DeleteBucket => self.bucket.delete(),
            Step::DeleteConsumer { number, quietly } => {
                let names: Vec<_> = self.server.stream.consumers.keys().cloned().collect();
                if self.consumers_are_disposable() && !names.is_empty() {
                    self.delete_consumer(&names[number % names.len()], quietly);
                }
            }
            Step::Purge { of } => self.purge(of),
            Step::LoseTail { messages, away } => self.lose_tail(messages, away * MILLI),
            Step::RefuseDeadLetters(long) => self.server.refuses_dead_letters_until = self.now + long * MILLI,
            Step::ReplaceStream => self.replace_stream(),
        }
    }

    /// Freezes the process in a slot, if there is one that is not.
    pub(crate) fn freeze(&mut self, slot: usize) -> bool {
        let place = &mut self.slots[slot];
        place.member.is_some() && !std::mem::replace(&mut place.frozen, true)
    }

    pub(crate) fn thaw(&mut self, slot: usize, life: u64) {
        if self.slots[slot].life != life || !self.slots[slot].frozen {
            return;
        }
        self.excuse_the_frozen();
        self.slots[slot].frozen = false;
        self.tell(|| format!("m{slot} wakes"));
        for happening in std::mem::take(&mut self.slots[slot].backlog) {
            self.at(self.now, happening);
        }
    }

    /// Cuts the ways to and from the server, for so long.
    pub(crate) fn cut(&mut self, slot: usize, up: bool, down: bool, long: u64) {
        let until = self.now + long;
        if up {
            self.slots[slot].cut_up = until;
        }
        if down {
            self.slots[slot].cut_down = until;
        }
        self.at(until + MILLI, Happening::Step(Step::Reconnect(slot)));
    }

    /// The client of a member connects again: the watch starts anew, and what was pulled is lost.
    pub(crate) fn reconnect(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        (place.cut_up, place.cut_down) = (0, 0);
        place.last_delivery = 0;
        let life = place.life;
        for consumer in self.server.stream.consumers.values_mut() {
            consumer.pulls.retain(|pull| pull.to.1 != life);
        }
        self.input(slot, life, Input::Reconnected);
        self.show_all(slot);
    }

    fn restart_server(&mut self, away: u64, forgets: bool) {
        let names: Vec<ConsumerName> = self.server.stream.consumers.keys().cloned().collect();
        for name in names {
            if forgets && self.consumers_are_disposable() {
                self.delete_consumer(&name, true);
            } else if let Some(consumer) = self.server.stream.consumers.get_mut(&name) {
                consumer.pulls.clear();
            }
        }
        for slot in 0..self.slots.len() {
            let until = self.now + away;
            self.slots[slot].cut_up = until;
            self.slots[slot].cut_down = until;
            let later = until + self.random.between(1, 500) * MILLI;
            self.at(later, Happening::Step(Step::Reconnect(slot)));
        }
    }

    /// What a leader knows by itself: the pulls that wait, and what is lined up for redelivery, which is due at the next ack wait.
    fn change_leader(&mut self, stuck: Option<usize>) {
        let mut told = Vec::new();
        for (number, (name, consumer)) in self.server.stream.consumers.iter_mut().enumerate() {
            consumer.again.clear();
            consumer.stuck = stuck.is_some_and(|every| number % every == 0);
            for pull in std::mem::take(&mut consumer.pulls) {
                let of = (name.partition, consumer.filter.as_str().into(), name.epoch);
                told.push((pull.to, of));
            }
        }
        for ((slot, life), of) in told {
            // Some leaders go before they can say so.
            if self.random.percent(70) {
                self.send_back(slot, life, Input::Lost(of));
            }
        }
    }

    fn purge(&mut self, of: Option<u16>) {
        let before: Vec<u64> = self.server.stream.messages.values().map(|stored| stored.id).collect();
        let purge = Purge {
            subject: of.map(|partition| format!("t.{partition}.>")),
            ..Purge::default()
        };
        self.server.stream.purge(&purge);
        let left: Vec<u64> = self.server.stream.messages.values().map(|stored| stored.id).collect();
        let gone = before.into_iter().filter(|id| !left.contains(id));
        for id in gone {
            self.check.settle(id);
        }
    }

    /// The server comes back with an older end of the stream, and without the consumers that it held in memory.
    fn lose_tail(&mut self, messages: u64, away: u64) {
        if !self.consumers_are_disposable() {
            return;
        }
        let stream = &mut self.server.stream;
        let last = stream.last.saturating_sub(messages);
        let lost: Vec<Stored> = stream.messages.split_off(&(last + 1)).into_values().collect();
        stream.last = last;
        stream.first = stream.first.min(last + 1);
        self.check.restored = true;
        for stored in lost {
            self.check.settle(stored.id);
        }
        self.restart_server(away, true);
    }

    fn replace_stream(&mut self) {
        self.check.settle_all();
        self.check.restored = true;
        let names: Vec<ConsumerName> = self.server.stream.consumers.keys().cloned().collect();
        for name in names {
            self.delete_consumer(&name, false);
        }
        let old = &self.server.stream;
        let created = self.server.date(self.now);
        self.server.stream = Stream::new(old.retention, created, old.ack_wait, old.max_ack_pending);
    }

    pub(crate) fn calm_down(&mut self) {
        self.tell(|| "CALM".to_owned());
        self.calm = true;
        for slot in 0..self.slots.len() {
            let life = self.slots[slot].life;
            self.thaw(slot, life);
            let place = &mut self.slots[slot];
            let was_cut = place.cut_up.max(place.cut_down) > self.now;
            (place.cut_up, place.cut_down, place.stalled) = (0, 0, 0);
            if was_cut {
                self.reconnect(slot);
            }
        }
        for slot in self.course.in_the_end.clone() {
            self.after(SECOND, Happening::Step(Step::Start(slot)));
        }
    }
}
