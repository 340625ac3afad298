//! The driver of the small world: it does what the lanes ask for.

use super::super::check::{Event, Place};
use super::{LARGE, World, places};
use crate::ids::Partition;
use crate::lanes::{Action, Attempt, Reopening, Run};

impl World {
    /// Does what the driver does, until no member asks for anything.
    pub(super) fn carry_out(&mut self) {
        loop {
            let mut quiet = true;
            for member in 0..2 {
                let actions: Vec<_> = self.members[member].lanes.actions().collect();
                for action in actions {
                    quiet = false;
                    *self.asked.entry(kind(&action)).or_default() += 1;
                    self.act(member, action);
                }
            }
            if quiet {
                return;
            }
        }
    }

    pub(super) fn act(&mut self, member: usize, action: Action<u64>) {
        match action {
            Action::Run(run) => {
                assert!((1..=self.settings.batch.max_messages.get()).contains(&run.attempts.len()));
                self.check_care(member, &run);
                let mut batch = Vec::new();
                for attempt in run.attempts {
                    assert_eq!(attempt.message, attempt.stream_sequence);
                    self.next_run += 1;
                    batch.push((self.next_run, attempt.stream_sequence));
                }
                self.check.event(Event::Started { batch: batch.clone() });
                self.members[member].runs.insert(run.run, batch);
            }
            Action::Ack { reply } | Action::Terminate { reply } => self.acked(&reply),
            Action::Pull {
                partition,
                filter,
                epoch,
                messages,
                bytes,
            } => {
                if let Some(consumer) = self
                    .consumers
                    .get_mut(&(partition, filter))
                    .filter(|c| c.epoch == epoch)
                {
                    consumer.bytes = match bytes {
                        Some(bytes) => Some(consumer.bytes.unwrap_or(0) + bytes),
                        None => None,
                    };
                    consumer.asked += messages;
                }
            }
            Action::Reopen {
                partition,
                filter,
                epoch,
                ..
            } => {
                if let Some(consumer) = self
                    .consumers
                    .get_mut(&(partition, filter))
                    .filter(|c| c.epoch == epoch)
                {
                    assert!(!consumer.over, "said once");
                    consumer.over = true;
                }
            }
            Action::DeadLetter(letter) => {
                self.members[member].letters.insert(letter.run, letter.stream_sequence);
            }
            Action::Drained { partition, marks, .. } => {
                assert!(self.stopping.remove(&partition));
                self.record(partition, marks);
                self.owners.remove(&partition);
                self.members[member].lanes.close(partition);
                self.take_over(partition, 1 - member, true, None);
            }
            Action::Ended { partition, .. } => {
                if self.members[member].lanes.running(partition) == 0
                    && self.moving.get(&partition).is_some_and(|&to| to != member)
                    && let Some(to) = self.moving.remove(&partition)
                {
                    self.take_over(partition, to, false, None);
                }
            }
            Action::Record { partition } => {
                self.unrecorded.insert(partition);
            }
            Action::Inspect {
                partition,
                filter,
                epoch,
            } => self.members[member].inspections.push_back(((partition, filter), epoch)),
            Action::Read { read, sequence, .. } => {
                self.members[member].reads.insert(read, sequence);
            }
            Action::InProgress { .. } | Action::Gone { .. } | Action::Cancel { .. } | Action::Parked(_) => {}
        }
    }

