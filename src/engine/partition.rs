//! One partition from this member's side, up to winning its claim.
//!
//! A claim is taken only on positive evidence, and always by compare-and-set: it was released; or the owner's record, read
//! from the leader after the claim was read, says that this incarnation is dead or has been replaced; or there is no record
//! and a full session timeout has passed. What happens after the win is in [`tenure`](super::tenure).

use crate::ids::{FencingToken, Generation, Incarnation, MemberId, Partition, Revision};
use crate::names::ConsumerName;
use crate::records::{ClaimRecord, ClaimState, Entry, MemberRecord, MemberState};
use crate::time::Time;

use super::command::Command;
use super::context::{Context, PartitionAsk, Purpose, earliest};
use super::event::{Fault, Survey, WriteFault};
use super::membership::Membership;
use super::status::Change;
use super::survey::SurveyDesk;
use super::tenure::Tenure;

/// What a partition's steps need to know of the rest of the member.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) incarnation: &'a Incarnation,
    pub(super) bucket_created: u64,
    pub(super) start_sequence: u64,
    /// Until then no claim is taken that was not seen being released: the server may have come back with old records.
    pub(super) quarantine_until: Option<Time>,
    pub(super) membership: &'a mut Membership,
    pub(super) survey: &'a mut SurveyDesk,
}

/// How far the partition is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Not this member's, nothing under way.
    Idle,
    /// The claim is being read.
    Reading,
    /// The record of the owner of the claim at this revision is being read.
    Judging(Revision),
    /// The claim is absent: are there consumers of the group, whose owner may still run?
    Surveying,
    /// It cannot be taken yet; looked at again at the given time, or when a hint comes.
    Waiting(Time),
    /// The claim is being written.
    Winning,
    /// The claim is this member's.
    Held(Box<Tenure>),
    /// The claim is lost; handlers still end.
    Ending(FencingToken),
}

/// The tenure before this one, if the process that held it is taken to be dead. What it had started may have killed it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Died {
    pub(super) incarnation: Incarnation,
    pub(super) token: FencingToken,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartitionSlot {
    pub(super) partition: Partition,
    /// The generation that assigns it to this member.
    pub(super) wanted: Option<Generation>,
    pub(super) stage: Stage,
    /// Counts abandoned steps, so that their answers are recognised.
    pub(super) attempt: u32,
    /// The newest claim known here.
    claim: Entry<ClaimRecord>,
    /// Whether a hint about the claim came since it was last asked for: then the answer may be the older of the two.
    hinted: bool,
    /// Whether this member itself saw the newest claim go from held to released.
    saw_release: bool,
    /// Since when the claim, or its owner's record, has been missing at this claim revision.
    missing_since: Option<(Revision, Time)>,
    told_waiting: bool,
    /// The claim that could not be written over last, because it was not the newest.
    refused: Option<Revision>,
    /// Whom the claim was taken from last, if that was because of a death.
    died: Option<Died>,
}

impl PartitionSlot {
    pub(super) fn new(partition: Partition) -> Self {
        Self {
            partition,
            wanted: None,
            stage: Stage::Idle,
            attempt: 0,
            claim: Entry::absent(),
            hinted: false,
            saw_release: false,
            missing_since: None,
            told_waiting: false,
            refused: None,
            died: None,
        }
    }

    /// Whether nothing of it is held or running here.
    pub(super) fn is_idle(&self) -> bool {
        !matches!(self.stage, Stage::Held(_) | Stage::Ending(_) | Stage::Winning)
    }

    pub(super) fn ask(
        &self,
        cx: &mut Context,
        ask: PartitionAsk,
        command: impl FnOnce(super::command::Ticket) -> Command,
    ) {
        cx.ask(Purpose::Partition(self.partition, self.attempt, ask), command);
    }

    pub(super) fn deadline(&self, cx: &Context) -> Option<Time> {
        match &self.stage {
            Stage::Waiting(until) => Some(*until),
            Stage::Held(tenure) => tenure.deadline(cx),
            _ => None,
        }
    }

