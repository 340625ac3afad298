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
use crate::records::{ClaimRecord, ClaimState, Entry, ProgressRecord};
use crate::time::Time;

use super::command::Command;
use super::context::{Context, PartitionAsk, earliest};
use super::event::{Fault, Survey, WriteFault};
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
    survey: Option<Survey>,
    /// Filters that were discovered while the tenure was not yet serving: the listing may have been made before them, and they are
    /// not told again.
    discovered: BTreeSet<Filter>,
    progress: Option<Entry<ProgressRecord>>,
    /// The revision of the progress record to compare-and-set against.
    progress_revision: Revision,
    /// What is finished as far as the engine knows: from the record at first, then from checkpoints and the drain.
    pub(super) marks: BTreeMap<Filter, Marks>,
    /// What the record is known to hold.
    saved: Option<BTreeMap<Filter, Marks>>,
    checkpoint_in_flight: bool,
    /// The lanes' number of `marks`.
    changes: u64,
    /// The lanes wait until the record holds the marks of this number.
    urgent: u64,
    /// The number that the lanes were told last.
    recorded: u64,
    /// Whom the partition was taken from because of a death.
    pub(super) died: Option<Died>,
    pub(super) filters: BTreeMap<Filter, FilterSlot>,
    /// Consumers of older epochs that no filter accounts for.
    sweep: BTreeSet<ConsumerName>,
    /// Whether lanes are open for it.
    pub(super) open: bool,
    pub(super) confirming: bool,
    told_serving: bool,
    /// The highest sequence that was known to be finished before the last routine listing was asked for.
    finished_before_survey: u64,
    retry_at: Option<Time>,
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

    fn record(&self) -> ProgressRecord {
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

    /// Step 1: look at the stream and at the progress.
    pub(super) fn start_opening(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        tenure.step = Step::Looking;
        tenure.retry_at = None;
        // Whatever was asked in an earlier attempt is not answered any more.
        tenure.confirming = false;
        tenure.survey = None;
        tenure.progress = None;
        around.survey.request(cx, partition);
        self.ask(cx, PartitionAsk::ReadProgress, |ticket| {
            Command::ReadProgress(ticket, partition)
        });
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

    pub(super) fn on_survey(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        survey: &Result<Survey, Fault>,
    ) {
        if matches!(self.stage, Stage::Surveying) {
            return self.on_survey_before_taking(cx, around, survey);
        }
        let Some(tenure) = self.tenure() else { return };
        match (survey, &tenure.step) {
            (Ok(survey), Step::Looking) => {
                tenure.survey = Some(survey.clone());
                self.look(cx, around);
            }
            (survey, Step::Serving) => self.on_survey_after_overlap(cx, survey.as_ref().ok()),
            (Err(fault), Step::Looking) => self.trouble(cx, format!("listing the group's consumers: {fault}")),
            _ => {}
        }
    }

    pub(super) fn on_progress_read(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        result: Result<Entry<ProgressRecord>, Fault>,
    ) {
        let Some(tenure) = self.tenure() else { return };
        match (result, &tenure.step) {
            (Ok(entry), Step::Closing) if entry.revision == tenure.progress_revision => {
                // Refused and shown by the same leader: not to be tried again at once.
                self.trouble(
                    cx,
                    "closing the progress: refused, although nobody has changed it".to_owned(),
                );
            }
            (Ok(entry), Step::Looking | Step::Closing) => {
                tenure.progress = Some(entry);
                self.look(cx, around);
            }
            (Err(fault), _) => self.trouble(cx, format!("reading the progress: {fault}")),
            _ => {}
        }
    }

    /// Both the listing and the progress are there: raise the token if need be, or close the progress to older tenures.
    fn look(&mut self, cx: &mut Context, around: &Surroundings<'_>) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let (Some(survey), Some(progress)) = (&tenure.survey, &tenure.progress) else {
            return;
        };
        let of_consumers = survey
            .consumers
            .iter()
            .filter(|name| name.partition == partition)
            .map(|name| name.epoch.token);
        let of_progress = progress.value.iter().map(|record| record.token);
        let highest = of_consumers.chain(of_progress).max().unwrap_or_default();
        // In `Closing` the own token may be there already: the write was thought lost and has landed.
        let own_allowed = tenure.step == Step::Closing;
        if highest > tenure.token || (highest == tenure.token && !own_allowed) {
            return self.raise(cx, highest);
        }
        self.close_progress(cx, around);
    }

    fn raise(&mut self, cx: &mut Context, highest: FencingToken) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        tenure.step = Step::Raising;
        tenure.claim.token = FencingToken(highest.0 + 1);
        let (record, revision) = (tenure.claim.clone(), tenure.claim_revision);
        self.ask(cx, PartitionAsk::Raise, |ticket| {
            Command::WriteClaim(ticket, partition, record, revision)
        });
    }

    pub(super) fn on_raised(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        result: Result<Revision, WriteFault>,
    ) {
        let Some(tenure) = self.tenure() else { return };
        match result {
            Ok(revision) => {
                tenure.claim_revision = revision;
                tenure.token = tenure.claim.token_at(revision, around.bucket_created);
                let entry = Entry {
                    value: Some(tenure.claim.clone()),
                    revision,
                };
                self.see_claim(&entry);
                self.start_opening(cx, around);
            }
            // What stands in the claim decides: nothing is open yet.
            Err(_) => {
                self.attempt += 1;
                self.wait(cx.retry_at());
            }
        }
    }

    /// Step 2.
    fn close_progress(&mut self, cx: &mut Context, around: &Surroundings<'_>) {
        let partition = self.partition;
        let start = around.start_sequence;
        let Some(tenure) = self.tenure() else { return };
        let (Some(survey), Some(progress)) = (&tenure.survey, &tenure.progress) else {
            return;
        };
        let known = progress.value.as_ref().map(|record| record.filters.clone());
        let mut known = known.unwrap_or_default();
        // What a record says that was not written by whoever died says nothing about that death.
        let of_the_dead = |died: &&Died| progress.value.as_ref().is_some_and(|record| record.token == died.token);
        let died = tenure.died.as_ref().filter(of_the_dead);
        // A filter without messages is dropped: should it come back, it starts at the group's start and finds only new ones.
        let filters = survey.filters.get(&partition).into_iter().flatten();
        tenure.marks = filters
            .map(|filter| {
                let mut marks = known.remove(filter).unwrap_or_else(|| start_marks(start));
                // What is finished above the stream's end was finished in a stream that has lost it since.
                marks.truncate(survey.stream.last_sequence.max(start.saturating_sub(1)));
                match died {
                    Some(died) => marks.blame(&died.incarnation),
                    None => marks.forget_started(),
                }
                marks.absolve(|incarnation| around.membership.is_outlived(incarnation));
                (filter.clone(), marks)
            })
            .collect();
        tenure.step = Step::Closing;
        tenure.progress_revision = progress.revision;
        let (record, revision) = (tenure.record(), tenure.progress_revision);
        self.ask(cx, PartitionAsk::CloseProgress(record.clone()), |ticket| {
            Command::WriteProgress(ticket, partition, record, revision)
        });
    }

    pub(super) fn on_progress_closed(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        written: ProgressRecord,
        result: Result<Revision, WriteFault>,
    ) {
        let partition = self.partition;
        match result {
            Ok(revision) => {
                let Some(tenure) = self.tenure() else { return };
                tenure.progress_revision = revision;
                tenure.saved = Some(written.filters);
                let discovered: Vec<Filter> = std::mem::take(&mut tenure.discovered).into_iter().collect();
                self.open_filters(cx);
                self.on_discovered(cx, around, &discovered);
            }
            // An older tenure has written since, or our write has landed unseen: read again, and decide again.
            Err(WriteFault::Conflict) => self.ask(cx, PartitionAsk::ReadProgress, |ticket| {
                Command::ReadProgress(ticket, partition)
            }),
            // Written again later: if this one has landed, that one will conflict.
            Err(WriteFault::Unknown(reason)) => self.trouble(cx, format!("closing the progress: {reason}")),
        }
    }

    /// Step 3: a slot for every filter, with the older consumers it replaces. What no filter accounts for is swept.
    fn open_filters(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        tenure.step = Step::Serving;
        let survey = tenure.survey.take().unwrap_or_default();
        tenure.progress = None;
        let mut old: BTreeSet<ConsumerName> = survey
            .consumers
            .into_iter()
            .filter(|name| name.partition == partition)
            .collect();
        let filters: Vec<Filter> = tenure.marks.keys().cloned().collect();
        for filter in filters {
            let replaced: BTreeSet<ConsumerName> = old.iter().filter(|name| name.serves(&filter)).cloned().collect();
            old.retain(|name| !replaced.contains(name));
            let floor = tenure.marks.get(&filter).map_or(0, |marks| marks.floor.sequence);
            let mut slot = FilterSlot::new(floor + 1, replaced);
            if let Some(died) = &tenure.died {
                slot.be_careful(died.token, survey.stream.last_sequence);
            }
            tenure.filters.insert(filter, slot);
        }
        tenure.sweep = old;
        self.pump_filters(cx);
        self.tell_serving(cx);
    }

    /// Says once that everything that was to be opened is open.
    pub(super) fn tell_serving(&mut self, cx: &mut Context) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let all_open = tenure.filters.values().all(FilterSlot::is_open);
        if tenure.step == Step::Serving && all_open && !std::mem::replace(&mut tenure.told_serving, true) {
            let token = tenure.token;
            cx.notify(Change::Serving { partition, token });
            if !tenure.sweep.is_empty() {
                self.confirm_claim(cx);
            }
        }
    }

    /// Filters that have messages now: new ones get a consumer from the group's start, so that no backlog is skipped.
    pub(super) fn on_discovered(&mut self, cx: &mut Context, around: &mut Surroundings<'_>, filters: &[Filter]) {
        let start = around.start_sequence;
        let Some(tenure) = self.tenure() else { return };
        if tenure.step != Step::Serving {
            tenure.discovered.extend(filters.iter().cloned());
            return;
        }
        for filter in filters {
            if !tenure.filters.contains_key(filter) {
                tenure.marks.insert(filter.clone(), start_marks(start));
                let slot = FilterSlot::new(start, BTreeSet::new());
                tenure.filters.insert(filter.clone(), slot);
            }
        }
        self.pump_filters(cx);
    }

    /// A routine listing is about to be asked for: what it says of the stream is compared with what was known before.
    pub(super) fn note_before_survey(&mut self) {
        let Some(tenure) = self.tenure() else { return };
        tenure.finished_before_survey = tenure.marks.values().map(Marks::highest).max().unwrap_or(0);
    }

    /// The stream has come back with less than was known to be finished: the lanes must forget what is beyond its end, or they
    /// would take its next messages for finished ones.
    fn forget_beyond(&mut self, cx: &mut Context, last: u64) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        if tenure.finished_before_survey <= last {
            return;
        }
        let beyond = |marks: &&mut Marks| marks.highest() > last;
        tenure
            .marks
            .values_mut()
            .filter(beyond)
            .for_each(|marks| marks.truncate(last));
        cx.tell(Command::Truncate(partition, last));
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
    fn sweep(&mut self, cx: &mut Context) {
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

    /// Step 5: the partition is somebody else's now.
    fn drain(&mut self, cx: &mut Context) {
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

    fn write_progress(&mut self, cx: &mut Context) {
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
    fn checkpoint(&mut self, cx: &mut Context) {
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
    fn save_urgent(&mut self, cx: &mut Context) {
        let Some(tenure) = self.tenure() else { return };
        if tenure.urgent > tenure.recorded {
            self.checkpoint(cx);
        }
    }

    fn tell_recorded(&mut self, cx: &mut Context, changes: u64) {
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

    /// Writes the claim as released: nothing of it runs here, and its progress is saved.
    fn release(&mut self, cx: &mut Context) {
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

    fn finish_release(&mut self, cx: &mut Context) {
        self.attempt += 1;
        self.stage = Stage::Idle;
        cx.notify(Change::Released {
            partition: self.partition,
        });
    }
}

/// The marks of a filter of which nothing is finished.
fn start_marks(start_sequence: u64) -> Marks {
    Marks::at(crate::lanes::Mark {
        sequence: start_sequence.saturating_sub(1),
        time: 0,
    })
}
