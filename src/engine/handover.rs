//! Handing a partition over: step 5 of a [`tenure`](super::tenure).

use std::collections::BTreeMap;

use crate::ids::Revision;
use crate::lanes::Filter;
use crate::lanes::Marks;
use crate::records::{ClaimRecord, ClaimState, Entry};

use super::command::Command;
use super::context::{Context, PartitionAsk};
use super::event::{Fault, WriteFault};
use super::partition::{PartitionSlot, Stage, Surroundings};
use super::status::Change;
use super::tenure::Step;

impl PartitionSlot {
    /// Step 5: the partition is somebody else's now.
    pub(super) fn drain(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let cancel_at = cx.now + cx.settings.drain_timeout;
        self.attempt += 1;
        let Some(tenure) = self.tenure() else { return };
        tenure.retry_at = None;
        tenure.confirming = false;
        if tenure.open {
            tenure.step = Step::Draining(Some(cancel_at));
            cx.notify(Change::Draining { partition });
            cx.tell(Command::Drain(partition));
        } else {
            self.release(cx);
        }
    }

    pub(super) fn on_drained(&mut self, cx: &mut Context, marks: BTreeMap<Filter, Marks>) {
        let Some(tenure) = self.tenure() else { return };
        if !matches!(tenure.step, Step::Draining(_)) {
            return;
        }
        tenure.open = false;
        tenure.marks.extend(marks);
        if tenure.saved.as_ref() == Some(&tenure.marks) {
            self.release(cx);
        } else {
            tenure.step = Step::Saving;
            self.write_progress(cx);
        }
    }

    /// Writes the claim as released: nothing of it runs here, and its progress is saved.
    pub(super) fn release(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        tenure.step = Step::Releasing;
        tenure.retry_at = None;
        let record = ClaimRecord {
            state: ClaimState::Released,
            token: tenure.token,
            ..tenure.claim.clone()
        };
        let revision = tenure.claim_revision;
        self.ask(cx, PartitionAsk::Release, |ticket| {
            Command::WriteClaim(ticket, partition, record, revision)
        });
    }

    pub(super) fn on_release_written(&mut self, cx: &mut Context, result: Result<Revision, WriteFault>) {
        let Some(tenure) = self.tenure() else { return };
        match result {
            Ok(revision) => {
                let entry = Entry {
                    value: Some(ClaimRecord {
                        state: ClaimState::Released,
                        token: tenure.token,
                        ..tenure.claim.clone()
                    }),
                    revision,
                };
                self.see_claim(&entry);
                self.finish_release(cx);
            }
            Err(fault) => self.trouble(cx, format!("releasing the claim: {fault}")),
        }
    }

    /// The claim was read again because releasing it failed: released after all, somebody else's, or still to be released.
    pub(super) fn on_release_read(
        &mut self,
        cx: &mut Context,
        around: &Surroundings<'_>,
        result: Result<Entry<ClaimRecord>, Fault>,
    ) {
        let entry = match result {
            Ok(entry) => entry,
            Err(fault) => return self.trouble(cx, format!("reading the claim: {fault}")),
        };
        self.see_claim(&entry);
        let held_by_me = entry.value.as_ref().is_some_and(|claim| {
            claim.state == ClaimState::Held
                && claim.owner == cx.settings.member
                && claim.incarnation == *around.incarnation
        });
        if !held_by_me {
            return self.finish_release(cx);
        }
        if let Some(tenure) = self.tenure() {
            tenure.claim_revision = entry.revision;
        }
        self.release(cx);
    }

    pub(super) fn finish_release(&mut self, cx: &mut Context) {
        self.attempt += 1;
        self.stage = Stage::Idle;
        cx.notify(Change::Released {
            partition: self.partition,
        });
    }
}
