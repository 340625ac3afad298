//! The pure core: what a member does, as a function of what it learns.
//!
//! [`Engine::step`] takes the time and one [`Event`] and returns the [`Command`]s to carry out. It has no clock, no socket
//! and no task; the driver, the simulator and the model checker run the very same code.
//!
//! | file | decides |
//! |---|---|
//! | `presence` | the member's own record: entering, heartbeat, lease, fencing, leaving |
//! | `membership` | who lives, who is oldest, who is dead |
//! | `planner` | when to plan, and what |
//! | `partition` | when a partition's claim may be taken |
//! | `tenure` | what a claim that is held goes through, and comparing it with the leader's word |
//! | `opening`, `filters`, `saving`, `handover` | its steps: opening, swapping consumers, checkpoints, giving it up |
//! | `survey` | one listing for many partitions |
//! | `command`, `event`, `status` | the catalogue of everything that goes out and comes in |

mod command;
mod context;
mod event;
mod filters;
mod handover;
mod membership;
mod opening;
mod partition;
mod planner;
mod presence;
mod saving;
mod status;
mod survey;
mod tenure;
#[cfg(test)]
mod tests;
mod younger;

use std::collections::BTreeMap;

use crate::ids::{FencingToken, Generation, Incarnation, MemberId, Partition, Revision};
use crate::records::{AssignmentRecord, ClaimRecord, Entry};
use crate::time::Time;

pub use command::{Command, ConsumerSpec, Ticket, WatchScope};
pub use context::{EngineSettings, Retention};
pub use event::{
    CreateFault, Event, Fault, GroupView, Position, Prepared, ReopenReason, Reply, Seen, StreamState, Survey,
    WriteFault,
};
pub use status::{Change, FenceReason, MemberPhase, Refusal, Stop};

use context::{Context, PartitionAsk, PresenceAsk, Purpose, earliest};
use membership::Membership;
use partition::{PartitionSlot, Stage, Surroundings};
use planner::Planner;
use presence::{Phase, Presence, Turn};
use survey::SurveyDesk;
use tenure::Step;

/// What one partition is doing on this member, for status displays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// Assigned to this member, which is taking it.
    Taking,
    /// Served by this member.
    Serving(FencingToken),
    /// Being handed over: running handlers end.
    Draining(FencingToken),
    /// Lost; its last handlers still end.
    Ending(FencingToken),
}

/// One member, purely.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    presence: Presence,
    membership: Membership,
    planner: Planner,
    survey: SurveyDesk,
    slots: Vec<PartitionSlot>,
    assignment: Entry<AssignmentRecord>,
    prepared: Prepared,
    quarantine_until: Option<Time>,
    /// When a leaving member gives its partitions up even without a successor's plan.
    leave_by: Option<Time>,
    /// When the stream is looked at again, because the last look failed.
    look_again_at: Option<Time>,
    reconcile_at: Time,
    assignment_at: Time,
    watch: WatchHealth,
}

/// Whether the watch still shows what happens. The member's own heartbeats must come back through it.
#[derive(Debug, Default)]
struct WatchHealth {
    seen: Revision,
    behind_since: Option<Time>,
}

impl Engine {
    /// A member that has not begun. `incarnation_seed` must be unique to this start of the process.
    pub fn new(settings: EngineSettings, incarnation_seed: impl Into<String>) -> Self {
        let partitions = settings.partitions.get();
        let cx = Context::new(settings);
        Self {
            presence: Presence::new(&cx, incarnation_seed.into()),
            cx,
            membership: Membership::default(),
            planner: Planner::default(),
            survey: SurveyDesk::default(),
            slots: (0..partitions).map(|p| PartitionSlot::new(Partition(p))).collect(),
            assignment: Entry::absent(),
            prepared: Prepared {
                bucket_created: 0,
                start_sequence: 1,
                stream_created: 0,
            },
            quarantine_until: None,
            leave_by: None,
            look_again_at: None,
            reconcile_at: Time::ZERO,
            assignment_at: Time::ZERO,
            watch: WatchHealth::default(),
        }
    }