    /// Brings the partition closer to what is wanted.
    pub(super) fn pump(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        match (&self.stage, self.wanted) {
            (Stage::Idle, Some(_)) => self.begin(cx, around),
            // A write that was given up has landed. Nobody else can take it while this member lives: give it back.
            (Stage::Idle, None) if self.claim_is_mine(cx, around.incarnation) => self.adopt(cx, around),
            (Stage::Reading | Stage::Judging(_) | Stage::Surveying | Stage::Waiting(_), None) => self.abandon(),
            (Stage::Waiting(until), Some(_)) if cx.now >= *until => self.read_claim(cx),
            (Stage::Held(_), _) => self.pump_tenure(cx, around),
            _ => {}
        }
    }

    fn abandon(&mut self) {
        self.attempt += 1;
        self.stage = Stage::Idle;
    }

    fn begin(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        self.told_waiting = false;
        let released = matches!(&self.claim.value, Some(claim) if claim.state == ClaimState::Released);
        if released {
            // A hint is enough to try: the compare-and-set decides.
            self.judge(cx, around);
        } else {
            self.read_claim(cx);
        }
    }

    pub(super) fn read_claim(&mut self, cx: &mut Context) {
        self.stage = Stage::Reading;
        self.hinted = false;
        let partition = self.partition;
        self.ask(cx, PartitionAsk::ReadClaim, |ticket| {
            Command::ReadClaim(ticket, partition)
        });
    }

    pub(super) fn wait(&mut self, until: Time) {
        self.stage = Stage::Waiting(until);
    }

    /// Takes note of a claim. Only a newer revision counts. Returns whether it was news.
    pub(super) fn see_claim(&mut self, entry: &Entry<ClaimRecord>) -> bool {
        if entry.revision <= self.claim.revision {
            return false;
        }
        let state = |entry: &Entry<ClaimRecord>| entry.value.as_ref().map(|claim| claim.state);
        self.saw_release = state(&self.claim) == Some(ClaimState::Held) && state(entry) == Some(ClaimState::Released);
        self.claim = entry.clone();
        true
    }

    /// Forgets the claim: the bucket may be another one.
    pub(super) fn forget_claim(&mut self) {
        self.claim = Entry::absent();
        self.saw_release = false;
        self.missing_since = None;
        self.died = None;
    }

    /// The watch, or a listing, showed a claim.
    pub(super) fn on_claim_seen(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        entry: &Entry<ClaimRecord>,
    ) {
        if !self.see_claim(entry) {
            return;
        }
        self.hinted = true;
        match &self.stage {
            Stage::Waiting(_) => self.judge(cx, around),
            Stage::Held(tenure) if tenure.is_contradicted_by(entry, cx, around.incarnation) => self.confirm_claim(cx),
            _ => {}
        }
    }

    /// A listing of all claims from the leader showed this one. Unlike a hint it also finds a claim that is this
    /// member's without its knowing: a write that was thought lost has landed.
    pub(super) fn on_claim_listed(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        entry: &Entry<ClaimRecord>,
    ) {
        self.on_claim_seen(cx, around, entry);
        let current = self.claim.revision == entry.revision;
        match &self.stage {
            Stage::Idle if current && self.claim_is_mine(cx, around.incarnation) => self.adopt(cx, around),
            Stage::Held(tenure) if tenure.is_contradicted_by(entry, cx, around.incarnation) => self.confirm_claim(cx),
            _ => {}
        }
    }

    /// Something is new about the member `id`: a claim of its may be free now.
    pub(super) fn on_member_changed(&mut self, cx: &mut Context, id: &MemberId) {
        let owned = self.claim.value.as_ref().is_some_and(|claim| claim.owner == *id);
        if owned && matches!(self.stage, Stage::Waiting(_)) {
            self.read_claim(cx);
        }
    }

    pub(super) fn on_claim_read(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        result: Result<Entry<ClaimRecord>, Fault>,
    ) {
        match result {
            // Taking the older one for the truth would mean to wait for a release that was already seen.
            Ok(entry) if entry.revision < self.claim.revision && self.hinted => self.read_claim(cx),
            Ok(entry) => {
                // The leader's word replaces whatever an earlier hint said, for that may be from a bucket that is no more.
                if !self.see_claim(&entry) && entry.revision < self.claim.revision {
                    self.claim = entry;
                    self.saw_release = false;
                }
                self.judge(cx, around);
            }
            Err(_) => self.wait(cx.retry_at()),
        }
    }

