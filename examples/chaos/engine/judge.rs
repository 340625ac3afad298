//! From what was seen to the verdict.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::checks::{self, Published};
use crate::support::clock;
use crate::support::history::{Frozen, Handling};
use crate::support::publisher::Sent;

use super::Settings;
use super::verdict::Verdict;

/// All that was seen of a run. Messages are named by their stream sequence.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// The messages of each key whose publish was confirmed.
    pub(crate) sent: BTreeMap<String, Vec<Sent>>,
    /// The stream was purged of everything below this.
    pub(crate) purged_below: u64,
    /// What the stream has in the end: the key of every sequence. `None` if it forgets what is acked.
    pub(crate) stored: Option<BTreeMap<u64, String>>,
    /// What the handlers did.
    pub(crate) handlings: Vec<Handling>,
    /// Who was frozen when.
    pub(crate) frozen: Vec<Frozen>,
    /// Members that ended by themselves, or did not come to an end.
    pub(crate) complaints: Vec<String>,
    /// How many member processes there were.
    pub(crate) processes: usize,
    /// The kinds of the faults that happened.
    pub(crate) faults: Vec<&'static str>,
    /// The version of the servers.
    pub(crate) server_version: String,
}

/// Judges a run.
pub(crate) fn judge(settings: &Settings, past: Past, log: Vec<String>) -> Verdict {
    let (published, by_servers) = published(&past);
    let findings = checks::check(&published, &past.handlings, &past.frozen);
    let longest_wait_ms = longest_wait(&past).map(clock::milliseconds);
    let mut faults: BTreeMap<String, usize> = BTreeMap::new();
    for kind in past.faults {
        *faults.entry(kind.to_owned()).or_default() += 1;
    }
    let verdict = Verdict {
        ok: false,
        published: findings.published,
        handled: findings.handled,
        purged: findings.purged,
        repeated: findings.repeated,
        lost: findings.lost,
        unknown: findings.unknown,
        out_of_order: findings.out_of_order,
        overlaps: findings.overlaps,
        two_owners: findings.two_owners,
        stale_tokens: findings.stale_tokens,
        overlaps_by_frozen: findings.overlaps_by_frozen,
        begun_by_frozen: findings.begun_by_frozen,
        longest_wait_ms,
        lost_by_servers: by_servers.lost,
        doubled_by_servers: by_servers.doubled,
        complaints: past.complaints,
        faults,
        processes: past.processes,
        described: findings.described,
        settings: settings.clone(),
        server_version: past.server_version,
        log,
    };
    verdict.judged()
}

/// What the servers did to confirmed messages: nothing that members can be blamed for, and worth knowing.
#[derive(Debug, Default, PartialEq, Eq)]
struct ByServers {
    /// Confirmed, and not in the stream.
    lost: u64,
    /// In the stream, but not under the sequence that was confirmed: stored twice although they bore the same id.
    doubled: u64,
}

/// What has to be handled, for each key. What the servers themselves have lost is as if it was purged, and what they have stored twice
/// as if it was published twice.
fn published(past: &Past) -> (BTreeMap<String, Published>, ByServers) {
    let mut by_servers = ByServers::default();
    let mut published: BTreeMap<String, Published> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for (key, sent) in &past.sent {
        let published = published.entry(key.clone()).or_default();
        for &Sent { sequence, .. } in sent {
            known.insert(sequence);
            published.numbers.push(sequence);
            let is_purged = sequence < past.purged_below;
            let is_lost = past
                .stored
                .as_ref()
                .is_some_and(|stored| !stored.contains_key(&sequence));
            if is_lost && !is_purged {
                by_servers.lost += 1;
            }
            if is_purged || is_lost {
                published.purged.insert(sequence);
            }
        }
    }
    for (&sequence, key) in past.stored.iter().flatten() {
        if !known.contains(&sequence) {
            by_servers.doubled += 1;
            published.entry(key.clone()).or_default().numbers.push(sequence);
        }
    }
    (published, by_servers)
}

/// The longest time from when a message was sent until a handler had finished it for the first time.
fn longest_wait(past: &Past) -> Option<u64> {
    let mut finished: BTreeMap<u64, u64> = BTreeMap::new();
    for handling in past.handlings.iter().filter(|handling| handling.is_finished()) {
        let first = finished.entry(handling.number).or_insert(handling.end);
        *first = handling.end.min(*first);
    }
    let waits = past.sent.values().flatten().filter_map(|sent| {
        let end = finished.get(&sent.sequence)?;
        Some(end.saturating_sub(sent.at))
    });
    waits.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::history::Outcome;

    fn past() -> Past {
        let sent = |sequence| Sent { at: 0, sequence };
        Past {
            sent: BTreeMap::from([("k".to_owned(), [3, 5, 8].map(sent).to_vec())]),
            purged_below: 5,
            ..Past::default()
        }
    }

    fn stored(sequences: &[u64]) -> Option<BTreeMap<u64, String>> {
        Some(sequences.iter().map(|&sequence| (sequence, "k".to_owned())).collect())
    }

    #[test]
    fn a_purge_excuses_what_it_took_and_nothing_else() {
        let (published, by_servers) = published(&past());
        assert_eq!(published["k"].numbers, [3, 5, 8]);
        assert_eq!(published["k"].purged, BTreeSet::from([3]));
        assert_eq!(by_servers, ByServers::default());
    }

    #[test]
    fn the_longest_wait_ends_with_the_first_time_a_message_is_finished() {
        let mut past = past();
        assert_eq!(longest_wait(&past), None);
        let done = |number, end, outcome| Handling {
            member: 0,
            key: "k".into(),
            number,
            partition: 0,
            token: 1,
            start: 0,
            end,
            outcome,
        };
        past.handlings = vec![
            done(3, 70, Outcome::Finished),
            done(3, 20, Outcome::Finished),
            done(5, 30, Outcome::Finished),
            done(8, 90, Outcome::Unfinished),
        ];
        assert_eq!(longest_wait(&past), Some(30));
    }

    #[test]
    fn what_the_servers_did_is_told_apart() {
        let mut past = past();
        past.stored = stored(&[5, 8]);
        assert_eq!(published(&past).1, ByServers::default());
        past.stored = stored(&[5, 9]);
        let (published, by_servers) = published(&past);
        assert_eq!(by_servers, ByServers { lost: 1, doubled: 1 });
        assert_eq!(published["k"].numbers, [3, 5, 8, 9]);
        assert_eq!(published["k"].purged, BTreeSet::from([3, 8]));
    }
}