    /// Whether a handler may be started at `now`: the member's lease is in force.
    pub fn may_dispatch(&self, now: Time) -> bool {
        self.presence.lease_valid(&self.cx, now)
    }

    /// When the lease ends unless a heartbeat is confirmed; `None` outside the group.
    pub fn lease_end(&self) -> Option<Time> {
        self.in_group().then(|| self.presence.lease_end(&self.cx))
    }

    /// The member.
    pub fn member(&self) -> &MemberId {
        &self.cx.settings.member
    }

    /// Where the member stands.
    pub fn phase(&self) -> MemberPhase {
        match self.presence.phase {
            Phase::New | Phase::Asking | Phase::Pausing(_) | Phase::Observing { .. } => MemberPhase::Joining,
            Phase::Active => MemberPhase::Active,
            Phase::Leaving => MemberPhase::Leaving,
            Phase::Fenced { .. } => MemberPhase::Fenced,
            Phase::Stopped => MemberPhase::Ended,
        }
    }

    /// This life of the member.
    pub fn incarnation(&self) -> &Incarnation {
        self.presence.incarnation()
    }

    /// The version of the assignment in force here.
    pub fn generation(&self) -> Option<Generation> {
        self.assignment.value.as_ref().map(|record| record.generation)
    }

    /// The members of the assignment in force here, with the partitions of each.
    pub fn assignment(&self) -> Option<&AssignmentRecord> {
        self.assignment.value.as_ref()
    }

    /// What this member is doing with each of the partitions it has to do with.
    pub fn activities(&self) -> BTreeMap<Partition, Activity> {
        let activity = |slot: &PartitionSlot| match &slot.stage {
            Stage::Idle => None,
            Stage::Held(tenure) => Some(match tenure.step {
                Step::Serving if tenure.filters.values().all(filters::FilterSlot::is_open) => {
                    Activity::Serving(tenure.token)
                }
                Step::Looking | Step::Raising | Step::Closing | Step::Serving => Activity::Taking,
                Step::Draining(_) | Step::Saving | Step::Releasing => Activity::Draining(tenure.token),
            }),
            Stage::Ending(token) => Some(Activity::Ending(*token)),
            _ => Some(Activity::Taking),
        };
        let present = |slot: &PartitionSlot| activity(slot).map(|found| (slot.partition, found));
        self.slots.iter().filter_map(present).collect()
    }

