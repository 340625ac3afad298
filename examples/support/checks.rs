//! What must not happen: lost messages, broken order, two members at one key or partition, stale fencing tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::history::{Frozen, Handling};

/// How many faults of a kind are described; the rest is only counted.
const DESCRIBED: usize = 3;

/// How many threads run the handlers of a member: as many may be frozen between the last look at the lease and the first line of a
/// handler, and begin it when they wake.
const THREADS: usize = 2;

/// What was published of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// The confirmed messages in their order, by any number that grows with it: their count in the key, or their stream sequence.
    pub(crate) numbers: Vec<u64>,
    /// Those that were taken out of the stream behind the members' backs. They may have been handled before, or not.
    pub(crate) purged: BTreeSet<u64>,
}

impl Published {
    /// The messages 1 to `last`.
    pub(crate) fn up_to(last: u64) -> Self {
        Self {
            numbers: (1..=last).collect(),
            purged: BTreeSet::new(),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Messages whose publish was confirmed.
    pub(crate) published: u64,
    /// Those of them that a handler finished.
    pub(crate) handled: u64,
    /// Those of them that no handler finished, although nobody purged them.
    pub(crate) lost: u64,
    /// Those of them that were purged before a handler finished them.
    pub(crate) purged: u64,
    /// Those of them that were finished more than once.
    pub(crate) repeated: u64,
    /// When a message was finished again.
    pub(crate) repeated_at: Vec<u64>,
    /// Handlers of messages that were not published, as far as is known.
    pub(crate) unknown: u64,
    /// Handlers that ran out of order.
    pub(crate) out_of_order: u64,
    /// Pairs of handlers of one key that ran on two members at the same time.
    pub(crate) overlaps: u64,
    /// Pairs of handlers of one partition, of different keys, that ran on two members at the same time or under one token.
    pub(crate) two_owners: u64,
    /// Handlers that began with a lower fencing token than one of the same partition before.
    pub(crate) stale_tokens: u64,
    /// Handlers that were frozen in the middle and were not over when another member had one of the same key running. The fencing token
    /// of each is lower than the other's, so that what it still writes can be refused; else it counts as any overlap.
    pub(crate) overlaps_by_frozen: u64,
    /// Handlers that began when their process woke, with a lower fencing token: at most one per thread, more are stale tokens.
    pub(crate) begun_by_frozen: u64,
    /// The first faults, in words.
    pub(crate) described: Vec<String>,
}

/// Compares what was published, for each key, with what was handled. `frozen` has the times at which members were frozen.
pub(crate) fn check(published: &BTreeMap<String, Published>, handlings: &[Handling], frozen: &[Frozen]) -> Findings {
    let (mut by_key, mut by_partition) = (BTreeMap::new(), BTreeMap::new());
    for handling in handlings {
        by_key.entry(&*handling.key).or_insert_with(Vec::new).push(handling);
        by_partition
            .entry(handling.partition)
            .or_insert_with(Vec::new)
            .push(handling);
    }
    let mut findings = Findings::default();
    for (key, published) in published {
        let mut handlings = by_key.remove(key.as_str()).unwrap_or_default();
        handlings.sort_by_key(|handling: &&Handling| (handling.start, handling.end));
        count(&mut findings, key, published, &handlings);
        order(&mut findings, published, &handlings, frozen);
        overlaps(&mut findings, &handlings, frozen);
    }
    let strangers = by_key.values().flatten();
    strangers.for_each(|handling| unknown(&mut findings, handling));
    for (partition, mut handlings) in by_partition {
        handlings.sort_by_key(|handling: &&Handling| (handling.start, handling.end));
        owners(&mut findings, partition, &handlings, frozen);
        tokens(&mut findings, partition, &handlings, frozen);
    }
    findings
}

/// Each message has to be finished, once if possible, and nothing else may be.
fn count(findings: &mut Findings, key: &str, published: &Published, handlings: &[&Handling]) {
    let known: BTreeSet<u64> = published.numbers.iter().copied().collect();
    let mut ends: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for handling in handlings {
        if !known.contains(&handling.number) {
            unknown(findings, handling);
        } else if handling.is_finished() {
            ends.entry(handling.number).or_default().push(handling.end);
        }
    }
    findings.published += known.len() as u64;
    for number in known {
        let Some(ends) = ends.get_mut(&number) else {
            if published.purged.contains(&number) {
                findings.purged += 1;
                continue;
            }
            findings.lost += 1;
            describe(findings.lost, &mut findings.described, || {
                format!("lost: number {number} of {key}")
            });
            continue;
        };
        findings.handled += 1;
        if ends.len() > 1 {
            ends.sort_unstable();
            findings.repeated += 1;
            findings.repeated_at.push(ends[1]);
        }
    }
}

fn unknown(findings: &mut Findings, handling: &Handling) {
    findings.unknown += 1;
    describe(findings.unknown, &mut findings.described, || {
        let (key, number, member) = (&handling.key, handling.number, name(handling.member));
        format!("unknown: {member} handled number {number} of {key}, which was not published")
    });
}

/// What the present tenure of a key has done so far.
struct Progress {
    number: u64,
    finished: bool,
    end: u64,
}

/// The order of one key. A handler is out of order
/// - if it finishes a message for the first time after a later one was finished,
/// - if its tenure has already begun a later message, or finished this one, or still runs another,
/// - if a later tenure has begun before it.
///
/// So a message may come again, but only in a later tenure that goes through the key in order itself. What was frozen in the
/// middle belongs to an earlier tenure; only the first rule is asked of it, and not even that if the message was purged meanwhile: then
/// nobody else could handle it before the later ones.
fn order(findings: &mut Findings, published: &Published, handlings: &[&Handling], frozen: &[Frozen]) {
    let mut wrong: BTreeSet<usize> = BTreeSet::new();
    let mut by_end: Vec<usize> = (0..handlings.len())
        .filter(|&index| handlings[index].is_finished())
        .collect();
    by_end.sort_by_key(|&index| handlings[index].end);
    let (mut finished, mut highest) = (BTreeSet::new(), 0);
    for index in by_end {
        let number = handlings[index].number;
        let gone = published.purged.contains(&number) && is_late(frozen, handlings[index]);
        if finished.insert(number) && number < highest && !gone {
            wrong.insert(index);
        }
        highest = highest.max(number);
    }

    let (mut tenures, mut newest): (HashMap<u64, Progress>, u64) = (HashMap::new(), 0);
    let in_time = |(_, handling): &(usize, &&Handling)| !is_late(frozen, handling);
    for (index, handling) in handlings.iter().enumerate().filter(in_time) {
        let in_order = match tenures.get(&handling.token) {
            None => true,
            Some(last) if handling.start < last.end => false,
            Some(last) if handling.number == last.number => !last.finished,
            Some(last) => handling.number > last.number,
        };
        if !in_order || handling.token < newest {
            wrong.insert(index);
        }
        newest = newest.max(handling.token);
        let progress = Progress {
            number: handling.number,
            finished: handling.is_finished(),
            end: handling.end,
        };
        tenures.insert(handling.token, progress);
    }

    for index in wrong {
        findings.out_of_order += 1;
        let handling = handlings[index];
        describe(findings.out_of_order, &mut findings.described, || {
            let (key, number, token) = (&handling.key, handling.number, handling.token);
            format!(
                "out of order: number {number} of {key} on {} (fencing token {token})",
                name(handling.member)
            )
        });
    }
}

/// Two members at one key at the same time. The handlings are sorted by their start.
fn overlaps(findings: &mut Findings, handlings: &[&Handling], frozen: &[Frozen]) {
    let mut late: BTreeSet<(usize, u64)> = BTreeSet::new();
    for_pairs(handlings, |other, handling| {
        if other.member == handling.member {
            return;
        }
        if let Some(frozen) = excused(frozen, other, handling) {
            late.insert((frozen.member, frozen.start));
            return;
        }
        findings.overlaps += 1;
        describe(findings.overlaps, &mut findings.described, || {
            let (a, b) = (name(other.member), name(handling.member));
            let (key, first, second) = (&handling.key, other.number, handling.number);
            format!("overlap: {a} handled number {first} of {key} while {b} handled number {second}")
        });
    });
    findings.overlaps_by_frozen += late.len() as u64;
}

/// Two members in one partition at the same time, at different keys. The handlings are sorted by their start.
fn owners(findings: &mut Findings, partition: u16, handlings: &[&Handling], frozen: &[Frozen]) {
    for_pairs(handlings, |other, handling| {
        let one = other.member == handling.member || other.key == handling.key;
        if one || excused(frozen, other, handling).is_some() {
            return;
        }
        findings.two_owners += 1;
        describe(findings.two_owners, &mut findings.described, || {
            let (a, b) = (name(other.member), name(handling.member));
            format!("two owners: {a} and {b} had handlers of partition {partition} running at the same time")
        });
    });
    let mut holders: HashMap<u64, usize> = HashMap::new();
    for handling in handlings {
        let holder = *holders.entry(handling.token).or_insert(handling.member);
        if holder != handling.member {
            findings.two_owners += 1;
            describe(findings.two_owners, &mut findings.described, || {
                let (a, b, token) = (name(holder), name(handling.member), handling.token);
                format!("two owners: {a} and {b} had partition {partition} with the same fencing token {token}")
            });
        }
    }
}

/// Calls `pair` for every two handlings that ran at the same time, the earlier one first. They are sorted by their start.
fn for_pairs<'a>(handlings: &[&'a Handling], mut pair: impl FnMut(&'a Handling, &'a Handling)) {
    let mut running: Vec<&Handling> = Vec::new();
    for &handling in handlings {
        running.retain(|other| other.end > handling.start);
        for other in &running {
            pair(other, handling);
        }
        running.push(handling);
    }
}