    fn claim_is_mine(&self, cx: &Context, incarnation: &Incarnation) -> bool {
        self.claim.value.as_ref().is_some_and(|claim| {
            claim.state == ClaimState::Held && claim.owner == cx.settings.member && claim.incarnation == *incarnation
        })
    }

    /// Decides from the newest claim.
    fn judge(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        if self.claim_is_mine(cx, around.incarnation) {
            return self.adopt(cx, around);
        }
        match &self.claim.value {
            None => {
                self.stage = Stage::Surveying;
                around.survey.request(cx, self.partition);
            }
            Some(claim) if claim.state == ClaimState::Released => self.take_when_allowed(cx, around, None),
            Some(claim) => {
                let owner = claim.owner.clone();
                self.stage = Stage::Judging(self.claim.revision);
                self.ask(cx, PartitionAsk::ReadOwner(owner.clone()), |ticket| {
                    Command::ReadMember(ticket, owner)
                });
            }
        }
    }

    /// The record of the claim's owner was read, after the claim was.
    pub(super) fn on_owner_read(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        owner: &MemberId,
        result: Result<Entry<MemberRecord>, Fault>,
    ) {
        let Ok(entry) = result else {
            return self.wait(cx.retry_at());
        };
        around.membership.observe(cx, owner.clone(), entry.clone());
        let judged = matches!(self.stage, Stage::Judging(revision) if revision == self.claim.revision);
        let Some(claim) = self.claim.value.as_ref().filter(|_| judged) else {
            // A newer claim came in between, about which this record says nothing: it may be of the owner's former life.
            return self.judge(cx, around);
        };
        match entry.value {
            Some(record) if record.incarnation != claim.incarnation || record.state == MemberState::Dead => {
                // Another life of the same process: it was fenced, and has ended its handlers by itself.
                let survived =
                    record.incarnation != claim.incarnation && record.incarnation.is_same_process(&claim.incarnation);
                let died = (!survived).then(|| claim.incarnation.clone());
                self.take_when_allowed(cx, around, died);
            }
            Some(_) => {
                if around.membership.is_silent(cx, owner) {
                    around.membership.declare_dead(cx, owner);
                }
                self.tell_waiting(cx, Some(owner.clone()));
                self.wait(cx.now + cx.settings.heartbeat_interval);
            }
            None => self.take_after_absence(cx, around, Some(owner.clone())),
        }
    }

    /// The claim is absent, and the listing says whether anybody may still run: consumers of the partition, or any from before
    /// this bucket, whose claims went with the bucket they were in. Others are of members that start at the same time.
    pub(super) fn on_survey_before_taking(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        survey: &Result<Survey, Fault>,
    ) {
        match survey {
            Err(_) => self.wait(cx.retry_at()),
            Ok(survey) => {
                let ours = |name: &ConsumerName| name.partition == self.partition;
                let older = |name: &ConsumerName| name.epoch.token.0 < around.bucket_created;
                if survey.consumers.iter().any(|name| ours(name) || older(name)) {
                    self.take_after_absence(cx, around, None);
                } else {
                    self.take_when_allowed(cx, around, None);
                }
            }
        }
    }

    /// Nothing says that the former owner is dead: a full session timeout has to pass without it showing up.
    fn take_after_absence(&mut self, cx: &mut Context, around: &mut Surroundings<'_>, owner: Option<MemberId>) {
        let revision = self.claim.revision;
        let since = match self.missing_since {
            Some((at, since)) if at == revision => since,
            _ => cx.now,
        };
        self.missing_since = Some((revision, since));
        if cx.now.since(since) >= cx.settings.session_timeout {
            // Whoever it was may have died or left: nothing is known, so nothing is blamed.
            self.take_when_allowed(cx, around, None);
        } else {
            self.tell_waiting(cx, owner);
            self.wait(since + cx.settings.session_timeout);
        }
    }

    /// `died` is the incarnation that held it, if it is taken because of its death.
    fn take_when_allowed(&mut self, cx: &mut Context, around: &Surroundings<'_>, died: Option<Incarnation>) {
        match around.quarantine_until {
            Some(until) if cx.now < until && !self.saw_release => self.wait(until),
            _ => self.take(cx, around, died),
        }
    }

