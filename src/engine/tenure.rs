//! A partition from winning its claim to releasing or losing it.
//!
//! 1. List the group's consumers and read the progress. Whoever shows a token at or above this tenure's own (a bucket
//!    younger than they are) makes it raise its claim first.
//! 2. Write the progress back with the own token: older tenures cannot write it any more.
//! 3. Swap the consumer of every filter, see [`filters`](super::filters).
//! 4. Serve.
//! 5. To hand over: let the handlers end, save the progress, and only when that is confirmed release the claim.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{FencingToken, Incarnation, Revision};
use crate::lanes::Filter;
use crate::lanes::Marks;
use crate::names::ConsumerName;
use crate::records::{ClaimRecord, Entry, ProgressRecord};
use crate::time::Time;

use super::command::Command;
use super::context::{Context, PartitionAsk, earliest};
use super::event::{Fault, Survey};
use super::filters::FilterSlot;
use super::partition::{Died, PartitionSlot, Stage, Surroundings};
use super::status::Change;

/// How far a tenure is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Listing consumers and reading progress.
    Looking,
    /// Raising the claim's token above the highest seen.
    Raising,
    /// Writing the progress back with the own token.
    Closing,
    /// Filters are being opened or are open.
    Serving,
    /// Running handlers end; cancelled at the given time.
    Draining(Option<Time>),
    /// The final progress is being written.
    Saving,
    /// The claim is being written as released.
    Releasing,
}

/// One tenure.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) token: FencingToken,
    pub(super) claim: ClaimRecord,
    pub(super) claim_revision: Revision,
    pub(super) step: Step,
    pub(super) survey: Option<Survey>,
    /// Filters that were discovered while the tenure was not yet serving: the listing may have been made before them, and they are
    /// not told again.
    pub(super) discovered: BTreeSet<Filter>,
    pub(super) progress: Option<Entry<ProgressRecord>>,
    /// The revision of the progress record to compare-and-set against.
    pub(super) progress_revision: Revision,
    /// What is finished as far as the engine knows: from the record at first, then from checkpoints and the drain.
    pub(super) marks: BTreeMap<Filter, Marks>,
    /// What the record is known to hold.
    pub(super) saved: Option<BTreeMap<Filter, Marks>>,
    pub(super) checkpoint_in_flight: bool,
    /// The lanes' number of `marks`.
    pub(super) changes: u64,
    /// The lanes wait until the record holds the marks of this number.
    pub(super) urgent: u64,
    /// The number that the lanes were told last.
    pub(super) recorded: u64,
    /// Whom the partition was taken from because of a death.
    pub(super) died: Option<Died>,
    pub(super) filters: BTreeMap<Filter, FilterSlot>,
    /// Consumers of older epochs that no filter accounts for.
    pub(super) sweep: BTreeSet<ConsumerName>,
    /// Whether lanes are open for it.
    pub(super) open: bool,
    pub(super) confirming: bool,
    pub(super) told_serving: bool,
    /// The highest sequence that was known to be finished before the last routine listing was asked for.
    pub(super) finished_before_survey: u64,
    pub(super) retry_at: Option<Time>,
}

impl Tenure {
    pub(super) fn new(token: FencingToken, claim: ClaimRecord, claim_revision: Revision, died: Option<Died>) -> Self {
        Self {
            token,
            claim,
            claim_revision,
            step: Step::Looking,
            survey: None,
            discovered: BTreeSet::new(),
            progress: None,
            progress_revision: Revision(0),
            marks: BTreeMap::new(),
            saved: None,
            checkpoint_in_flight: false,
            changes: 0,
            urgent: 0,
            recorded: 0,
            died,
            filters: BTreeMap::new(),
            sweep: BTreeSet::new(),
            open: false,
            confirming: false,
            told_serving: false,
            finished_before_survey: 0,
            retry_at: None,
        }
    }

    /// Whether something of it may be running here.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether a claim seen elsewhere says that this tenure is over. A newer write of the own incarnation does not: it is
    /// this tenure's own, whose answer is on its way.
    pub(super) fn is_contradicted_by(
        &self,
        entry: &Entry<ClaimRecord>,
        cx: &Context,
        incarnation: &Incarnation,
    ) -> bool {
        match &entry.value {
            None => entry.revision > self.claim_revision || entry.revision == Revision(0),
            Some(claim) => {
                let mine = claim.owner == cx.settings.member && claim.incarnation == *incarnation;
                entry.revision > self.claim_revision && !mine
            }
        }
    }

    pub(super) fn deadline(&self, cx: &Context) -> Option<Time> {
        let drain = match self.step {
            Step::Draining(cancel_at) => cancel_at,
            _ => None,
        };
        let filters = self
            .filters
            .values()
            .fold(None, |least, slot| earliest(least, slot.deadline(cx)));
        let filters = filters.filter(|_| self.step == Step::Serving);
        earliest(earliest(drain, self.retry_at), filters)
    }

