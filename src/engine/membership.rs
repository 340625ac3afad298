//! The other members as this one sees them: who lives, who is oldest, who has fallen silent.
//!
//! Silence is measured on this member's own clock from when it first saw a revision, so no peer's clock is ever compared.
//! Death is a write at exactly the revision that was seen last: if the silent one has written since, the write fails and it
//! lives. So a stalled watch, or a slow observer, can cost nobody a partition.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, MemberId, Revision};
use crate::records::{Entry, MemberRecord, MemberState, Share};
use crate::time::Time;

use super::command::{Command, WatchScope};
use super::context::{Context, Purpose, earliest};
use super::event::{Fault, WriteFault};
use super::status::Change;

/// How many of the oldest members watch everybody. Everybody watches these, so each of them is watched too.
pub(super) const SENIORS: usize = 3;

/// What is left of a member is removed after this many session timeouts. Until then it tells at once that a claim is free.
const KEPT: u32 = 10;

/// How much is removed after one listing, so that heartbeats need not queue behind it.
const REMOVED_AT_ONCE: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Peer {
    entry: Entry<MemberRecord>,
    /// When this revision was first seen here.
    seen_at: Time,
    /// Whether it was seen since what is watched has changed last. What was known before may be long out of date.
    confirmed: bool,
    /// A write that declares it dead, or the read after a failed one, is under way.
    asking: bool,
}

/// What is known of the group's members.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Membership {
    peers: BTreeMap<MemberId, Peer>,
    /// Incarnations, not the first of their process, that were seen and not yet looked at.
    rejoined: Vec<Incarnation>,
    scope: Option<WatchScope>,
    /// Records of the dead and tombstones of the removed, by revision, and since when each was seen in listings.
    gone: BTreeMap<MemberId, (Revision, Time)>,
}

impl Membership {
    /// Forgets everything: a new incarnation looks anew.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Takes note of a record. Only a newer revision counts, so replays and reordered hints are harmless.
    pub(super) fn observe(&mut self, cx: &Context, id: MemberId, entry: Entry<MemberRecord>) {
        let incarnation = |entry: &Entry<MemberRecord>| entry.value.as_ref().map(|record| record.incarnation.clone());
        let found = incarnation(&entry).filter(Incarnation::is_rejoin);
        match self.peers.get_mut(&id) {
            Some(peer) if peer.entry.revision >= entry.revision => {
                peer.confirmed |= peer.entry.revision == entry.revision;
            }
            Some(peer) => {
                self.rejoined
                    .extend(found.filter(|_| incarnation(&peer.entry) != incarnation(&entry)));
                peer.entry = entry;
                peer.seen_at = cx.now;
                peer.confirmed = true;
            }
            None => {
                self.rejoined.extend(found);
                let peer = Peer {
                    entry,
                    seen_at: cx.now,
                    confirmed: true,
                    asking: false,
                };
                self.peers.insert(id, peer);
            }
        }
    }

    /// Takes note of a full listing from the leader: whoever is not in it, or only as a tombstone, is gone. Nothing is kept of
    /// those that are gone, or a group whose members always have new names would grow for ever.
    pub(super) fn reconcile(&mut self, cx: &Context, members: BTreeMap<MemberId, Entry<MemberRecord>>) {
        let me = &cx.settings.member;
        let listed_up_to = members.values().map(|entry| entry.revision).max();
        for (id, entry) in &members {
            self.observe(cx, id.clone(), entry.clone());
        }
        self.peers.retain(|id, peer| {
            // One that has come since the listing was made is not in it.
            let younger = listed_up_to.is_none_or(|revision| peer.entry.revision > revision);
            id == me || peer.entry.value.is_some() && (younger || members.contains_key(id))
        });
    }

    /// Incarnations that were seen since the last call and show that their process had survived an earlier one.
    pub(super) fn take_rejoined(&mut self) -> Vec<Incarnation> {
        std::mem::take(&mut self.rejoined)
    }

