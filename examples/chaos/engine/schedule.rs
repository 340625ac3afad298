//! Which fault happens when. It comes from the seed and the settings alone, so a run can be made again, as far as time allows.

use std::fmt;
use std::time::Duration;

use crate::support::proxy::Link;
use crate::support::random::{Random, shuffle};

use super::Settings;

/// How many places for members there are beside those that are usually taken: new members come there, and leave again.
pub(crate) const SPARE: usize = 2;

/// The time between two faults.
const SPACING: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1300)];

/// How long a member is left alone after a fault, and the servers after theirs.
const MEMBER_REST: Duration = Duration::from_secs(1);
const SERVERS_REST: Duration = Duration::from_secs(4);

/// How many messages that are not handled a purge may take: what it takes nothing is known of any more.
const PURGED: usize = 50;

/// How often a majority of the servers is lost, instead of one.
const OUTAGES: usize = 4;

/// Something that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A member's process is started, for the first time or again.
    Start { slot: usize },
    /// It is asked to end (SIGTERM).
    Leave { slot: usize },
    /// It is killed (SIGKILL).
    Kill { slot: usize },
    /// It is frozen (SIGSTOP).
    Freeze { slot: usize },
    /// It goes on (SIGCONT).
    Thaw { slot: usize },
    /// What becomes of its connections.
    Link { slot: usize, link: Link },
    /// A server is killed (SIGKILL).
    KillServer { server: usize },
    /// All servers that do not run are started again.
    RestartServers,
    /// The leader of the stream, of the bucket or of a consumer steps down.
    StepDown(Leader),
    /// A consumer of the group is deleted.
    DeleteConsumer { pick: u64 },
    /// A claim is deleted.
    DeleteClaim { partition: u16 },
    /// A member's record is deleted.
    DeleteMember { slot: usize },
    /// The stream is purged of everything up to the oldest messages that are not handled yet: of at most so many of these.
    Purge { unhandled: usize },
}

/// Who steps down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leader {
    Stream,
    Bucket,
    Consumer { pick: u64 },
}

impl Action {
    /// What kind of fault it is, for counting; `None` for the end of one.
    pub(crate) fn kind(self) -> Option<&'static str> {
        Some(match self {
            Self::Start { .. } | Self::Thaw { .. } | Self::RestartServers | Self::Link { link: Link::Open, .. } => {
                return None;
            }
            Self::Leave { .. } => "member leaves",
            Self::Kill { .. } => "member killed",
            Self::Freeze { .. } => "member frozen",
            Self::Link { link, .. } => match link {
                Link::Slow(_) => "connection slow",
                Link::Cut => "connection cut",
                _ => "connection half open",
            },
            Self::KillServer { .. } => "server killed",
            Self::StepDown(Leader::Stream) => "stream leader moved",
            Self::StepDown(Leader::Bucket) => "bucket leader moved",
            Self::StepDown(Leader::Consumer { .. }) => "consumer leader moved",
            Self::DeleteConsumer { .. } => "consumer deleted",
            Self::DeleteClaim { .. } => "claim deleted",
            Self::DeleteMember { .. } => "member record deleted",
            Self::Purge { .. } => "stream purged",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { slot } => write!(f, "START   member-{slot}"),
            Self::Leave { slot } => write!(f, "LEAVE   member-{slot}"),
            Self::Kill { slot } => write!(f, "KILL    member-{slot}"),
            Self::Freeze { slot } => write!(f, "FREEZE  member-{slot}"),
            Self::Thaw { slot } => write!(f, "THAW    member-{slot}"),
            Self::Link { slot, link } => write!(f, "LINK    member-{slot}: {link:?}"),
            Self::KillServer { server } => write!(f, "KILL    server {server}"),
            Self::RestartServers => f.write_str("RESTART servers"),
            Self::StepDown(leader) => write!(f, "MOVE    leader: {leader:?}"),
            Self::DeleteConsumer { pick } => write!(f, "DELETE  consumer {pick}"),
            Self::DeleteClaim { partition } => write!(f, "DELETE  claim of partition {partition}"),
            Self::DeleteMember { slot } => write!(f, "DELETE  record of member-{slot}"),
            Self::Purge { unhandled } => write!(f, "PURGE   the {unhandled} oldest messages that are not handled"),
        }
    }
}

/// An action and its time from the beginning of the chaos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) action: Action,
}

/// The kinds of faults, and how many cards of a deck each has. A deck is dealt out before the next one is shuffled, so that also a
/// short run sees most of them.
#[derive(Debug, Clone, Copy)]
enum Card {
    Kill,
    Freeze,
    Leave,
    Join,
    Cut,
    Half,
    Slow,
    Server,
    Stream,
    Bucket,
    Consumer,
    NoConsumer,
    NoClaim,
    NoMember,
    Purge,
}