    /// What may end its process is in the record before it runs, and a suspect runs alone: no record says otherwise.
    fn check_care(&self, member: usize, run: &Run<u64>) {
        let sequences: Vec<u64> = run.attempts.iter().map(|attempt| attempt.stream_sequence).collect();
        let recorded = |attempt: &Attempt<u64>| {
            let record = self.records.get(&(run.partition, attempt.filter.clone()));
            record.is_some_and(|record| record.started.contains(&attempt.stream_sequence))
        };
        let careful = run
            .attempts
            .iter()
            .any(|attempt| self.needs_care(run.partition, attempt));
        assert!(
            !(careful || run.alone) || run.attempts.iter().all(recorded),
            "{sequences:?} are not recorded as a whole"
        );
        let suspected = run
            .attempts
            .iter()
            .any(|attempt| self.is_suspected(run.partition, attempt));
        assert!(!suspected || run.alone, "{sequences:?} share a run");
        let of_member = |place: &Place| self.owners.get(&place.0) == Some(&member) && !self.stopping.contains(&place.0);
        if run.alone {
            assert!(self.members[member].runs.is_empty());
            let others = self.records.iter().filter(|(other, _)| of_member(other));
            let started: Vec<u64> = others.flat_map(|(_, record)| record.started.iter().copied()).collect();
            assert_eq!((sequences.len(), started), (1, sequences));
            let places = self.records.iter().filter(|(other, _)| of_member(other));
            assert_eq!(places.filter(|(_, record)| record.alone).count(), 1);
        } else {
            let mut records = self.records.iter().filter(|(other, _)| of_member(other));
            assert!(
                records.all(|(_, record)| !record.alone),
                "a suspect runs, or its end is not recorded"
            );
        }
    }

    /// Whether a member that died may have begun with a message, or has died with it.
    fn needs_care(&self, partition: Partition, attempt: &Attempt<u64>) -> bool {
        let place = (partition, attempt.filter.clone());
        let careful = self.careful.get(&place);
        careful.is_some_and(|&until| attempt.stream_sequence <= until) || self.deaths(partition, attempt) > 0
    }

    fn is_suspected(&self, partition: Partition, attempt: &Attempt<u64>) -> bool {
        self.deaths(partition, attempt) > 1
    }

    fn deaths(&self, partition: Partition, attempt: &Attempt<u64>) -> usize {
        let record = self.records.get(&(partition, attempt.filter.clone()));
        let deaths = record.and_then(|record| record.deaths.get(&attempt.stream_sequence));
        deaths.map_or(0, Vec::len)
    }

    /// Tells the checker what can be seen at any moment.
    pub(super) fn look(&mut self) {
        for place in places() {
            let Some(&owner) = self.owners.get(&place.0) else {
                continue;
            };
            let marks = self.members[owner].lanes.progress(place.0)[&place.1].clone();
            self.check.event(Event::Progress { place, marks });
        }
        for member in &self.members {
            member.lanes.audit();
            let status = member.lanes.status();
            for partition in &status.partitions {
                self.check.event(Event::Room {
                    used: partition.held.messages + partition.outstanding.messages,
                    bound: self.settings.max_held.get(),
                });
                self.check.event(Event::Room {
                    used: partition.spilled,
                    bound: self.settings.max_parked.get() + self.settings.max_held.get(),
                });
                // A message larger than the room comes alone, and a spilled one is read when its turn has come: one of a filter, and
                // one of a key.
                self.check.event(Event::Room {
                    used: partition.held.bytes,
                    bound: self.settings.max_bytes.get() + LARGE * (partition.filters.len() + partition.keys),
                });
            }
            self.check.event(Event::Room {
                used: status.held.messages + status.outstanding.messages,
                bound: self.settings.max_held_total.get(),
            });
            assert!(status.running <= self.settings.concurrency.get());
        }
    }
}

fn kind(action: &Action<u64>) -> &'static str {
    match action {
        Action::Run(run) if run.alone => "run alone",
        Action::Run(run) if run.attempts.iter().any(|attempt| attempt.attempt > 1) => "run again",
        Action::Run(_) => "run",
        Action::Cancel { .. } => "cancel",
        Action::Ack { .. } => "ack",
        Action::Terminate { .. } => "terminate",
        Action::InProgress { .. } => "in progress",
        Action::Pull { bytes: None, .. } => "pull alone",
        Action::Pull { .. } => "pull",
        Action::Record { .. } => "record",
        Action::Inspect { .. } => "inspect",
        Action::Reopen { reason, .. } => match reason {
            Reopening::Gap(_) => "gap",
            Reopening::Swallowed { .. } => "swallowed",
            Reopening::Stuck { .. } => "stuck",
            Reopening::Leaderless => "leaderless",
            Reopening::LostAcks { .. } => "lost acks",
        },
        Action::DeadLetter(_) => "dead letter",
        Action::Parked(_) => "parked",
        Action::Read { .. } => "read",
        Action::Gone { .. } => "gone",
        Action::Drained { .. } => "drained",
        Action::Ended { .. } => "ended",
    }
}
