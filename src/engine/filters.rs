//! Swapping the consumer of one filter: the server-side fence of a handover.
//!
//! Limits and interest streams: find the position, create the new consumer, confirm that the claim is still ours, delete the
//! old ones; an interest stream would forget its messages if no consumer wanted them even for a moment. Work-queue streams:
//! confirm, delete, then create, because consumers there must not overlap; what is finished and still there is acked when it
//! is delivered. Re-opening by the holder is the same with the own former consumer as the old one.

use std::collections::BTreeSet;

use crate::ids::{Epoch, FencingToken, Partition};
use crate::lanes::{Filter, Mark};
use crate::names::ConsumerName;
use crate::time::Time;

use super::command::{Command, ConsumerSpec};
use super::context::{Context, PartitionAsk, Retention};
use super::event::{CreateFault, Fault, Position, ReopenReason, Survey};
use super::partition::{PartitionSlot, Surroundings};
use super::status::Change;
use super::tenure::{Step, Tenure};

/// How often the server may fail to answer for one consumer, while it lets the tenure go on, before the consumer is taken to have no
/// leader: the only server that has it is away, for as long as that takes.
const UNANSWERED: u32 = 2;

/// How far a filter is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FilterStage {
    /// Nothing was asked yet, or the last step failed and waits.
    Start,
    /// The positions of these older consumers are awaited.
    Inspecting(BTreeSet<ConsumerName>),
    /// Whether the stream still holds what is finished is being asked.
    Checking,
    /// The own consumer is being created.
    Creating,
    /// The own consumer exists with other settings: is it usable?
    InspectingOwn,
    /// Waiting for the claim to be confirmed, so that the old ones may be deleted.
    Confirming,
    /// The deletion of these is awaited.
    Deleting(BTreeSet<ConsumerName>),
    /// The own consumer exists and the old ones do not.
    Open(Time),
    /// The consumers that stand in the way are being listed.
    Overlapped,
}

/// One filter of a tenure.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FilterSlot {
    stage: FilterStage,
    reopen: u32,
    /// What is finished: the consumer starts behind it.
    floor: Mark,
    /// Whether only an older consumer's acks say that it is as high as it is.
    floor_from_acks: bool,
    /// Where the own consumer was last asked to start.
    start: u64,
    old: BTreeSet<ConsumerName>,
    inspected: bool,
    /// Whether the stream was found to hold at `floor` what is finished, and not something newer.
    checked: bool,
    created: bool,
    /// Up to here a member that died may have begun with any message and not have said so. 0: nobody died.
    careful_until: u64,
    /// The consumer that it had, and no other: how far that has delivered is as far as it can have come.
    of_the_dead: Option<ConsumerName>,
    /// Whether lanes are open for it.
    in_lanes: bool,
    retry_at: Option<Time>,
    /// How often in a row asking about a consumer, or creating one, was not answered.
    unanswered: u32,
}

impl FilterSlot {
    pub(super) fn new(floor: Mark, old: BTreeSet<ConsumerName>) -> Self {
        Self {
            stage: FilterStage::Start,
            reopen: 0,
            floor,
            floor_from_acks: false,
            start: 0,
            old,
            inspected: false,
            checked: false,
            created: false,
            careful_until: 0,
            of_the_dead: None,
            in_lanes: false,
            retry_at: None,
            unanswered: 0,
        }
    }

    /// Whoever held it with this token has died, while the stream ended at `last`.
    pub(super) fn be_careful(&mut self, token: FencingToken, last: u64) {
        self.careful_until = last;
        // A re-opened consumer delivers from the floor again: that it has not come far yet says nothing.
        let first = Epoch { token, reopen: 0 };
        let highest = self.old.iter().max_by_key(|name| name.epoch);
        self.of_the_dead = highest.filter(|name| name.epoch == first).cloned();
    }

    pub(super) fn epoch(&self, token: FencingToken) -> Epoch {
        Epoch {
            token,
            reopen: self.reopen,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, FilterStage::Open(_))
    }