    pub(super) fn record(&self) -> ProgressRecord {
        ProgressRecord {
            token: self.token,
            filters: self.marks.clone(),
        }
    }
}

impl PartitionSlot {
    /// The tenure, if there is one.
    pub(super) fn tenure(&mut self) -> Option<&mut Tenure> {
        match &mut self.stage {
            Stage::Held(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// Something failed on the way: say so, and try that step again later.
    pub(super) fn trouble(&mut self, cx: &mut Context, detail: String) {
        let at = cx.retry_at();
        if let Some(tenure) = self.tenure() {
            tenure.retry_at = Some(at);
        }
        cx.notify(Change::Trouble {
            partition: self.partition,
            detail,
        });
    }

    /// The periodic listing, asked for at `asked_at`: consumers that should not be there, or that should and are not.
    pub(super) fn reconcile(&mut self, cx: &mut Context, survey: &Survey, asked_at: Time) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        if tenure.step != Step::Serving {
            return;
        }
        self.forget_beyond(cx, survey.stream.last_sequence);
        let Some(tenure) = self.tenure() else { return };
        let listed = || survey.consumers.iter().filter(|name| name.partition == partition);
        let token = tenure.token;
        let outdone = listed().any(|name| name.epoch.token > token);
        // Also own ones that were replaced: a creation thought lost may land after its consumer's deletion. While a filter is
        // being opened its predecessors are left to that: an interest stream forgets what no consumer wants.
        let outlived = |name: &&ConsumerName| match tenure.filters.iter().find(|(filter, _)| name.serves(filter)) {
            Some((_, slot)) => slot.is_open() && name.epoch < slot.epoch(token),
            None => name.epoch.token < token,
        };
        tenure.sweep = listed().filter(outlived).cloned().collect();
        let names: BTreeSet<&ConsumerName> = listed().collect();
        let missing: Vec<Filter> = tenure
            .filters
            .iter()
            .filter(|(filter, slot)| {
                let name = ConsumerName::new(&cx.settings.group, partition, filter, slot.epoch(token));
                slot.open_since().is_some_and(|since| since < asked_at) && !names.contains(&name)
            })
            .map(|(filter, _)| filter.clone())
            .collect();
        if outdone || !tenure.sweep.is_empty() {
            self.confirm_claim(cx);
        }
        for filter in missing {
            self.reopen_missing(cx, &filter);
        }
        self.pump_filters(cx);
    }

    /// Reads the claim again: before anything is deleted, and whenever something hints that it may be lost.
    pub(super) fn confirm_claim(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        if !std::mem::replace(&mut tenure.confirming, true) {
            self.ask(cx, PartitionAsk::Confirm, |ticket| {
                Command::ReadClaim(ticket, partition)
            });
        }
    }

    pub(super) fn on_confirmed(&mut self, cx: &mut Context, result: Result<Entry<ClaimRecord>, Fault>) {
        let Some(tenure) = self.tenure() else { return };
        tenure.confirming = false;
        let entry = match result {
            Ok(entry) => entry,
            Err(fault) => {
                tenure.fail_confirming(cx);
                return self.trouble(cx, format!("reading the claim: {fault}"));
            }
        };
        if entry.revision != tenure.claim_revision {
            self.see_claim(&entry);
            return self.lose(cx);
        }
        self.sweep(cx);
        self.on_claim_confirmed(cx);
    }

    /// Deletes what no filter accounts for. One that cannot be deleted now is found again by the periodic listing.
    pub(super) fn sweep(&mut self, cx: &mut Context) {
        let Some(tenure) = self.tenure() else { return };
        for name in std::mem::take(&mut tenure.sweep) {
            self.ask(cx, PartitionAsk::Sweep(name.clone()), |ticket| {
                Command::DeleteConsumer(ticket, name)
            });
        }
    }

    /// Brings a tenure closer to what is wanted.
    pub(super) fn pump_tenure(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        let wanted = self.wanted.is_some();
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let retry = tenure.retry_at.is_some_and(|at| cx.now >= at);
        if retry {
            tenure.retry_at = None;
        }
        match tenure.step {
            Step::Looking | Step::Raising | Step::Closing | Step::Serving if !wanted => self.drain(cx),
            Step::Looking if retry => {
                self.attempt += 1;
                self.start_opening(cx, around);
            }
            Step::Closing if retry => self.close_progress(cx, around),
            Step::Serving => {
                self.pump_filters(cx);
                if retry {
                    self.save_urgent(cx);
                }
            }
            Step::Draining(Some(cancel_at)) if cx.now >= cancel_at => {
                tenure.step = Step::Draining(None);
                cx.notify(Change::DrainOverdue { partition });
                cx.tell(Command::CancelHandlers(partition));
            }
            Step::Saving if retry => self.write_progress(cx),
            Step::Releasing if retry => self.ask(cx, PartitionAsk::Release, |ticket| {
                Command::ReadClaim(ticket, partition)
            }),
            _ => {}
        }
    }
}