/// A partition's fencing tokens only grow. The handlings are sorted by their start.
fn tokens(findings: &mut Findings, partition: u16, handlings: &[&Handling], frozen: &[Frozen]) {
    let (mut highest, mut begun) = (0, HashMap::new());
    for handling in handlings {
        if handling.token >= highest {
            highest = handling.token;
            continue;
        }
        let freeze = frozen.iter().position(|freeze| freeze.has_woken_into(handling));
        if let Some(freeze) = freeze {
            findings.begun_by_frozen += 1;
            let begun = begun.entry(freeze).or_insert(0);
            *begun += 1;
            if *begun <= THREADS {
                continue;
            }
        }
        findings.stale_tokens += 1;
        describe(findings.stale_tokens, &mut findings.described, || {
            let (member, key, number, token) = (name(handling.member), &handling.key, handling.number, handling.token);
            format!(
                "stale token: {member} began number {number} of {key} with {token}, after {highest} was seen in \
                 partition {partition}"
            )
        });
    }
}

fn is_late(frozen: &[Frozen], handling: &Handling) -> bool {
    frozen.iter().any(|freeze| freeze.is_late(handling))
}

/// The one of the two that was frozen in the middle, if its fencing token tells that it is the late one.
fn excused<'a>(frozen: &[Frozen], one: &'a Handling, other: &'a Handling) -> Option<&'a Handling> {
    let pairs = [(one, other), (other, one)].into_iter();
    let mut late = pairs.filter(|(late, next)| is_late(frozen, late) && late.token < next.token);
    late.next().map(|(late, _)| late)
}

fn describe(count: u64, described: &mut Vec<String>, words: impl FnOnce() -> String) {
    if count <= DESCRIBED as u64 {
        described.push(words());
    }
}

/// How a member is called.
pub(crate) fn name(member: usize) -> String {
    format!("member-{member}")
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