    /// Whether a later life of the process of `incarnation` is known.
    pub(super) fn is_outlived(&self, incarnation: &Incarnation) -> bool {
        let records = self.peers.values().filter_map(|peer| peer.entry.value.as_ref());
        records
            .into_iter()
            .any(|record| record.incarnation.outlives(incarnation))
    }

    /// Removes what has been left of members for long: the dead are removed, then the tombstones, so that a group whose members always
    /// have new names does not grow. The oldest member does it, after a listing. Nothing depends on these: an owner without a record
    /// is as good as dead after a session timeout, and one that wakes finds itself replaced.
    pub(super) fn forget_gone(&mut self, cx: &mut Context, members: &BTreeMap<MemberId, Entry<MemberRecord>>) {
        let before = std::mem::take(&mut self.gone);
        if self.planning_rank(&cx.settings.member) != Some(0) {
            return;
        }
        let is_gone = |entry: &Entry<MemberRecord>| {
            let record = entry.value.as_ref();
            record.is_none_or(|record| record.state == MemberState::Dead)
        };
        for (id, entry) in members.iter().filter(|(_, entry)| is_gone(entry)) {
            let since = before.get(id).filter(|(revision, _)| *revision == entry.revision);
            let since = since.map_or(cx.now, |(_, since)| *since);
            self.gone.insert(id.clone(), (entry.revision, since));
        }
        let (now, keep) = (cx.now, cx.settings.session_timeout * KEPT);
        let old = self.gone.iter().filter(|(_, (_, since))| now.since(*since) >= keep);
        for (id, &(revision, _)) in old.take(REMOVED_AT_ONCE) {
            cx.ask(Purpose::Forget(id.clone()), |ticket| {
                Command::PurgeMember(ticket, id.clone(), revision)
            });
        }
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.peers.len()
    }

    /// Whether the newest known revision of `id` was first seen a full session timeout ago, and is still there.
    pub(super) fn is_silent(&self, cx: &Context, id: &MemberId) -> bool {
        self.peers
            .get(id)
            .is_some_and(|peer| peer.confirmed && cx.now.since(peer.seen_at) >= cx.settings.session_timeout)
    }

    /// The ids of those that are in the group, oldest first.
    fn by_age(&self, counts: impl Fn(MemberState) -> bool) -> Vec<(&MemberId, &MemberRecord)> {
        let mut members: Vec<_> = self
            .peers
            .iter()
            .filter_map(|(id, peer)| peer.entry.value.as_ref().map(|record| (id, record)))
            .filter(|(_, record)| counts(record.state))
            .collect();
        // A member whose age is not written yet counts as youngest.
        members.sort_by_key(|(id, record)| (record.joined.unwrap_or(Revision(u64::MAX)), *id));
        members
    }

    /// The oldest members, which watch everybody.
    fn seniors(&self) -> Vec<MemberId> {
        let living = self.by_age(|state| state != MemberState::Dead);
        living.into_iter().take(SENIORS).map(|(id, _)| id.clone()).collect()
    }

    /// The position of `id` among the members that can plan, oldest first; `None` when it is none of the seniors.
    pub(super) fn planning_rank(&self, id: &MemberId) -> Option<u32> {
        let active = self.by_age(|state| state == MemberState::Active);
        let rank = active.iter().take(SENIORS).position(|(other, _)| *other == id)?;
        u32::try_from(rank).ok()
    }

    /// The members that partitions may be assigned to, sorted by id.
    pub(super) fn shares(&self) -> Vec<Share> {
        self.peers
            .iter()
            .filter_map(|(id, peer)| {
                let record = peer.entry.value.as_ref()?;
                (record.state == MemberState::Active).then(|| Share {
                    id: id.clone(),
                    weight: record.weight,
                })
            })
            .collect()
    }

    /// Whether any other active member is known.
    pub(super) fn has_successor(&self, me: &MemberId) -> bool {
        self.shares().iter().any(|share| share.id != *me)
    }