    /// What is finished ends at `last`: the stream has come back with less.
    pub(super) fn end_at(&mut self, last: u64) {
        self.floor.sequence = self.floor.sequence.min(last);
    }

    /// Whether its floor is as high as it is by an older consumer's acks, and not by what this group has written down.
    pub(super) fn floor_is_from_acks(&self) -> bool {
        self.floor_from_acks
    }

    /// Since when the consumer is known to exist.
    pub(super) fn open_since(&self) -> Option<Time> {
        match self.stage {
            FilterStage::Open(since) => Some(since),
            _ => None,
        }
    }

    pub(super) fn deadline(&self, _cx: &Context) -> Option<Time> {
        self.retry_at
    }

    /// Leaves a consumer of the own epoch that is of no use, and takes the next re-open count.
    fn pass_over(&mut self, name: ConsumerName) {
        self.old.insert(name);
        self.created = false;
        self.reopen += 1;
        // Nobody has pulled from it, so it knows of no position: its ack floor is merely where it starts.
        self.inspected = true;
        self.stage = FilterStage::Start;
    }

    fn fail(&mut self, cx: &Context) {
        self.stage = FilterStage::Start;
        // By the time of the next attempt the stream may have lost more.
        self.checked &= self.created;
        self.retry_at = Some(cx.retry_at());
    }
}

impl Tenure {
    /// The name of the filter's own consumer.
    fn consumer(&self, cx: &Context, partition: Partition, filter: &Filter) -> Option<ConsumerName> {
        let epoch = self.filters.get(filter)?.epoch(self.token);
        Some(ConsumerName::new(&cx.settings.group, partition, filter, epoch))
    }

    /// The claim could not be read: what waits for that tries again later.
    pub(super) fn fail_confirming(&mut self, cx: &Context) {
        for slot in self.filters.values_mut() {
            if slot.stage == FilterStage::Confirming {
                slot.fail(cx);
            }
        }
    }
}

impl PartitionSlot {
    /// Takes the next step of every filter that can go on.
    pub(super) fn pump_filters(&mut self, cx: &mut Context) {
        let now = cx.now;
        let Some(tenure) = self.tenure() else { return };
        let ready: Vec<Filter> = tenure
            .filters
            .iter()
            .filter(|(_, slot)| slot.stage == FilterStage::Start && slot.retry_at.is_none_or(|at| now >= at))
            .map(|(filter, _)| filter.clone())
            .collect();
        for filter in ready {
            self.advance(cx, &filter);
        }
    }

    /// The next step of one filter.
    fn advance(&mut self, cx: &mut Context, filter: &Filter) {
        let delete_first = cx.settings.retention == Retention::WorkQueue;
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let name = tenure.consumer(cx, partition, filter);
        let (Some(slot), Some(name)) = (self.filter(filter), name) else {
            return;
        };
        slot.retry_at = None;
        if slot.created && !delete_first && slot.start > slot.floor.sequence + 1 {
            // The stream came back with less while it was being created: it would skip what is stored there since.
            slot.pass_over(name);
        }
        let has_old = !slot.old.is_empty();
        // The position on a work-queue stream is the progress record's alone.
        if has_old && !slot.inspected && (!delete_first || slot.of_the_dead.is_some()) {
            self.inspect(cx, filter);
        } else if !slot.checked && !delete_first && slot.floor.time > 0 {
            self.check(cx, filter);
        } else if has_old && (delete_first || slot.created) {
            slot.stage = FilterStage::Confirming;
            self.confirm_claim(cx);
        } else if !slot.created {
            self.create(cx, filter);
        } else {
            self.opened(cx, filter);
        }
    }

    fn filter(&mut self, filter: &Filter) -> Option<&mut FilterSlot> {
        self.tenure()?.filters.get_mut(filter)
    }

