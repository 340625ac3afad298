//! Saving what is finished: checkpoints, records that a run waits for, and the final progress of a handover.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, Revision};
use crate::lanes::Filter;
use crate::lanes::Marks;
use crate::records::{Entry, ProgressRecord};

use super::command::Command;
use super::context::{Context, PartitionAsk};
use super::event::{Fault, WriteFault};
use super::partition::PartitionSlot;
use super::tenure::Step;

impl PartitionSlot {
    pub(super) fn write_progress(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let (record, revision, changes) = (tenure.record(), tenure.progress_revision, tenure.changes);
        self.ask(cx, PartitionAsk::Save(record.clone(), changes), |ticket| {
            Command::WriteProgress(ticket, partition, record, revision)
        });
    }

    /// What the lanes have finished is saved, so that a crash repeats little; and what they are about to start, where they wait for it.
    pub(super) fn on_checkpoint(
        &mut self,
        cx: &mut Context,
        marks: BTreeMap<Filter, Marks>,
        changes: u64,
        urgent: bool,
    ) {
        let Some(tenure) = self.tenure() else { return };
        if tenure.step != Step::Serving {
            return;
        }
        tenure.marks.extend(marks);
        tenure.changes = changes;
        if urgent {
            tenure.urgent = changes;
        }
        self.checkpoint(cx);
    }

    /// Writes the marks, unless the record is known to hold them or a write is under way.
    pub(super) fn checkpoint(&mut self, cx: &mut Context) {
        let Some(tenure) = self.tenure() else { return };
        if tenure.checkpoint_in_flight {
            return;
        }
        if tenure.saved.as_ref() == Some(&tenure.marks) {
            let changes = tenure.changes;
            self.tell_recorded(cx, changes);
        } else {
            tenure.checkpoint_in_flight = true;
            self.write_progress(cx);
        }
    }

    /// Writes the marks if the lanes still wait for that.
    pub(super) fn save_urgent(&mut self, cx: &mut Context) {
        let Some(tenure) = self.tenure() else { return };
        if tenure.urgent > tenure.recorded {
            self.checkpoint(cx);
        }
    }

    pub(super) fn tell_recorded(&mut self, cx: &mut Context, changes: u64) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        if changes > tenure.recorded {
            tenure.recorded = changes;
            cx.tell(Command::Recorded(partition, tenure.token, changes));
        }
    }

    /// A process that was counted as dead is alive in this incarnation.
    pub(super) fn absolve(&mut self, cx: &mut Context, incarnation: &Incarnation) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let mut any = false;
        for marks in tenure.marks.values_mut() {
            any |= marks.absolve(|death| incarnation.outlives(death));
        }
        if any && tenure.open {
            cx.tell(Command::Absolve(partition, incarnation.clone()));
        }
    }

    /// A checkpoint or the final progress was written, or was not.
    pub(super) fn on_progress_written(
        &mut self,
        cx: &mut Context,
        written: ProgressRecord,
        changes: u64,
        result: Result<Revision, WriteFault>,
    ) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        match result {
            Ok(revision) => {
                tenure.checkpoint_in_flight = false;
                tenure.progress_revision = revision;
                tenure.saved = Some(written.filters);
                if tenure.step == Step::Saving {
                    return self.release(cx);
                }
                self.tell_recorded(cx, changes);
                self.save_urgent(cx);
            }
            Err(WriteFault::Conflict) => self.ask(cx, PartitionAsk::ReadForSave, |ticket| {
                Command::ReadProgress(ticket, partition)
            }),
            Err(WriteFault::Unknown(reason)) => {
                // The next write finds out: it will conflict if this one has landed.
                tenure.saved = None;
                tenure.checkpoint_in_flight = false;
                if tenure.step == Step::Saving || tenure.urgent > tenure.recorded {
                    self.trouble(cx, format!("saving the progress: {reason}"));
                }
            }
        }
    }

    /// The progress was read again because writing it failed. Own token: an own write has landed, go on from there. Lower:
    /// an older tenure's last write, of which this tenure's marks are no less. Higher: the claim is lost.
    pub(super) fn on_read_for_save(&mut self, cx: &mut Context, result: Result<Entry<ProgressRecord>, Fault>) {
        let Some(tenure) = self.tenure() else { return };
        let entry = match result {
            Ok(entry) => entry,
            Err(fault) => {
                tenure.checkpoint_in_flight = false;
                return self.trouble(cx, format!("reading the progress: {fault}"));
            }
        };
        if entry.value.as_ref().is_some_and(|record| record.token > tenure.token) {
            return self.lose(cx);
        }
        let unchanged = entry.revision == tenure.progress_revision;
        tenure.progress_revision = entry.revision;
        match tenure.step {
            // Refused and shown by the same leader: not to be tried again at once.
            Step::Saving if unchanged => {
                self.trouble(
                    cx,
                    "saving the progress: refused, although nobody has changed it".to_owned(),
                );
            }
            Step::Saving => self.write_progress(cx),
            _ => {
                tenure.checkpoint_in_flight = false;
                tenure.saved = None;
                if unchanged && tenure.urgent > tenure.recorded {
                    let at = cx.retry_at();
                    tenure.retry_at = Some(at);
                } else {
                    self.save_urgent(cx);
                }
            }
        }
    }
}
