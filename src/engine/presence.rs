//! The member's own record: entering the group, the heartbeat and the lease it keeps alive, fencing, leaving.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, Revision};
use crate::records::{Entry, MemberRecord, MemberState};
use crate::time::Time;

use super::command::Command;
use super::context::{Context, PresenceAsk, Purpose, earliest};
use super::event::{Fault, Prepared, WriteFault};
use super::status::{Change, FenceReason, Refusal, Stop};

/// Where a member stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Nothing was done yet.
    New,
    /// An answer about the bucket or the own record is awaited.
    Asking,
    /// The last step failed; it is tried again from the start.
    Pausing(Time),
    /// Another incarnation of this id was seen at this revision and must prove that it is alive.
    Observing {
        revision: Revision,
        record: MemberRecord,
        since: Time,
        read_at: Option<Time>,
    },
    /// In the group.
    Active,
    /// In the group, on the way out.
    Leaving,
    /// Cut off; the old handlers end.
    Fenced { overrun_at: Option<Time> },
    /// Ended.
    Stopped,
}

/// What the rest of the engine must do after a step of the presence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// The member has entered the group.
    Entered(Prepared),
    /// The member has cut itself off: drop every partition.
    Fenced,
}

/// The member's own record and its lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Presence {
    pub(super) phase: Phase,
    incarnation_seed: String,
    incarnations: u32,
    record: MemberRecord,
    prepared: Option<Prepared>,
    revision: Revision,
    /// When the newest heartbeat known to have taken effect was sent: the lease runs from here.
    confirmed_sent: Time,
    /// When beats without an answer yet were sent.
    sent: BTreeMap<u64, Time>,
    in_flight: bool,
    next_beat_at: Time,
    leave_requested: bool,
    purge_requested: bool,
}

