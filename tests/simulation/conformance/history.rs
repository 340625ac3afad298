//! Random histories of what members ask a server for, rightly and wrongly.

use crate::consumer::Info;
use crate::course::Kind;
use crate::random::Random;
use crate::stream::Purge;

/// The last tokens of subjects: a partition and a key.
pub(super) const SUBJECTS: [&str; 4] = ["0.a", "0.b", "1.a", "1.c"];

/// The last tokens of filters.
const FILTERS: [&str; 4] = ["0.>", "1.>", "0.a", "1.c"];

/// One request. Consumers and keys are few, so that requests meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Publish(&'static str),
    /// With the name, and nothing else, the same as one that may be there.
    Create {
        name: u64,
        filter: &'static str,
        /// So far before the end of the stream; `None`: whatever is left. One that starts beyond the end counts what comes before its
        /// start as pending, which is of no use to anybody.
        back: Option<u64>,
    },
    Delete(u64),
    Pull {
        name: u64,
        messages: usize,
    },
    /// About the delivery of this number, counted over all consumers, modulo how many there were.
    Ack(usize),
    Nak(usize),
    Terminate(usize),
    InProgress(usize),
    Purge(Purge),
    Info(u64),
    Stream,
    /// The ack wait of whatever is not acked passes.
    Wait,
    /// Writes a key over the revision that it has, or another one.
    Write {
        key: &'static str,
        off: u64,
    },
    /// Leaves a tombstone.
    Remove {
        key: &'static str,
        off: u64,
    },
    /// Removes a key with its tombstone, if it is at that revision or below.
    Erase {
        key: &'static str,
        up_to: u64,
    },
    Read(&'static str),
    List,
    /// What a watch that begins now shows.
    Watch,
}

/// A delivery, told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) sequence: u64,
    pub(super) consumer_sequence: u64,
    pub(super) count: u64,
    pub(super) subject: String,
    pub(super) id: u64,
}

/// What a key holds: its value, none for a tombstone, and the revision.
pub(super) type Held = (String, Option<String>, u64);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Stored(u64),
    Exists,
    Overlaps,
    Missing,
    Pulled(Vec<Told>),
    Info(Info),
    Stream { first: u64, last: u64, messages: usize },
    Written(u64),
    Conflict,
    Held(Vec<Held>),
}

/// Where a consumer starts that begins so far before the end.
pub(super) fn start(last: u64, back: u64) -> u64 {
    (last + 1).saturating_sub(back).max(1)
}

#[derive(Debug)]
pub(super) struct History {
    pub(super) kind: Kind,
    pub(super) max_ack_pending: usize,
    pub(super) steps: Vec<Step>,
}

impl History {
    pub(super) fn random(random: &mut Random) -> Self {
        let kind = [Kind::Limits, Kind::WorkQueue, Kind::Interest][random.between(0, 3) as usize];
        let mut steps: Vec<Step> = (0..random.between(20, 50)).map(|_| step(kind, random)).collect();
        for _ in 0..random.between(0, 4) {
            let at = random.between(0, steps.len() as u64 + 1) as usize;
            steps.insert(at, Step::Wait);
        }
        // Most of what there is to ask needs somebody who was interested from the start.
        steps.splice(0..0, (0..2).map(|name| create(kind, name, random)).collect::<Vec<_>>());
        steps.extend((0..3).map(Step::Info));
        steps.extend([Step::Stream, Step::List, Step::Watch]);
        Self {
            kind,
            max_ack_pending: if random.percent(30) { 3 } else { 64 },
            steps,
        }
    }
}

fn step(kind: Kind, random: &mut Random) -> Step {
    let name = random.between(0, 3);
    let delivery = random.between(0, 64) as usize;
    let key = ["k.a", "k.b", "other"][random.between(0, 3) as usize];
    let off = if random.percent(70) { 0 } else { random.between(1, 3) };
    match random.between(0, 100) {
        0..20 => Step::Publish(SUBJECTS[random.between(0, 4) as usize]),
        20..26 => create(kind, name, random),
        26..29 => Step::Delete(name),
        29..48 => Step::Pull {
            name,
            messages: random.between(1, 5) as usize,
        },
        48..57 => Step::Ack(delivery),
        57..61 => Step::Nak(delivery),
        61..63 => Step::Terminate(delivery),
        63..66 => Step::InProgress(delivery),
        66..70 => Step::Purge(purge(kind, random)),
        70..79 => Step::Info(name),
        79..82 => Step::Stream,
        82..89 => Step::Write { key, off },
        89..92 => Step::Remove { key, off },
        92..94 => Step::Erase {
            key,
            up_to: random.between(1, 8),
        },
        94..97 => Step::Read(key),
        97..99 => Step::List,
        _ => Step::Watch,
    }
}

fn create(kind: Kind, name: u64, random: &mut Random) -> Step {
    let back = (kind != Kind::WorkQueue).then(|| random.between(0, 6));
    let filter = FILTERS[random.between(0, 4) as usize];
    Step::Create { name, filter, back }
}

/// Of a subject only as a whole, and none that a consumer has more than: what becomes of the acks of the others is a race in the
/// server, between the purge and the end of every message. Nor a part where consumers are kept in files: they count otherwise.
fn purge(kind: Kind, random: &mut Random) -> Purge {
    let mut purge = Purge::default();
    let least = if kind == Kind::Interest { 2 } else { 0 };
    match random.between(least, 4) {
        0 => purge.below = Some(random.between(2, 10)),
        1 => purge.keep = Some(random.between(1, 3) as usize),
        2 => purge.subject = Some(["0.>", "1.>", ">"][random.between(0, 3) as usize].to_owned()),
        _ => {}
    }
    purge
}