    /// When the engine wants to be woken at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let mut least = earliest(
            self.presence.deadline(&self.cx),
            partition::deadline(&self.slots, &self.cx),
        );
        if self.in_group() {
            least = earliest(least, self.membership.deadline(&self.cx));
            least = earliest(least, self.planner.deadline(&self.cx, &self.membership));
            least = earliest(least, Some(self.reconcile_at.min(self.assignment_at)));
            least = earliest(least, self.look_again_at);
            // Once it has passed nothing more is to be done at it, however long handlers take to end.
            least = earliest(least, self.leave_by.filter(|at| *at > self.cx.now));
            least = earliest(least, self.watch_deadline());
        }
        least
    }

    /// Takes one event at `now` and returns what to do. `now` must not go back.
    pub fn step(&mut self, now: Time, event: Event) -> Vec<Command> {
        self.cx.now = now;
        // The lease comes before anything else: a process that wakes from a freeze must not act on old news.
        if self.in_group() && !self.presence.lease_valid(&self.cx, now) {
            self.wake_presence();
        }
        self.handle(event);
        self.settle();
        std::mem::take(&mut self.cx.out)
    }

    fn in_group(&self) -> bool {
        matches!(self.presence.phase, Phase::Active | Phase::Leaving)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start => {
                if self.presence.phase == Phase::New {
                    self.presence.begin(&mut self.cx);
                }
            }
            Event::Wake => {}
            Event::Reconnected => {
                self.quarantine_until = Some(self.cx.now + self.cx.settings.session_timeout);
                self.assignment_at = self.cx.now;
                self.reconcile_at = self.cx.now;
            }
            Event::Seen(seen) => self.on_seen(seen),
            Event::Done(ticket, reply) => {
                if let Some(asked) = self.cx.pending.remove(&ticket) {
                    if self.in_group() && asked.shows_younger_bucket(&reply) {
                        // Its claims and tokens mean nothing there; what it has just written, a new incarnation judges.
                        let turn = self.presence.fence(&mut self.cx, FenceReason::YoungerBucket);
                        return self.take_turn(Some(turn));
                    }
                    self.on_done(asked.purpose, reply);
                }
            }
            Event::Unanswered(ticket) => {
                if let Some(asked) = self.cx.pending.remove(&ticket) {
                    let reply = asked.purpose.unanswered();
                    self.on_done(asked.purpose, reply);
                }
            }
            Event::Leave => self.presence.leave(&mut self.cx),
            Event::Drained { partition, marks } => self.with_slot(partition, |slot, cx, _| slot.on_drained(cx, marks)),
            Event::Ended { partition, token } => self.with_slot(partition, |slot, _, _| slot.on_ended(token)),
            Event::Reopen {
                partition,
                filter,
                epoch,
                floor,
                reason,
            } => {
                self.with_slot(partition, |slot, cx, _| {
                    slot.on_reopen(cx, &filter, epoch, floor, reason);
                });
                if reason == ReopenReason::Missing {
                    // Perhaps because the stream is another one, whose messages must not be skipped as finished.
                    self.look_at_stream();
                }
            }
            Event::Checkpoint {
                partition,
                marks,
                changes,
                urgent,
            } => self.with_slot(partition, |slot, cx, _| slot.on_checkpoint(cx, marks, changes, urgent)),
            Event::Discovered(filters) => {
                for (partition, filters) in filters {
                    self.with_slot(partition, |slot, cx, around| slot.on_discovered(cx, around, &filters));
                }
            }
        }
    }

    /// Calls `act` on one partition with the engine's surroundings.
    fn with_slot(
        &mut self,
        partition: Partition,
        act: impl FnOnce(&mut PartitionSlot, &mut Context, &mut Surroundings<'_>),
    ) {
        let Some(slot) = self.slots.get_mut(usize::from(partition.0)) else {
            return;
        };
        let mut around = Surroundings {
            incarnation: self.presence.incarnation(),
            bucket_created: self.prepared.bucket_created,
            start_sequence: self.prepared.start_sequence,
            quarantine_until: self.quarantine_until,
            membership: &mut self.membership,
            survey: &mut self.survey,
        };
        act(slot, &mut self.cx, &mut around);
    }

    fn each_slot(&mut self, mut act: impl FnMut(&mut PartitionSlot, &mut Context, &mut Surroundings<'_>)) {
        for index in 0..self.cx.settings.partitions.get() {
            self.with_slot(Partition(index), &mut act);
        }
    }

    fn on_seen(&mut self, seen: Seen) {
        if !self.in_group() {
            return;
        }
        match seen {
            Seen::Member(id, entry) if id == self.cx.settings.member => {
                self.watch.seen = self.watch.seen.max(entry.revision);
                let turn = self.presence.on_own_seen(&mut self.cx, &entry);
                self.take_turn(turn);
            }
            Seen::Member(id, entry) => {
                self.membership.observe(&self.cx, id.clone(), entry);
                self.each_slot(|slot, cx, _| slot.on_member_changed(cx, &id));
            }
            Seen::Assignment(entry) => self.on_assignment(entry),
            Seen::Claim(partition, entry) => {
                self.with_slot(partition, |slot, cx, around| slot.on_claim_seen(cx, around, &entry));
            }
        }
    }

    fn on_assignment(&mut self, entry: Entry<AssignmentRecord>) {
        if entry.revision > self.assignment.revision && entry.value.is_some() {
            self.assignment = entry;
            let me = self.cx.settings.member.clone();
            let Some(record) = &self.assignment.value else { return };
            let partitions = (0..self.cx.settings.partitions.get())
                .map(Partition)
                .filter(|partition| record.owner(*partition) == Some(&me))
                .collect();
            self.cx.notify(Change::Assigned {
                generation: record.generation,
                partitions,
            });
        }
    }

    fn on_done(&mut self, purpose: Purpose, reply: Reply) {
        match (purpose, reply) {
            (Purpose::Presence(ask), reply) => self.on_presence_done(ask, reply),
            (Purpose::MarkDead(id, _), Reply::Written(result)) => {
                self.membership.on_marked_dead(&mut self.cx, &id, result);
                self.each_slot(|slot, cx, _| slot.on_member_changed(cx, &id));
            }
            (Purpose::ReadPeer(id), Reply::Member(result)) => self.membership.on_peer_read(&self.cx, &id, result),
            (Purpose::Refresh, Reply::Group(Ok(view))) => self.on_group_view(view),
            (Purpose::PlanBasis, Reply::Group(result)) => {
                if let Ok(view) = &result {
                    self.on_group_view(view.clone());
                }
                self.planner.on_basis(&mut self.cx, &self.membership, &result);
            }
            (Purpose::WritePlan(record, moved), Reply::Written(result)) => {
                self.planner.on_written(&mut self.cx, &record, moved, &result);
                if let Ok(revision) = result {
                    self.on_assignment(Entry {
                        value: Some(record),
                        revision,
                    });
                }
            }
            (Purpose::ReadAssignment, Reply::Assignment(Ok(entry))) => self.on_assignment(entry),
            (Purpose::ReadClaims, Reply::Claims(Ok(claims))) => self.on_claims(&claims),
            (Purpose::Survey, Reply::Survey(result)) => self.on_survey(&result),
            (Purpose::Partition(partition, attempt, ask), reply) => {
                self.with_slot(partition, |slot, cx, around| {
                    if slot.attempt == attempt {
                        slot.on_done(cx, around, ask, reply);
                    }
                });
            }
            // A failed read of what is read again at the next period anyway.
            _ => {}
        }
    }

    fn on_presence_done(&mut self, ask: PresenceAsk, reply: Reply) {
        let cx = &mut self.cx;
        let turn = match (ask, reply) {
            (PresenceAsk::Prepare, Reply::Prepared(result)) => {
                self.presence.on_prepared(cx, result);
                None
            }
            (PresenceAsk::ReadBeforeEntering, Reply::Member(result)) => {
                self.presence.on_read_before_entering(cx, result)
            }
            (PresenceAsk::Bury, Reply::Written(result)) => {
                self.presence.on_buried(cx, result);
                None
            }
            (PresenceAsk::Enter, Reply::Written(result)) => self.presence.on_entered(cx, result),
            (PresenceAsk::Beat(written), Reply::Written(result)) => {
                self.presence.on_beat(cx, written, result);
                None
            }
            (PresenceAsk::ReadBeat, Reply::Member(result)) => self.presence.on_read_beat(cx, result),
            (PresenceAsk::Purge, Reply::Written(result)) => {
                self.presence.on_purged(cx, result);
                None
            }
            _ => None,
        };
        self.take_turn(turn);
    }

    fn take_turn(&mut self, turn: Option<Turn>) {
        match turn {
            Some(Turn::Entered(prepared)) => self.on_entered(prepared),
            Some(Turn::Fenced) => self.on_fenced(),
            None => {}
        }
    }

    fn on_entered(&mut self, prepared: Prepared) {
        if self.prepared.bucket_created != prepared.bucket_created {
            // Another bucket: its revisions start again.
            self.assignment = Entry::absent();
            self.each_slot(|slot, _, _| slot.forget_claim());
        }
        self.prepared = prepared;
        self.watch = WatchHealth::default();
        self.reconcile_at = self.cx.now + self.cx.settings.reconcile_interval;
        self.assignment_at = self.cx.now + self.cx.settings.session_timeout;
        self.cx.ask(Purpose::Refresh, Command::ReadGroup);
    }

    fn on_fenced(&mut self) {
        // Whatever is still under way was asked by an incarnation that is over.
        self.cx.pending.clear();
        self.cx.known = Revision(0);
        self.each_slot(|slot, cx, _| slot.fence(cx));
        self.membership.reset();
        self.planner.reset();
        self.survey.reset();
        self.assignment = Entry::absent();
        self.leave_by = None;
        self.look_again_at = None;
    }

    fn on_group_view(&mut self, view: GroupView) {
        self.membership.forget_gone(&mut self.cx, &view.members);
        self.membership.reconcile(&self.cx, view.members);
        self.on_assignment(view.assignment);
    }

    fn on_claims(&mut self, claims: &BTreeMap<Partition, Entry<ClaimRecord>>) {
        let absent = Entry::absent();
        self.each_slot(|slot, cx, around| {
            let entry = claims.get(&slot.partition).unwrap_or(&absent);
            slot.on_claim_listed(cx, around, entry);
        });
    }

    fn on_survey(&mut self, result: &Result<Survey, Fault>) {
        let Some(asked) = self.survey.answered(&mut self.cx) else {
            return;
        };
        if let Ok(survey) = result
            && survey.stream.created != self.prepared.stream_created
        {
            let turn = self.presence.fence(&mut self.cx, FenceReason::StreamReplaced);
            return self.take_turn(Some(turn));
        }
        for partition in &asked.partitions {
            self.with_slot(*partition, |slot, cx, around| slot.on_survey(cx, around, result));
        }
        match result {
            Ok(survey) if asked.routine => self.each_slot(|slot, cx, _| slot.reconcile(cx, survey, asked.at)),
            // The stream may be away because it is being made anew: nothing else would show that before the next routine look.
            Err(_) if asked.routine => self.look_again_at = Some(self.cx.retry_at()),
            _ => {}
        }
    }

    fn wake_presence(&mut self) {
        let turn = self.presence.on_wake(&mut self.cx);
        self.take_turn(turn);
    }

    /// Everything that follows from the new state and the time, whatever the event was.
    fn settle(&mut self) {
        self.wake_presence();
        if self.in_group() {
            self.membership
                .observe(&self.cx, self.cx.settings.member.clone(), self.presence.entry());
            for incarnation in self.membership.take_rejoined() {
                self.each_slot(|slot, cx, _| slot.absolve(cx, &incarnation));
            }
            self.membership.on_wake(&mut self.cx);
            if self.membership.adjust_watch(&mut self.cx) {
                self.cx.ask(Purpose::Refresh, Command::ReadGroup);
            }
            self.planner.consider(&mut self.cx, &self.membership, &self.assignment);
            self.check_watch();
            self.reconcile();
            self.set_wanted();
            self.each_slot(|slot, cx, around| slot.pump(cx, around));
            self.finish_leaving();
        } else if matches!(self.presence.phase, Phase::Fenced { .. }) {
            if self.slots.iter().all(PartitionSlot::is_idle) {
                self.presence.begin(&mut self.cx);
            } else {
                self.presence.on_still_running(&mut self.cx);
            }
        }
    }

    fn set_wanted(&mut self) {
        let giving_up = self.giving_up();
        let leaving = self.presence.phase == Phase::Leaving;
        let me: &MemberId = &self.cx.settings.member;
        let record = self.assignment.value.as_ref().filter(|_| !giving_up);
        for slot in &mut self.slots {
            // One that leaves keeps what it has until somebody else is to have it, and takes nothing more.
            let may = !leaving || !slot.is_idle();
            let mine = may && record.is_some_and(|record| record.owner(slot.partition) == Some(me));
            slot.wanted = record.filter(|_| mine).map(|record| record.generation);
        }
    }

    /// Whether a leaving member hands everything over now: nobody is there to plan its partitions away, or nobody did.
    fn giving_up(&mut self) -> bool {
        if self.presence.phase != Phase::Leaving {
            return false;
        }
        let patience = self.cx.settings.rebalance_delay * 2 + self.cx.settings.session_timeout / 2;
        let by = *self.leave_by.get_or_insert(self.cx.now + patience);
        self.cx.now >= by || !self.membership.has_successor(&self.cx.settings.member)
    }

    fn finish_leaving(&mut self) {
        if self.presence.phase == Phase::Leaving
            && self.slots.iter().all(|slot| slot.wanted.is_none() && slot.is_idle())
        {
            self.presence.purge(&mut self.cx);
        }
    }

    fn watch_deadline(&self) -> Option<Time> {
        let since = self.watch.behind_since?;
        Some(since + self.cx.settings.session_timeout / 2)
    }

    /// Restarts a watch that does not show the member's own heartbeats any more.
    fn check_watch(&mut self) {
        if self.watch.seen >= self.presence.entry().revision {
            self.watch.behind_since = None;
            return;
        }
        self.watch.behind_since.get_or_insert(self.cx.now);
        if self.watch_deadline().is_some_and(|at| self.cx.now >= at) {
            self.watch.behind_since = Some(self.cx.now);
            self.membership.restart_watch(&mut self.cx);
            self.assignment_at = self.cx.now;
        }
    }

    /// Compares with the leader's records at slow periods, whatever the watch says.
    fn reconcile(&mut self) {
        let now = self.cx.now;
        if now >= self.assignment_at {
            self.assignment_at = now + self.cx.settings.session_timeout;
            self.cx.ask(Purpose::ReadAssignment, Command::ReadAssignment);
        }
        if now >= self.reconcile_at {
            self.reconcile_at = now + self.cx.settings.reconcile_interval;
            self.cx.ask(Purpose::ReadClaims, Command::ReadClaims);
            self.cx.ask(Purpose::Refresh, Command::ReadGroup);
            self.look_at_stream();
        }
        if self.look_again_at.is_some_and(|at| now >= at) {
            self.look_at_stream();
        }
    }

    /// Compares what the stream has with what should be there.
    fn look_at_stream(&mut self) {
        self.look_again_at = None;
        if self.in_group() {
            self.each_slot(|slot, _, _| slot.note_before_survey());
            self.survey.request_routine(&mut self.cx);
        }
    }
}

impl PartitionSlot {
    /// The answer to one of this partition's steps.
    fn on_done(&mut self, cx: &mut Context, around: &mut Surroundings<'_>, ask: PartitionAsk, reply: Reply) {
        match (ask, reply) {
            (PartitionAsk::ReadClaim, Reply::Claim(result)) if matches!(self.stage, Stage::Reading) => {
                self.on_claim_read(cx, around, result);
            }
            (PartitionAsk::ReadOwner(owner), Reply::Member(result)) if matches!(self.stage, Stage::Judging(_)) => {
                self.on_owner_read(cx, around, &owner, result);
            }
            (PartitionAsk::Win(written, over), Reply::Written(result)) if matches!(self.stage, Stage::Winning) => {
                self.on_won(cx, around, &written, over, result);
            }
            (PartitionAsk::Raise, Reply::Written(result)) => self.on_raised(cx, around, result),
            (PartitionAsk::ReadProgress, Reply::Progress(result)) => self.on_progress_read(cx, around, result),
            (PartitionAsk::CloseProgress(written), Reply::Written(result)) => {
                self.on_progress_closed(cx, around, written, result);
            }
            (PartitionAsk::Save(written, changes), Reply::Written(result)) => {
                self.on_progress_written(cx, written, changes, result);
            }
            (PartitionAsk::ReadForSave, Reply::Progress(result)) => self.on_read_for_save(cx, result),
            (PartitionAsk::Release, Reply::Written(result)) => self.on_release_written(cx, result),
            (PartitionAsk::Release, Reply::Claim(result)) => self.on_release_read(cx, around, result),
            (PartitionAsk::Confirm, Reply::Claim(result)) => self.on_confirmed(cx, result),
            (PartitionAsk::FindReplaced(filter), Reply::Replaced(result)) => self.on_checked(cx, &filter, result),
            (PartitionAsk::Inspect(filter, name), Reply::Consumer(result)) => {
                self.on_inspected(cx, &filter, &name, result);
            }
            (PartitionAsk::Create(filter), Reply::Created(result)) => self.on_created(cx, around, &filter, result),
            (PartitionAsk::Delete(filter, name), Reply::Deleted(result)) => {
                self.on_deleted(cx, &filter, &name, result);
            }
            // A sweep that failed is found again by the next listing.
            _ => {}
        }
    }
}
