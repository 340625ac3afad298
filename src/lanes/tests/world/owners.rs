//! Who owns which partition in the small world: checkpoints, handovers, lost ownership, crashes.

use std::collections::BTreeMap;

use super::super::check::Event;
use super::{World, member, places};
use crate::ids::{Epoch, FencingToken, Incarnation, Partition};
use crate::lanes::{Filter, Marks};

impl World {
    pub(super) fn checkpoint(&mut self, partition: Partition) {
        if let Some(&owner) = self.owners.get(&partition) {
            let lanes = &mut self.members[owner].lanes;
            let (progress, changes) = (lanes.progress(partition), lanes.changes(partition));
            lanes.recorded(partition, FencingToken(self.tokens[&partition]), changes);
            self.record(partition, progress);
        }
        self.unrecorded.remove(&partition);
    }

    pub(super) fn record(&mut self, partition: Partition, progress: BTreeMap<Filter, Marks>) {
        self.records
            .extend(progress.into_iter().map(|(filter, marks)| ((partition, filter), marks)));
    }

    pub(super) fn stop(&mut self, partition: Partition) {
        if let Some(&owner) = self.owners.get(&partition) {
            self.stopping.insert(partition);
            self.members[owner].lanes.stop(partition);
        }
    }

    pub(super) fn fence(&mut self, partition: Partition, to: usize) {
        let Some(owner) = self.owners.remove(&partition) else {
            return;
        };
        self.stopping.remove(&partition);
        self.forget_letters(owner, partition);
        self.members[owner].lanes.close(partition);
        if to == owner {
            self.take_over(partition, to, false, None);
        } else {
            self.moving.insert(partition, to);
        }
    }

    /// Dead letters under way when the tenure ended are stored or not, but nobody is told.
    pub(super) fn forget_letters(&mut self, member: usize, partition: Partition) {
        let places = &self.places;
        let letters = &mut self.members[member].letters;
        letters.retain(|_, sequence| places.get(sequence).is_none_or(|place| place.0 != partition));
    }

    pub(super) fn crash(&mut self, dead: usize) {
        let fresh = member(&self.settings, 3);
        let old = std::mem::replace(&mut self.members[dead], fresh);
        for (run, _) in old.runs.into_values().flatten() {
            self.check.event(Event::Vanished { run });
        }
        let orphans: Vec<_> = self
            .owners
            .iter()
            .filter(|(_, owner)| **owner == dead)
            .map(|(&p, _)| p)
            .collect();
        let waiting: Vec<_> = self
            .moving
            .iter()
            .filter(|(_, to)| **to != dead)
            .map(|(&p, &to)| (p, to))
            .collect();
        self.crashes += 1;
        let life = Incarnation::new(&format!("{}", self.crashes), 1);
        for partition in orphans {
            self.stopping.remove(&partition);
            self.take_over(partition, 1 - dead, false, Some(&life));
        }
        // Those who waited for its handlers to end wait no longer.
        for (partition, to) in waiting {
            self.moving.remove(&partition);
            self.take_over(partition, to, false, None);
        }
    }

    /// `died`: whose death made it change hands.
    pub(super) fn take_over(&mut self, partition: Partition, to: usize, graceful: bool, died: Option<&Incarnation>) {
        let token = self.tokens.entry(partition).or_insert(0);
        *token += 1;
        let epoch = Epoch {
            token: FencingToken(*token),
            reopen: 0,
        };
        self.owners.insert(partition, to);
        for place in places().into_iter().filter(|place| place.0 == partition) {
            let record = self.records.entry(place.clone()).or_default();
            let careful_until = match died {
                Some(life) => {
                    record.blame(life);
                    self.last
                }
                None => {
                    record.forget_started();
                    0
                }
            };
            let record = record.clone();
            self.careful.insert(place.clone(), careful_until);
            self.check.event(Event::Takeover {
                place: place.clone(),
                record: record.clone(),
                graceful,
            });
            self.create(&place, epoch, record.floor.sequence);
            let lanes = &mut self.members[to].lanes;
            lanes.open(partition, place.1.clone(), epoch, record);
            lanes.be_careful(partition, &place.1, careful_until);
        }
    }
}
