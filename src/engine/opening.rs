//! Opening a partition: steps 1 to 3 of a [`tenure`](super::tenure), and keys that are discovered later.

use std::collections::BTreeSet;

use crate::ids::{FencingToken, Revision};
use crate::lanes::{Filter, Mark, Marks};
use crate::names::ConsumerName;
use crate::records::{Entry, ProgressRecord};

use super::command::Command;
use super::context::{Context, PartitionAsk};
use super::event::{Fault, Survey, WriteFault};
use super::filters::FilterSlot;
use super::partition::{Died, PartitionSlot, Stage, Surroundings};
use super::status::Change;
use super::tenure::Step;

impl PartitionSlot {
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
    pub(super) fn look(&mut self, cx: &mut Context, around: &Surroundings<'_>) {
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

    pub(super) fn raise(&mut self, cx: &mut Context, highest: FencingToken) {
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
    pub(super) fn close_progress(&mut self, cx: &mut Context, around: &Surroundings<'_>) {
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
    pub(super) fn open_filters(&mut self, cx: &mut Context) {
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
            let floor = tenure
                .marks
                .get(&filter)
                .map_or_else(Mark::default, |marks| marks.floor);
            let mut slot = FilterSlot::new(floor, replaced);
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
                let marks = start_marks(start);
                let slot = FilterSlot::new(marks.floor, BTreeSet::new());
                tenure.marks.insert(filter.clone(), marks);
                tenure.filters.insert(filter.clone(), slot);
            }
        }
        self.pump_filters(cx);
    }
}

/// The marks of a filter of which nothing is finished.
fn start_marks(start_sequence: u64) -> Marks {
    Marks::at(Mark {
        sequence: start_sequence.saturating_sub(1),
        time: 0,
    })
}