    fn tell_waiting(&mut self, cx: &mut Context, owner: Option<MemberId>) {
        if !std::mem::replace(&mut self.told_waiting, true) {
            cx.notify(Change::Waiting {
                partition: self.partition,
                owner,
            });
        }
    }

    /// Writes the claim, with a least token above the one it had.
    fn take(&mut self, cx: &mut Context, around: &Surroundings<'_>, died: Option<Incarnation>) {
        let Some(generation) = self.wanted else {
            return self.abandon();
        };
        let revision = self.claim.revision;
        if self.refused.take() == Some(revision) {
            // The leader refuses it and shows it: whatever the reason, trying again at once would be hot.
            return self.wait(cx.retry_at());
        }
        let former = self
            .claim
            .value
            .as_ref()
            .map_or(FencingToken(0), |claim| claim.token_at(revision, around.bucket_created));
        self.died = died.map(|incarnation| Died {
            incarnation,
            token: former,
        });
        let record = ClaimRecord {
            owner: cx.settings.member.clone(),
            incarnation: around.incarnation.clone(),
            generation,
            state: ClaimState::Held,
            token: FencingToken(former.0 + 1),
        };
        self.stage = Stage::Winning;
        let partition = self.partition;
        self.ask(cx, PartitionAsk::Win(record.clone(), revision), |ticket| {
            Command::WriteClaim(ticket, partition, record, revision)
        });
    }

    /// The claim was written, or was not.
    pub(super) fn on_won(
        &mut self,
        cx: &mut Context,
        around: &mut Surroundings<'_>,
        written: &ClaimRecord,
        over: Revision,
        result: Result<Revision, WriteFault>,
    ) {
        match result {
            Ok(revision) => {
                self.see_claim(&Entry {
                    value: Some(written.clone()),
                    revision,
                });
                if self.claim_is_mine(cx, around.incarnation) {
                    self.adopt(cx, around);
                } else {
                    self.read_claim(cx);
                }
            }
            Err(WriteFault::Conflict) => {
                self.refused = Some(over);
                self.read_claim(cx);
            }
            Err(WriteFault::Unknown(_)) => self.wait(cx.retry_at()),
        }
    }

    /// The newest claim is this member's: the tenure begins.
    fn adopt(&mut self, cx: &mut Context, around: &mut Surroundings<'_>) {
        let Some(claim) = self.claim.value.clone() else {
            return;
        };
        self.attempt += 1;
        self.missing_since = None;
        let token = claim.token_at(self.claim.revision, around.bucket_created);
        let tenure = Tenure::new(token, claim, self.claim.revision, self.died.clone());
        self.stage = Stage::Held(Box::new(tenure));
        if self.wanted.is_some() {
            self.start_opening(cx, around);
        }
        // An unwanted one is released by the next pump: nothing of it is open.
    }

    /// The member is cut off: everything of this partition ends here.
    pub(super) fn fence(&mut self, cx: &mut Context) {
        self.wanted = None;
        match &self.stage {
            Stage::Held(_) => self.lose(cx),
            Stage::Ending(_) => {}
            _ => self.abandon(),
        }
        self.forget_claim();
    }

    /// The claim is not this member's any more: nothing of it may go on.
    pub(super) fn lose(&mut self, cx: &mut Context) {
        let Stage::Held(tenure) = &self.stage else {
            return;
        };
        let (token, open) = (tenure.token, tenure.is_open());
        self.attempt += 1;
        if open {
            self.stage = Stage::Ending(token);
            cx.tell(Command::Close(self.partition, token));
        } else {
            self.stage = Stage::Idle;
        }
        cx.notify(Change::Lost {
            partition: self.partition,
        });
    }

    /// The handlers of a lost tenure have ended.
    pub(super) fn on_ended(&mut self, token: FencingToken) {
        if matches!(self.stage, Stage::Ending(ending) if ending == token) {
            self.stage = Stage::Idle;
        }
    }
}

/// The earliest deadline of many partitions.
pub(super) fn deadline(slots: &[PartitionSlot], cx: &Context) -> Option<Time> {
    slots
        .iter()
        .fold(None, |least, slot| earliest(least, slot.deadline(cx)))
}