    fn inspect(&mut self, cx: &mut Context, filter: &Filter) {
        let Some(slot) = self.filter(filter) else { return };
        let old = slot.old.clone();
        slot.stage = FilterStage::Inspecting(old.clone());
        for name in old {
            self.ask(cx, PartitionAsk::Inspect(filter.clone(), name.clone()), |ticket| {
                Command::InspectConsumer(ticket, name)
            });
        }
    }

    pub(super) fn on_inspected(
        &mut self,
        cx: &mut Context,
        filter: &Filter,
        name: &ConsumerName,
        result: Result<Option<Position>, Fault>,
    ) {
        let Some(slot) = self.filter(filter) else { return };
        let FilterStage::Inspecting(left) = &mut slot.stage else {
            if slot.stage == FilterStage::InspectingOwn {
                self.on_own_inspected(cx, filter, name, result);
            }
            return;
        };
        if !left.remove(name) {
            // A late answer of an earlier round.
            return;
        }
        let done = left.is_empty();
        match result {
            Ok(Some(position)) => {
                if cx.settings.retention != Retention::WorkQueue && position.acked_at > 0 {
                    slot.floor_from_acks |= position.ack_floor > slot.floor.sequence;
                    slot.floor.raise(Mark {
                        sequence: position.ack_floor,
                        time: position.acked_at,
                    });
                }
                if slot.of_the_dead.as_ref() == Some(name) {
                    slot.careful_until = slot.careful_until.min(position.delivered);
                }
            }
            Ok(None) => {
                slot.old.remove(name);
            }
            Err(fault) if slot.unanswered < UNANSWERED => {
                slot.unanswered += 1;
                slot.fail(cx);
                return self.trouble(cx, format!("asking how far {name} is: {fault}"));
            }
            // Without a leader it tells nobody. It is deleted all the same, and the progress says enough: more may be repeated.
            Err(_) => {}
        }
        if done {
            slot.unanswered = 0;
            slot.inspected = true;
            self.advance(cx, filter);
        }
    }

    /// A consumer that starts behind what is finished would skip what a younger stream has stored there since.
    fn check(&mut self, cx: &mut Context, filter: &Filter) {
        let Some(slot) = self.filter(filter) else { return };
        slot.stage = FilterStage::Checking;
        let floor = slot.floor;
        self.ask(cx, PartitionAsk::FindReplaced(filter.clone()), |ticket| {
            Command::FindReplaced(ticket, filter.clone(), floor)
        });
    }

    pub(super) fn on_checked(&mut self, cx: &mut Context, filter: &Filter, result: Result<Option<u64>, Fault>) {
        let Some(slot) = self.filter(filter) else { return };
        if slot.stage != FilterStage::Checking {
            return;
        }
        match result {
            Ok(replaced) => {
                slot.checked = true;
                if let Some(first) = replaced {
                    self.forget_from(cx, filter, first);
                }
            }
            Err(fault) => {
                slot.fail(cx);
                return self.trouble(
                    cx,
                    format!("asking whether what is finished of {filter} is still stored: {fault}"),
                );
            }
        }
        self.advance(cx, filter);
    }

