//! Every write of the group's bucket, and what it was for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::kv::{Entry, Operation};
use futures_util::StreamExt;
use jetring::ids::{GroupName, Partition};
use jetring::records::{
    AssignmentRecord, ClaimRecord, ClaimState, KeyKind, Keys, MemberRecord, MemberState, ProgressRecord, decode,
};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::assignment::Seen;
use crate::clock;
use crate::member::GroupSpec;
use crate::pauses::Window;

/// How long a watch that cannot be started waits. At first there is no bucket yet.
const RETRY: Duration = Duration::from_millis(50);

/// What one write was.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A member that goes on living.
    Heartbeat,
    /// A member that enters, leaves, has left, or was declared dead; or the group's configuration.
    Membership,
    /// An assignment.
    Assignment(Seen),
    /// A claim was won.
    Won,
    /// A claim was released.
    Released(Partition),
    /// A partition's progress, by the tenure of this fencing token.
    Progress(Partition, u64),
}

/// One write.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    /// When it was seen, which is a little after it was done.
    pub(crate) at: u64,
    /// Its revision: the bucket's writes are numbered without gaps.
    pub(crate) revision: u64,
    /// What it was.
    pub(crate) what: What,
}

/// Sends every write until nobody listens any more.
pub(crate) async fn watch(client: Client, spec: GroupSpec, sender: mpsc::UnboundedSender<Write>) {
    let Ok(group) = GroupName::new(GroupSpec::NAME) else {
        return;
    };
    let keys = Keys::new(&group);
    let context = jetstream::new(client);
    let mut newest = 0;
    while !sender.is_closed() {
        if let Ok(store) = context.get_key_value(&spec.bucket).await
            && let Ok(mut entries) = store.watch_with_history(">").await
        {
            while let Some(Ok(entry)) = entries.next().await {
                // A watch may repeat what it has shown.
                if entry.revision <= newest {
                    continue;
                }
                newest = entry.revision;
                let write = Write {
                    at: clock::now(),
                    revision: entry.revision,
                    what: what(&keys, &entry, spec.choice.partitions),
                };
                if sender.send(write).is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// What a write was. One that says nothing readable is a change of membership: a tombstone of a member that has left.
fn what(keys: &Keys, entry: &Entry, partitions: u16) -> What {
    if entry.operation != Operation::Put {
        return What::Membership;
    }
    let (key, value) = (entry.key.as_str(), &entry.value);
    let read = match keys.kind(key) {
        Some(KeyKind::Assignment) => {
            let record = decode::<AssignmentRecord>(key, value).ok();
            record.map(|record| What::Assignment(Seen::new(&record, partitions)))
        }
        Some(KeyKind::Member(_)) => {
            let record = decode::<MemberRecord>(key, value).ok();
            let goes_on = |record: &MemberRecord| record.state == MemberState::Active && record.joined.is_some();
            record.filter(goes_on).map(|_| What::Heartbeat)
        }
        Some(KeyKind::Claim(partition)) => {
            let record = decode::<ClaimRecord>(key, value).ok();
            record.map(|record| match record.state {
                ClaimState::Held => What::Won,
                ClaimState::Released => What::Released(partition),
            })
        }
        Some(KeyKind::Progress(partition)) => {
            let record = decode::<ProgressRecord>(key, value).ok();
            record.map(|record| What::Progress(partition, record.token.0))
        }
        Some(KeyKind::Config) | None => None,
    };
    read.unwrap_or(What::Membership)
}

/// How many writes there were in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Writes {
    /// For the event: assignment, claims, membership, and the progress that is handed over.
    pub(crate) used: usize,
    /// Of these, assignments.
    pub(crate) assignment: usize,
    /// Of these, claims.
    pub(crate) claims: usize,
    /// Of these, the old owner's last progress and the new owner's first.
    pub(crate) progress: usize,
    /// Of these, members that enter, leave or are declared dead.
    pub(crate) membership: usize,
    /// Not for the event: heartbeats.
    pub(crate) heartbeats: usize,
    /// Not for the event: progress that is saved in between.
    pub(crate) checkpoints: usize,
    /// Writes that the watch did not show, because the key was written again before.
    pub(crate) unseen: u64,
}

/// Counts what was written in a window. `all` are the writes of the whole run in their order.
pub(crate) fn count(all: &[Write], window: Window) -> Writes {
    let handed_over = handed_over(all);
    let mut writes = Writes::default();
    let mut before = None;
    for (index, write) in all.iter().enumerate().filter(|(_, write)| window.contains(write.at)) {
        let expected = before.map_or(write.revision, |revision: u64| revision + 1);
        writes.unseen += write.revision.saturating_sub(expected);
        before = Some(write.revision);
        match &write.what {
            What::Heartbeat => writes.heartbeats += 1,
            What::Membership => writes.membership += 1,
            What::Assignment(_) => writes.assignment += 1,
            What::Won | What::Released(_) => writes.claims += 1,
            What::Progress(..) if handed_over.contains(&index) => writes.progress += 1,
            What::Progress(..) => writes.checkpoints += 1,
        }
    }
    writes.used = writes.assignment + writes.claims + writes.progress + writes.membership;
    writes
}

/// Which writes of progress belong to a handover: the first of each tenure, and the last one before a release, if it came after
/// the assignment that led to it.
fn handed_over(all: &[Write]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut last: BTreeMap<Partition, (u64, usize)> = BTreeMap::new();
    let mut assigned = 0;
    for (index, write) in all.iter().enumerate() {
        match &write.what {
            What::Assignment(_) => assigned = index,
            What::Progress(partition, token) => {
                let former = last.insert(*partition, (*token, index));
                if former.is_none_or(|(former, _)| former != *token) {
                    found.insert(index);
                }
            }
            What::Released(partition) => {
                let saved = last.get(partition).map(|(_, saved)| *saved);
                found.extend(saved.filter(|saved| *saved > assigned));
            }
            What::Heartbeat | What::Membership | What::Won => {}
        }
    }
    found
}