    /// Adapts what is watched to who is oldest. Returns whether that has changed: the group must then be read anew, for who is next is
    /// not seen by a member that does not watch everybody, and who has been silent all along by none.
    pub(super) fn adjust_watch(&mut self, cx: &mut Context) -> bool {
        let seniors = self.seniors();
        let me = cx.settings.member.clone();
        let scope = if seniors.contains(&me) {
            WatchScope::AllMembers
        } else {
            let mut ids = seniors;
            ids.push(me);
            ids.sort();
            WatchScope::Members(ids)
        };
        if self.scope.as_ref() == Some(&scope) {
            return false;
        }
        let had_scope = self.scope.is_some();
        self.scope = Some(scope.clone());
        // What is newly watched may be known from long ago. The new watch, or the listing that follows, shows whether it has been
        // silent since: many that died together are then given up one set of observers after the other, without waiting for each.
        for peer in self.peers.values_mut() {
            peer.confirmed = false;
        }
        cx.tell(Command::Watch(scope));
        had_scope
    }

    /// Starts the watch again with the same scope.
    pub(super) fn restart_watch(&self, cx: &mut Context) {
        if let Some(scope) = &self.scope {
            cx.tell(Command::Watch(scope.clone()));
        }
    }

    fn watches(&self, id: &MemberId) -> bool {
        match &self.scope {
            None => false,
            Some(WatchScope::AllMembers) => true,
            Some(WatchScope::Members(ids)) => ids.contains(id),
        }
    }

    /// Whether `peer` may be declared dead once it has been silent for long enough.
    fn is_mortal(peer: &Peer) -> bool {
        let living = |record: &MemberRecord| record.state != MemberState::Dead;
        !peer.asking && peer.confirmed && peer.entry.value.as_ref().is_some_and(living)
    }

    pub(super) fn deadline(&self, cx: &Context) -> Option<Time> {
        self.peers
            .iter()
            .filter(|(id, peer)| **id != cx.settings.member && self.watches(id) && Self::is_mortal(peer))
            .map(|(_, peer)| peer.seen_at + cx.settings.session_timeout)
            .fold(None, |least, at| earliest(least, Some(at)))
    }

    /// Declares dead every watched member that has been silent for a session timeout.
    pub(super) fn on_wake(&mut self, cx: &mut Context) {
        let silent: Vec<MemberId> = self
            .peers
            .keys()
            .filter(|id| **id != cx.settings.member && self.watches(id) && self.is_silent(cx, id))
            .cloned()
            .collect();
        for id in silent {
            self.declare_dead(cx, &id);
        }
    }

    /// Writes `id` as dead at exactly the revision known here. Does nothing if that is under way, or it is dead or gone.
    pub(super) fn declare_dead(&mut self, cx: &mut Context, id: &MemberId) {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| Self::is_mortal(peer)) else {
            return;
        };
        let Some(mut record) = peer.entry.value.clone() else {
            return;
        };
        peer.asking = true;
        record.state = MemberState::Dead;
        let revision = peer.entry.revision;
        let purpose = Purpose::MarkDead(id.clone(), record.incarnation.clone());
        cx.ask(purpose, |ticket| {
            Command::WriteMember(ticket, id.clone(), record, revision)
        });
    }

    pub(super) fn on_marked_dead(&mut self, cx: &mut Context, id: &MemberId, result: Result<Revision, WriteFault>) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        match result {
            Ok(revision) => {
                peer.asking = false;
                // The watch may have shown its next life already.
                if peer.entry.revision < revision {
                    peer.entry.revision = revision;
                    peer.seen_at = cx.now;
                    if let Some(record) = &mut peer.entry.value {
                        record.state = MemberState::Dead;
                    }
                }
                cx.notify(Change::DeclaredDead { member: id.clone() });
            }
            // It has written since, or nothing is known: what the leader says starts its time anew.
            Err(_) => cx.ask(Purpose::ReadPeer(id.clone()), |ticket| {
                Command::ReadMember(ticket, id.clone())
            }),
        }
    }

    pub(super) fn on_peer_read(&mut self, cx: &Context, id: &MemberId, result: Result<Entry<MemberRecord>, Fault>) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.asking = false;
            peer.seen_at = cx.now;
            peer.confirmed = true;
        }
        if let Ok(entry) = result {
            self.observe(cx, id.clone(), entry);
        }
    }
}
