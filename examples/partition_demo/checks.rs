//! What must not happen: lost messages, broken order, two members at one key.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::history::{Frozen, Handling};

/// How many faults of a kind are described; the rest is only counted.
const DESCRIBED: usize = 3;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Messages whose publish was confirmed.
    pub(crate) published: u64,
    /// Those of them that a handler finished.
    pub(crate) handled: u64,
    /// Those of them that no handler finished.
    pub(crate) lost: u64,
    /// Those of them that were finished more than once.
    pub(crate) repeated: u64,
    /// When a message was finished again.
    pub(crate) repeated_at: Vec<u64>,
    /// Handlers that ran out of order.
    pub(crate) out_of_order: u64,
    /// Pairs of handlers of one key that ran on two members at the same time.
    pub(crate) overlaps: u64,
    /// Handlers that were frozen in the middle and were not over when another member had one of the same key running.
    pub(crate) overlaps_by_frozen: u64,
    /// The first faults, in words.
    pub(crate) described: Vec<String>,
}

/// Compares what was published with what was handled. `confirmed` has for each key the number of its last confirmed message,
/// the first being 1.
pub(crate) fn check(confirmed: &BTreeMap<String, u64>, handlings: &[Handling], frozen: Option<Frozen>) -> Findings {
    let mut by_key: BTreeMap<&str, Vec<&Handling>> = BTreeMap::new();
    for handling in handlings {
        by_key.entry(&handling.key).or_default().push(handling);
    }
    let mut findings = Findings::default();
    for (key, &last) in confirmed {
        let mut handlings = by_key.remove(key.as_str()).unwrap_or_default();
        handlings.sort_by_key(|handling| (handling.start, handling.end));
        count(&mut findings, key, last, &handlings);
        order(&mut findings, &handlings, frozen);
        overlaps(&mut findings, &handlings, frozen);
    }
    findings
}

/// Each message has to be finished, once if possible.
fn count(findings: &mut Findings, key: &str, last: u64, handlings: &[&Handling]) {
    let mut ends: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for handling in handlings.iter().filter(|handling| handling.is_finished()) {
        ends.entry(handling.number).or_default().push(handling.end);
    }
    findings.published += last;
    for number in 1..=last {
        let Some(ends) = ends.get_mut(&number) else {
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
/// middle belongs to an earlier tenure; only the first rule is asked of it.
fn order(findings: &mut Findings, handlings: &[&Handling], frozen: Option<Frozen>) {
    let mut wrong: BTreeSet<usize> = BTreeSet::new();
    let mut by_end: Vec<usize> = (0..handlings.len())
        .filter(|&index| handlings[index].is_finished())
        .collect();
    by_end.sort_by_key(|&index| handlings[index].end);
    let (mut finished, mut highest) = (BTreeSet::new(), 0);
    for index in by_end {
        let number = handlings[index].number;
        if finished.insert(number) && number < highest {
            wrong.insert(index);
        }
        highest = highest.max(number);
    }

    let is_late = |handling: &Handling| frozen.is_some_and(|frozen| frozen.is_late(handling));
    let (mut tenures, mut newest): (HashMap<u64, Progress>, u64) = (HashMap::new(), 0);
    for (index, handling) in handlings.iter().enumerate().filter(|(_, handling)| !is_late(handling)) {
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
fn overlaps(findings: &mut Findings, handlings: &[&Handling], frozen: Option<Frozen>) {
    let mut running: Vec<&Handling> = Vec::new();
    let is_late = |handling: &Handling| frozen.is_some_and(|frozen| frozen.is_late(handling));
    let mut late: BTreeSet<u64> = BTreeSet::new();
    for &handling in handlings {
        running.retain(|other| other.end > handling.start);
        for other in running.iter().filter(|other| other.member != handling.member) {
            if let Some(frozen) = [*other, handling].into_iter().find(|handling| is_late(handling)) {
                late.insert(frozen.start);
                continue;
            }
            findings.overlaps += 1;
            describe(findings.overlaps, &mut findings.described, || {
                let (a, b) = (name(other.member), name(handling.member));
                let (key, first, second) = (&handling.key, other.number, handling.number);
                format!("overlap: {a} handled number {first} of {key} while {b} handled number {second}")
            });
        }
        running.push(handling);
    }
    findings.overlaps_by_frozen += late.len() as u64;
}

fn describe(count: u64, described: &mut Vec<String>, words: impl FnOnce() -> String) {
    if count <= DESCRIBED as u64 {
        described.push(words());
    }
}

/// How the demo calls a member.
pub(crate) fn name(member: usize) -> String {
    format!("member-{member}")
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