    fn create(&mut self, cx: &mut Context, filter: &Filter) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let Some(name) = tenure.consumer(cx, partition, filter) else {
            return;
        };
        let Some(slot) = self.filter(filter) else { return };
        slot.stage = FilterStage::Creating;
        slot.start = slot.floor.sequence + 1;
        let spec = ConsumerSpec {
            name,
            filter: filter.clone(),
            start: slot.start,
        };
        self.ask(cx, PartitionAsk::Create(filter.clone()), |ticket| {
            Command::CreateConsumer(ticket, spec)
        });
    }

    pub(super) fn on_created(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        filter: &Filter,
        result: Result<(), CreateFault>,
    ) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let name = tenure.consumer(cx, partition, filter);
        let (Some(slot), Some(name)) = (self.filter(filter), name) else {
            return;
        };
        if slot.stage != FilterStage::Creating {
            return;
        }
        match result {
            Ok(()) => {
                slot.created = true;
                slot.unanswered = 0;
                let again = slot.reopen > 0;
                self.advance(cx, filter);
                if again {
                    // The former one may have gone with its stream, and this one be on another, whose messages are not those that are
                    // known to be finished.
                    around.survey.request_routine(cx);
                }
            }
            Err(CreateFault::Exists) => {
                slot.stage = FilterStage::InspectingOwn;
                self.ask(cx, PartitionAsk::Inspect(filter.clone(), name.clone()), |ticket| {
                    Command::InspectConsumer(ticket, name)
                });
            }
            Err(CreateFault::Overlap(reason)) => {
                slot.stage = FilterStage::Overlapped;
                around.survey.request(cx, partition);
                cx.notify(Change::Trouble {
                    partition,
                    detail: reason,
                });
            }
            Err(CreateFault::Unknown(reason)) => {
                slot.unanswered += 1;
                // It may be there, on a server that is away. Another name gets another place. The powers keep the names few while none
                // can be created at all.
                if slot.unanswered >= UNANSWERED && slot.unanswered.is_power_of_two() {
                    slot.pass_over(name.clone());
                }
                slot.fail(cx);
                self.trouble(cx, format!("creating the consumer {name}: {reason}"));
            }
        }
    }

    /// A consumer of the own epoch is there with other settings: a half-done step of this tenure. It is accepted if it starts
    /// no later than needed, else the next re-open count is taken.
    fn on_own_inspected(
        &mut self,
        cx: &mut Context,
        filter: &Filter,
        inspected: &ConsumerName,
        result: Result<Option<Position>, Fault>,
    ) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let name = tenure.consumer(cx, partition, filter);
        let (Some(slot), Some(name)) = (self.filter(filter), name) else {
            return;
        };
        if name != *inspected {
            // A late answer about one of the older consumers.
            return;
        }
        match result {
            Ok(Some(position)) if position.start <= slot.floor.sequence + 1 => {
                slot.created = true;
                slot.start = position.start;
            }
            Ok(Some(_)) => slot.pass_over(name),
            Ok(None) => {}
            Err(_) if slot.unanswered >= UNANSWERED => {
                slot.unanswered = 0;
                slot.pass_over(name);
            }
            Err(fault) => {
                slot.unanswered += 1;
                slot.fail(cx);
                return self.trouble(cx, format!("asking how far {name} is: {fault}"));
            }
        }
        self.advance(cx, filter);
    }

    /// The consumers that stand in the way of a filter are listed. Only lower epochs of this group and filter may go.
    pub(super) fn on_survey_after_overlap(&mut self, cx: &mut Context, survey: Option<&Survey>) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let token = tenure.token;
        let mut confirm = false;
        for (filter, slot) in &mut tenure.filters {
            if slot.stage != FilterStage::Overlapped {
                continue;
            }
            let epoch = slot.epoch(token);
            let consumers = survey.map(|survey| survey.consumers.iter()).into_iter().flatten();
            let lower =
                consumers.filter(|name| name.partition == partition && name.serves(filter) && name.epoch < epoch);
            slot.old.extend(lower.cloned());
            slot.fail(cx);
            confirm |= slot.old.is_empty();
        }
        if confirm {
            // Nothing of ours is in the way: either the claim is lost to a higher epoch, or the filter is another group's.
            self.confirm_claim(cx);
        }
    }

    /// The claim was just read and is this member's: what waits for that may delete.
    pub(super) fn on_claim_confirmed(&mut self, cx: &mut Context) {
        let Some(tenure) = self.tenure() else { return };
        let waiting: Vec<Filter> = tenure
            .filters
            .iter()
            .filter(|(_, slot)| slot.stage == FilterStage::Confirming)
            .map(|(filter, _)| filter.clone())
            .collect();
        for filter in waiting {
            let Some(slot) = self.filter(&filter) else { continue };
            let old = slot.old.clone();
            slot.stage = FilterStage::Deleting(old.clone());
            for name in old {
                self.ask(cx, PartitionAsk::Delete(filter.clone(), name.clone()), |ticket| {
                    Command::DeleteConsumer(ticket, name)
                });
            }
        }
    }

    pub(super) fn on_deleted(
        &mut self,
        cx: &mut Context,
        filter: &Filter,
        name: &ConsumerName,
        result: Result<(), Fault>,
    ) {
        let Some(slot) = self.filter(filter) else { return };
        let FilterStage::Deleting(left) = &mut slot.stage else {
            return;
        };
        if !left.remove(name) {
            return;
        }
        let done = left.is_empty();
        match result {
            Ok(()) => {
                slot.old.remove(name);
            }
            Err(fault) => {
                slot.fail(cx);
                return self.trouble(cx, format!("deleting the consumer {name}: {fault}"));
            }
        }
        if done {
            self.advance(cx, filter);
        }
    }

    /// Step 4: the consumer is there and its predecessors are not.
    fn opened(&mut self, cx: &mut Context, filter: &Filter) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let token = tenure.token;
        let mut marks = tenure.marks.get(filter).cloned().unwrap_or_default();
        let Some(slot) = tenure.filters.get_mut(filter) else {
            return;
        };
        slot.stage = FilterStage::Open(cx.now);
        let (epoch, careful_until) = (slot.epoch(token), slot.careful_until);
        let filter = filter.clone();
        if std::mem::replace(&mut slot.in_lanes, true) {
            cx.tell(Command::Reopen {
                partition,
                filter,
                epoch,
            });
        } else {
            // What older consumers' ack floors told counts as finished; a work-queue stream has forgotten it anyway.
            if cx.settings.retention != Retention::WorkQueue {
                marks.raise(slot.floor);
            }
            tenure.open = true;
            cx.tell(Command::Open {
                partition,
                filter,
                epoch,
                marks,
                careful_until,
            });
        }
        self.tell_serving(cx);
    }

    /// The lanes, or the pull, say that a filter's consumer must be replaced.
    pub(super) fn on_reopen(
        &mut self,
        cx: &mut Context,
        filter: &Filter,
        epoch: Epoch,
        floor: Mark,
        reason: ReopenReason,
    ) {
        let Some(tenure) = self.tenure() else { return };
        let token = tenure.token;
        let serving = tenure.step == Step::Serving;
        let Some(slot) = self.filter(filter) else { return };
        if !serving || slot.epoch(token) != epoch || !slot.is_open() {
            return;
        }
        slot.floor = floor;
        self.begin_reopen(cx, filter, reason);
        self.pump_filters(cx);
    }

    /// The periodic listing does not show the filter's consumer.
    pub(super) fn reopen_missing(&mut self, cx: &mut Context, filter: &Filter) {
        // What was saved last is finished; without it everything since the tenure began would be delivered again.
        let Some(tenure) = self.tenure() else { return };
        let saved = tenure.marks.get(filter).map_or_else(Mark::default, |marks| marks.floor);
        if let Some(slot) = self.filter(filter) {
            slot.floor.raise(saved);
        }
        self.begin_reopen(cx, filter, ReopenReason::Missing);
    }

    fn begin_reopen(&mut self, cx: &mut Context, filter: &Filter, reason: ReopenReason) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let Some(name) = tenure.consumer(cx, partition, filter) else {
            return;
        };
        let Some(slot) = self.filter(filter) else { return };
        // One that is lost again and again is not re-opened hot.
        let again = slot.open_since().map(|since| since + cx.settings.retry_interval);
        slot.retry_at = again.filter(|at| *at > cx.now);
        slot.stage = FilterStage::Start;
        slot.old.insert(name);
        // The own marks say more than its ack floor.
        slot.inspected = true;
        slot.floor_from_acks = false;
        slot.checked = false;
        slot.created = false;
        slot.reopen += 1;
        cx.notify(Change::Reopening {
            partition,
            filter: filter.clone(),
            reason,
        });
        if reason != ReopenReason::Gap {
            self.confirm_claim(cx);
        }
    }
}