const DECK: [Card; 23] = {
    use Card::*;
    [
        Kill, Kill, Kill, Freeze, Freeze, Freeze, Leave, Leave, Join, Join, Cut, Cut, Half, Half, Slow, Server, Server,
        Stream, Bucket, Consumer, NoConsumer, NoClaim, NoMember,
    ]
};

/// A purge ends what is known about the messages it takes, so it comes once in a deck that has one more card.
const PURGES: [Card; 1] = [Card::Purge];

/// What the schedule knows of a place for a member.
#[derive(Debug, Clone, Copy)]
struct Slot {
    runs: bool,
    free: Duration,
}

/// Makes the schedule of a run.
pub(crate) fn schedule(settings: &Settings) -> Vec<Step> {
    let mut maker = Maker {
        settings,
        random: Random::new(settings.seed),
        now: Duration::from_millis(500),
        slots: (0..settings.members + SPARE)
            .map(|slot| Slot {
                runs: slot < settings.members,
                free: Duration::ZERO,
            })
            .collect(),
        servers_free: Duration::ZERO,
        steps: Vec::new(),
    };
    let mut deck = Vec::new();
    while maker.now < settings.length {
        if deck.is_empty() {
            deck.extend(DECK);
            deck.extend(PURGES);
            shuffle(&mut deck, maker.random.number());
        }
        // The first card that can be played now: a member may be busy.
        if let Some(at) = (0..deck.len()).rev().find(|&at| maker.play(deck[at])) {
            deck.remove(at);
        }
        let [least, most] = SPACING;
        maker.now += maker.random.between(least, most);
    }
    maker.steps.sort_by_key(|step| step.at);
    maker.steps
}

struct Maker<'a> {
    settings: &'a Settings,
    random: Random,
    now: Duration,
    slots: Vec<Slot>,
    servers_free: Duration,
    steps: Vec<Step>,
}

