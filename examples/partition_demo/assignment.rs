//! Who owns what, read from the group's own record.

use async_nats::jetstream;
use async_nats::jetstream::kv::Operation;
use futures_util::StreamExt;
use jetring::ids::{Generation, GroupName, MemberId, Partition};
use jetring::partitioning::Partitions;
use jetring::records::{AssignmentRecord, Keys, decode};
use jetring::ring::{LiveMember, least_moves, moves};
use tokio::sync::mpsc;

use crate::clock;
use crate::member::GroupSpec;
use crate::pauses::Window;

/// How long a watch that cannot be started waits. At first there is no bucket yet.
const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// An assignment, and when it was seen.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// When.
    pub(crate) at: u64,
    /// Its version.
    pub(crate) generation: Generation,
    /// The members it was planned for.
    pub(crate) members: Vec<MemberId>,
    /// The owner of each partition.
    pub(crate) owners: Vec<Option<MemberId>>,
}

impl Seen {
    /// An assignment that is seen now.
    pub(crate) fn new(record: &AssignmentRecord, partitions: u16) -> Self {
        Self {
            at: clock::now(),
            generation: record.generation,
            members: record.members.iter().map(|share| share.id.clone()).collect(),
            owners: (0..partitions)
                .map(|number| record.owner(Partition(number)).cloned())
                .collect(),
        }
    }

    /// How many partitions another assignment gives to other members.
    pub(crate) fn moves_to(&self, next: &Self) -> usize {
        let owners = |seen: &'_ Self| seen.owners.clone();
        let (before, after) = (owners(self), owners(next));
        moves(before.iter().map(Option::as_ref), after.iter().map(Option::as_ref))
    }

    /// How few partitions have to move for `members` to share them evenly.
    pub(crate) fn least_moves(&self, members: &[MemberId]) -> usize {
        let live: Vec<LiveMember> = members.iter().cloned().map(LiveMember::new).collect();
        match Partitions::new(self.owners.len() as u64) {
            Ok(partitions) => least_moves(&self.owners, &live, partitions),
            Err(_) => 0,
        }
    }
}

/// How many partitions changed hands in a window, one assignment after the other.
pub(crate) fn moves_in(assignments: &[Seen], window: Window) -> usize {
    let pairs = assignments.windows(2).filter(|pair| window.contains(pair[1].at));
    pairs.map(|pair| pair[0].moves_to(&pair[1])).sum()
}

/// Sends every new assignment until nobody listens any more.
pub(crate) async fn watch(client: async_nats::Client, spec: GroupSpec, sender: mpsc::UnboundedSender<Seen>) {
    let Ok(group) = GroupName::new(GroupSpec::NAME) else {
        return;
    };
    let key = Keys::new(&group).assignment();
    let context = jetstream::new(client);
    let mut newest = Generation(0);
    while !sender.is_closed() {
        if let Ok(store) = context.get_key_value(&spec.bucket).await
            && let Ok(mut entries) = store.watch_with_history(&key).await
        {
            while let Some(Ok(entry)) = entries.next().await {
                if entry.operation != Operation::Put {
                    continue;
                }
                match decode::<AssignmentRecord>(&key, &entry.value) {
                    // A watch may repeat what it has shown.
                    Ok(record) if record.generation > newest => {
                        newest = record.generation;
                        if sender.send(Seen::new(&record, spec.choice.partitions)).is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::error!(%error, "the assignment cannot be read"),
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