impl Presence {
    pub(super) fn new(cx: &Context, incarnation_seed: String) -> Self {
        Self {
            phase: Phase::New,
            incarnation_seed,
            incarnations: 0,
            record: MemberRecord {
                incarnation: Incarnation(String::new()),
                beat: 0,
                joined: None,
                weight: cx.settings.weight,
                state: MemberState::Active,
                address: cx.settings.address.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            prepared: None,
            revision: Revision(0),
            confirmed_sent: Time::ZERO,
            sent: BTreeMap::new(),
            in_flight: false,
            next_beat_at: Time::ZERO,
            leave_requested: false,
            purge_requested: false,
        }
    }

    pub(super) fn incarnation(&self) -> &Incarnation {
        &self.record.incarnation
    }

    /// The own record as others see it.
    pub(super) fn entry(&self) -> Entry<MemberRecord> {
        Entry {
            value: Some(self.record.clone()),
            revision: self.revision,
        }
    }

    /// Whether the member takes part and its lease is in force: the check before every dispatch.
    pub(super) fn lease_valid(&self, cx: &Context, now: Time) -> bool {
        matches!(self.phase, Phase::Active | Phase::Leaving) && now < self.lease_end(cx)
    }

    /// When the member must have cut itself off unless a heartbeat is confirmed.
    pub(super) fn lease_end(&self, cx: &Context) -> Time {
        let lease = cx.settings.session_timeout.saturating_sub(cx.settings.lease_margin);
        self.confirmed_sent + lease
    }

    pub(super) fn deadline(&self, cx: &Context) -> Option<Time> {
        match &self.phase {
            Phase::New | Phase::Asking | Phase::Stopped => None,
            Phase::Pausing(at) => Some(*at),
            Phase::Observing { read_at, .. } => *read_at,
            Phase::Active | Phase::Leaving => {
                let beat = (!self.in_flight).then_some(self.next_beat_at);
                earliest(Some(self.lease_end(cx)), beat)
            }
            Phase::Fenced { overrun_at } => *overrun_at,
        }
    }

    /// Begins to enter the group as a new incarnation.
    pub(super) fn begin(&mut self, cx: &mut Context) {
        if self.leave_requested {
            return self.stop(cx, Stop::Left);
        }
        self.incarnations += 1;
        self.record.incarnation = Incarnation::new(&self.incarnation_seed, self.incarnations);
        self.record.beat = 0;
        self.record.joined = None;
        self.record.state = MemberState::Active;
        self.sent.clear();
        self.in_flight = false;
        self.prepare(cx);
    }

    fn prepare(&mut self, cx: &mut Context) {
        if self.leave_requested {
            // Asked for while an answer was awaited that has failed: there is nothing to hand over.
            return self.stop(cx, Stop::Left);
        }
        self.phase = Phase::Asking;
        cx.ask(Purpose::Presence(PresenceAsk::Prepare), Command::Prepare);
    }

    fn read_before_entering(&mut self, cx: &mut Context) {
        self.phase = Phase::Asking;
        let id = cx.settings.member.clone();
        cx.ask(Purpose::Presence(PresenceAsk::ReadBeforeEntering), |ticket| {
            Command::ReadMember(ticket, id)
        });
    }

    pub(super) fn on_prepared(&mut self, cx: &mut Context, result: Result<Prepared, Refusal>) {
        match result {
            Ok(prepared) => {
                self.prepared = Some(prepared);
                self.read_before_entering(cx);
            }
            Err(Refusal::Retry(_)) => self.phase = Phase::Pausing(cx.retry_at()),
            Err(Refusal::Final(reason)) => self.stop(cx, Stop::Refused(reason)),
        }
    }

    /// The own key was read before entering, or while a predecessor was observed.
    pub(super) fn on_read_before_entering(
        &mut self,
        cx: &mut Context,
        result: Result<Entry<MemberRecord>, Fault>,
    ) -> Option<Turn> {
        let Ok(entry) = result else {
            self.retry_read(cx);
            return None;
        };
        if self.leave_requested {
            self.stop(cx, Stop::Left);
            return None;
        }
        if matches!(self.phase, Phase::Observing { revision, .. } if entry.revision < revision) {
            // The bucket is another one than was prepared, and tokens are made from its date.
            self.prepare(cx);
            return None;
        }
        let Some(found) = entry.value else {
            self.enter(cx, entry.revision);
            return None;
        };
        if found.incarnation == self.record.incarnation && found.state != MemberState::Dead {
            // The first write was thought lost and has landed.
            return self.adopt(cx, found, entry.revision);
        }
        if found.incarnation == self.record.incarnation {
            // Declared dead before it had entered. An incarnation never rises again: take the next one.
            self.begin(cx);
            return None;
        }
        let own_past = found.incarnation.is_same_process(&self.record.incarnation);
        if found.state == MemberState::Dead || own_past {
            // A dead one is given up already; our own former incarnations have ended their handlers.
            self.enter(cx, entry.revision);
            return None;
        }
        self.observe(cx, found, entry.revision);
        None
    }

    fn retry_read(&mut self, cx: &Context) {
        let at = cx.retry_at();
        let patience = cx.settings.session_timeout * 2;
        match &mut self.phase {
            // Not for ever: the bucket may be gone, and only preparing makes it anew.
            Phase::Observing { read_at, since, .. } if cx.now.since(*since) < patience => *read_at = Some(at),
            phase => *phase = Phase::Pausing(at),
        }
    }

    /// Another process bears our id. If it writes again it is alive; if it does not for a session timeout it is dead.
    fn observe(&mut self, cx: &mut Context, found: MemberRecord, seen: Revision) {
        let next_read = cx.now + cx.settings.heartbeat_interval;
        match &mut self.phase {
            Phase::Observing { revision, .. } if *revision != seen => {
                self.stop(
                    cx,
                    Stop::Duplicate {
                        incarnation: found.incarnation,
                    },
                );
            }
            Phase::Observing {
                revision,
                record,
                since,
                read_at,
            } => {
                if cx.now.since(*since) < cx.settings.session_timeout {
                    *read_at = Some(next_read.min(*since + cx.settings.session_timeout));
                    return;
                }
                let mut dead = record.clone();
                dead.state = MemberState::Dead;
                let (id, revision) = (cx.settings.member.clone(), *revision);
                *read_at = None;
                cx.ask(Purpose::Presence(PresenceAsk::Bury), |ticket| {
                    Command::WriteMember(ticket, id, dead, revision)
                });
            }
            phase => {
                *phase = Phase::Observing {
                    revision: seen,
                    record: found.clone(),
                    since: cx.now,
                    read_at: Some(next_read),
                };
                cx.notify(Change::AwaitingPredecessor {
                    incarnation: found.incarnation,
                });
            }
        }
    }

    pub(super) fn on_buried(&mut self, cx: &mut Context, result: Result<Revision, WriteFault>) {
        match result {
            Ok(revision) => self.enter(cx, revision),
            // It wrote after all, or our write is on its way: the next read tells.
            Err(_) => self.retry_read(cx),
        }
    }

    fn enter(&mut self, cx: &mut Context, expected: Revision) {
        self.phase = Phase::Asking;
        self.record.beat += 1;
        self.sent.insert(self.record.beat, cx.now);
        let (id, record) = (cx.settings.member.clone(), self.record.clone());
        cx.ask(Purpose::Presence(PresenceAsk::Enter), |ticket| {
            Command::WriteMember(ticket, id, record, expected)
        });
    }

    pub(super) fn on_entered(&mut self, cx: &mut Context, result: Result<Revision, WriteFault>) -> Option<Turn> {
        match result {
            Ok(revision) => self.adopt(cx, self.record.clone(), revision),
            Err(_) => {
                self.phase = Phase::Pausing(cx.retry_at());
                None
            }
        }
    }

    /// The own record is known to stand at `revision`: a heartbeat is confirmed. The lease runs from when it was sent.
    fn adopt(&mut self, cx: &mut Context, found: MemberRecord, revision: Revision) -> Option<Turn> {
        if let Some(&sent) = self.sent.get(&found.beat) {
            self.confirmed_sent = self.confirmed_sent.max(sent);
        }
        self.sent.retain(|&beat, _| beat > found.beat);
        self.revision = revision;
        cx.known = revision;
        self.in_flight = false;
        if matches!(self.phase, Phase::Active | Phase::Leaving) {
            // What has changed since that heartbeat was sent is written at once.
            let behind = found.state != self.record.state || found.joined != self.record.joined || self.purge_requested;
            self.next_beat_at = if behind {
                cx.now
            } else {
                self.confirmed_sent + cx.settings.heartbeat_interval
            };
            return None;
        }
        self.record.joined = Some(revision);
        self.next_beat_at = cx.now;
        self.phase = Phase::Active;
        cx.notify(Change::Joined {
            incarnation: self.record.incarnation.clone(),
        });
        self.apply_leave(cx);
        self.prepared.clone().map(Turn::Entered)
    }

    /// Time has passed.
    pub(super) fn on_wake(&mut self, cx: &mut Context) -> Option<Turn> {
        match &mut self.phase {
            Phase::Pausing(at) if cx.now >= *at => self.prepare(cx),
            Phase::Observing { read_at, .. } if read_at.is_some_and(|at| cx.now >= at) => {
                *read_at = None;
                let id = cx.settings.member.clone();
                cx.ask(Purpose::Presence(PresenceAsk::ReadBeforeEntering), |ticket| {
                    Command::ReadMember(ticket, id)
                });
            }
            Phase::Active | Phase::Leaving => {
                if cx.now >= self.lease_end(cx) {
                    return Some(self.fence(cx, FenceReason::LeaseExpired));
                }
                if !self.in_flight && cx.now >= self.next_beat_at {
                    self.beat(cx);
                }
            }
            _ => {}
        }
        None
    }

    fn beat(&mut self, cx: &mut Context) {
        self.in_flight = true;
        let (id, revision) = (cx.settings.member.clone(), self.revision);
        if self.purge_requested {
            cx.ask(Purpose::Presence(PresenceAsk::Purge), |ticket| {
                Command::PurgeMember(ticket, id, revision)
            });
            return;
        }
        self.record.beat += 1;
        self.sent.insert(self.record.beat, cx.now);
        let record = self.record.clone();
        cx.ask(Purpose::Presence(PresenceAsk::Beat(record.clone())), |ticket| {
            Command::WriteMember(ticket, id, record, revision)
        });
    }

    pub(super) fn on_beat(&mut self, cx: &mut Context, written: MemberRecord, result: Result<Revision, WriteFault>) {
        match result {
            Ok(revision) => {
                self.adopt(cx, written, revision);
            }
            // Rejected or unanswered: what stands in the key decides, and nothing else.
            Err(_) => self.read_beat(cx),
        }
    }

    fn read_beat(&mut self, cx: &mut Context) {
        self.in_flight = true;
        let id = cx.settings.member.clone();
        cx.ask(Purpose::Presence(PresenceAsk::ReadBeat), |ticket| {
            Command::ReadMember(ticket, id)
        });
    }

    pub(super) fn on_read_beat(
        &mut self,
        cx: &mut Context,
        result: Result<Entry<MemberRecord>, Fault>,
    ) -> Option<Turn> {
        match result {
            Ok(entry) => {
                self.in_flight = false;
                let turn = self.on_own_record(cx, entry);
                // Soon, but never at once: a server that refuses writes and answers reads must not be hammered.
                self.next_beat_at = cx.retry_at();
                turn
            }
            Err(_) => {
                self.in_flight = false;
                self.next_beat_at = cx.retry_at();
                None
            }
        }
    }

    /// The own key was read from the leader while the member was in the group.
    fn on_own_record(&mut self, cx: &mut Context, entry: Entry<MemberRecord>) -> Option<Turn> {
        match entry.value {
            Some(found) if found.incarnation == self.record.incarnation => {
                if found.state == MemberState::Dead {
                    return Some(self.fence(cx, FenceReason::DeclaredDead));
                }
                self.adopt(cx, found, entry.revision)
            }
            None if self.purge_requested => {
                self.stop(cx, Stop::Left);
                None
            }
            _ => Some(self.fence(cx, FenceReason::Replaced)),
        }
    }

    /// The watch showed the own key. Only bad news counts: good news is what the heartbeat's own answer is for.
    pub(super) fn on_own_seen(&mut self, cx: &mut Context, entry: &Entry<MemberRecord>) -> Option<Turn> {
        let newer = entry.revision > self.revision;
        if !newer || !matches!(self.phase, Phase::Active | Phase::Leaving) || self.purge_requested {
            return None;
        }
        match &entry.value {
            Some(found) if found.incarnation == self.record.incarnation && found.state != MemberState::Dead => None,
            Some(found) if found.incarnation == self.record.incarnation => {
                Some(self.fence(cx, FenceReason::DeclaredDead))
            }
            _ => Some(self.fence(cx, FenceReason::Replaced)),
        }
    }

    /// Handlers of a fenced member still run: said once, when the lease is over that others grant it.
    pub(super) fn on_still_running(&mut self, cx: &mut Context) {
        match &mut self.phase {
            Phase::Fenced { overrun_at } if overrun_at.is_some_and(|at| cx.now >= at) => {
                *overrun_at = None;
                cx.tell(Command::Overrun);
            }
            _ => {}
        }
    }

    pub(super) fn fence(&mut self, cx: &mut Context, reason: FenceReason) -> Turn {
        let overrun_at = self.confirmed_sent + cx.settings.session_timeout;
        self.phase = Phase::Fenced {
            overrun_at: Some(overrun_at),
        };
        self.in_flight = false;
        self.purge_requested = false;
        cx.notify(Change::Fenced { reason });
        Turn::Fenced
    }

    /// The service wants to leave.
    pub(super) fn leave(&mut self, cx: &mut Context) {
        self.leave_requested = true;
        self.apply_leave(cx);
    }

    fn apply_leave(&mut self, cx: &mut Context) {
        if !self.leave_requested {
            return;
        }
        match &self.phase {
            Phase::Active => {
                self.phase = Phase::Leaving;
                self.record.state = MemberState::Leaving;
                self.next_beat_at = cx.now;
                if !self.in_flight {
                    self.beat(cx);
                }
            }
            Phase::New | Phase::Pausing(_) | Phase::Observing { .. } => self.stop(cx, Stop::Left),
            // An answer is on its way, or handlers still run: seen to when they are done.
            Phase::Asking | Phase::Leaving | Phase::Fenced { .. } | Phase::Stopped => {}
        }
    }

    /// Nothing is held any more: the record can go.
    pub(super) fn purge(&mut self, cx: &mut Context) {
        if self.phase == Phase::Leaving && !self.purge_requested {
            self.purge_requested = true;
            self.next_beat_at = cx.now;
            if !self.in_flight {
                self.beat(cx);
            }
        }
    }

    pub(super) fn on_purged(&mut self, cx: &mut Context, result: Result<Revision, WriteFault>) {
        match result {
            Ok(_) => self.stop(cx, Stop::Left),
            Err(_) => self.read_beat(cx),
        }
    }

    fn stop(&mut self, cx: &mut Context, stop: Stop) {
        self.phase = Phase::Stopped;
        cx.tell(Command::Stop(stop));
    }
}