impl Maker<'_> {
    /// Plans the fault of a card if it is possible now.
    fn play(&mut self, card: Card) -> bool {
        match card {
            Card::Kill => self.on_member(|slot| (Action::Kill { slot }, Action::Start { slot })),
            Card::Leave => self.on_member(|slot| (Action::Leave { slot }, Action::Start { slot })),
            Card::Freeze => self.on_member(|slot| (Action::Freeze { slot }, Action::Thaw { slot })),
            Card::Cut => self.on_link(Link::Cut),
            Card::Half => {
                let link = [Link::HoldReplies, Link::HoldRequests, Link::Silent][self.random.below(3)];
                self.on_link(link)
            }
            Card::Slow => {
                let delay = self.random.between(Duration::from_millis(5), Duration::from_millis(60));
                self.on_link(Link::Slow(delay))
            }
            Card::Join => self.join(),
            Card::Server => self.servers(),
            Card::Stream => self.once(Action::StepDown(Leader::Stream)),
            Card::Bucket => self.once(Action::StepDown(Leader::Bucket)),
            Card::Consumer => {
                let pick = self.random.number() % 1000;
                self.once(Action::StepDown(Leader::Consumer { pick }))
            }
            Card::NoConsumer => {
                let pick = self.random.number() % 1000;
                self.once(Action::DeleteConsumer { pick })
            }
            Card::NoClaim => {
                let partition = self.random.number() % u64::from(self.settings.partitions);
                // The remainder is below a `u16`.
                let partition = u16::try_from(partition).unwrap_or(0);
                self.once(Action::DeleteClaim { partition })
            }
            Card::NoMember => {
                let slot = self.random.below(self.settings.members);
                self.once(Action::DeleteMember { slot })
            }
            Card::Purge => {
                let unhandled = 1 + self.random.below(PURGED);
                self.once(Action::Purge { unhandled })
            }
        }
    }

    fn once(&mut self, action: Action) -> bool {
        self.push(self.now, action);
        true
    }

    fn push(&mut self, at: Duration, action: Action) {
        self.steps.push(Step { at, action });
    }

    /// How long a fault of a member lasts: half of them are shorter than what the others notice, and half are longer.
    fn duration(&mut self) -> Duration {
        let timeout = self.settings.session_timeout;
        match self.random.below(2) {
            0 => self.random.between(Duration::from_millis(50), timeout / 2),
            _ => self.random.between(timeout + timeout / 4, timeout * 5 / 2),
        }
    }

    /// The members that run and that nothing happens to.
    fn left_alone(&self) -> Vec<usize> {
        let left_alone = |slot: &Slot| slot.runs && slot.free <= self.now;
        let slots = 0..self.slots.len();
        slots.filter(|&slot| left_alone(&self.slots[slot])).collect()
    }

    /// One of them, as long as another one is left.
    fn victim(&mut self) -> Option<usize> {
        let found = self.left_alone();
        match found.len() {
            0 | 1 => None,
            count => Some(found[self.random.below(count)]),
        }
    }

    fn on_member(&mut self, actions: impl FnOnce(usize) -> (Action, Action)) -> bool {
        let Some(slot) = self.victim() else {
            return false;
        };
        let (action, undo) = actions(slot);
        let end = self.now + self.duration();
        self.push(self.now, action);
        self.push(end, undo);
        self.slots[slot].free = end + MEMBER_REST;
        true
    }

    fn on_link(&mut self, link: Link) -> bool {
        self.on_member(|slot| {
            let open = Action::Link { slot, link: Link::Open };
            (Action::Link { slot, link }, open)
        })
    }

    /// A new member comes to a place where there is none, or leaves it.
    fn join(&mut self) -> bool {
        let spare = self.settings.members..self.slots.len();
        let Some(slot) = spare.into_iter().find(|&slot| self.slots[slot].free <= self.now) else {
            return false;
        };
        let runs = self.slots[slot].runs;
        if runs && self.left_alone().len() < 2 {
            return false;
        }
        let action = if runs {
            Action::Leave { slot }
        } else {
            Action::Start { slot }
        };
        self.push(self.now, action);
        self.slots[slot] = Slot {
            runs: !runs,
            free: self.now + MEMBER_REST * 3,
        };
        true
    }

    /// One server is killed, or a majority of them, and they are started again.
    fn servers(&mut self) -> bool {
        let count = self.settings.servers;
        if self.servers_free > self.now || count < 3 {
            return false;
        }
        let first = self.random.below(count);
        self.push(self.now, Action::KillServer { server: first });
        if self.random.below(OUTAGES) == 0 {
            let second = (first + 1 + self.random.below(count - 1)) % count;
            self.push(self.now, Action::KillServer { server: second });
        }
        let end = self.now
            + self
                .random
                .between(Duration::from_millis(500), self.settings.session_timeout * 2);
        self.push(end, Action::RestartServers);
        self.servers_free = end + SERVERS_REST;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::member::{Plant, Retention};
    use super::*;

    fn settings(seed: u64, seconds: u64) -> Settings {
        Settings {
            seed,
            length: Duration::from_secs(seconds),
            patience: Duration::ZERO,
            servers: 3,
            members: 4,
            partitions: 16,
            keys: 64,
            rate: 100,
            session_timeout: Duration::from_secs(2),
            retention: Retention::Limits,
            plant: Plant::Nothing,
        }
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(schedule(&settings(7, 60)), schedule(&settings(7, 60)));
        assert_ne!(schedule(&settings(7, 60)), schedule(&settings(8, 60)));
    }

    #[test]
    fn a_minute_sees_every_kind_of_fault() {
        for seed in 0..20 {
            let kinds: BTreeSet<&str> = schedule(&settings(seed, 60))
                .iter()
                .filter_map(|step| step.action.kind())
                .collect();
            assert_eq!(kinds.len(), 14, "{kinds:?}");
        }
    }

    #[test]
    fn every_fault_ends_and_hits_what_is_there() {
        for seed in 0..50 {
            let (mut runs, mut frozen) = (vec![true, true, true, true, false, false], [false; 6]);
            let (mut links, mut dead) = ([false; 6], BTreeSet::new());
            for Step { action, .. } in schedule(&settings(seed, 120)) {
                match action {
                    Action::Start { slot } => assert!(!std::mem::replace(&mut runs[slot], true)),
                    Action::Leave { slot } | Action::Kill { slot } => {
                        assert!(!frozen[slot]);
                        assert!(std::mem::replace(&mut runs[slot], false));
                    }
                    Action::Freeze { slot } => assert!(runs[slot] && !std::mem::replace(&mut frozen[slot], true)),
                    Action::Thaw { slot } => assert!(std::mem::replace(&mut frozen[slot], false)),
                    Action::Link { slot, link } => links[slot] = link != Link::Open,
                    Action::KillServer { server } => assert!(dead.insert(server)),
                    Action::RestartServers => dead.clear(),
                    _ => {}
                }
                let fit = (0..6)
                    .filter(|&slot| runs[slot] && !frozen[slot] && !links[slot])
                    .count();
                assert!(fit > 0, "nobody is left alone");
            }
            assert_eq!(frozen, [false; 6]);
            assert_eq!(links, [false; 6]);
            assert!(dead.is_empty());
            assert!(runs[..4].iter().all(|&runs| runs));
        }
    }
}
