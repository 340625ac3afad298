//! The next assignment, from the last one and the live members.
//!
//! A plan is a pure function: whoever computes it from the same records gets the same owners, so it does not matter which
//! member plans, nor in which order it learned of the others.
//!
//! 1. What is pinned goes to the member it is pinned to.
//! 2. Every member gets a quota: its share of the partitions, rounded so that as much as possible can stay.
//! 3. Every member keeps what it has, up to its quota.
//! 4. The rest (what had no live owner, and what was above a quota) goes, partition by partition, to the first member with
//!    room in ring order from the partition's point.
//!
//! So only what must move moves: to a joiner exactly its quota, from a leaver exactly what it had, and never anything between
//! two others. Without a history this is the ring with bounded loads of Mirrokni, Thorup and Zadimoghaddam, *Consistent
//! Hashing with Bounded Loads* (2018), with the tightest bound there is.
//!
//! **Which partitions a member gives up** when it has too many: those whose points lie closest before a point of a member
//! with room. These are the ones that a plain ring would move to that member, so a member that was away and comes back tends
//! to get back what it had. And it spreads the moves: with a fixed order, say by number, the same partitions would pay for
//! every rebalance.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;

use super::quota::{Claimant, quotas};
use super::ring::{Placement, Ring};
use crate::ids::{MemberId, Partition};
use crate::partitioning::Partitions;

/// A member that can own partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveMember {
    /// Its stable name.
    pub id: MemberId,
    /// Its part of the work in proportion to the others'. 0: drained, it gets no partition, not even a pinned one, unless all
    /// members are drained: then all count alike, because work that waits helps nobody.
    pub weight: u16,
}

impl LiveMember {
    /// A member of weight 1.
    pub fn new(id: MemberId) -> Self {
        Self { id, weight: 1 }
    }
}

/// All that a plan depends on.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The ring's seed, the same for the whole group and for its life.
    pub seed: u64,
    /// Points per member on the ring, the same for the whole group and for its life. They decide how evenly the partitions of
    /// a leaver spread over the others, not how even the loads are. 16 to 128 is usual.
    pub virtual_nodes: NonZeroU16,
    /// How many partitions there are.
    pub partitions: Partitions,
    /// The owners so far, by partition. What lies behind the end had none; what is too much is ignored.
    pub previous: &'a [Option<MemberId>],
    /// The live members, in any order. If one is named twice its highest weight counts.
    pub members: &'a [LiveMember],
    /// What an operator fixed. A pin to a member that is not live, or is drained while others are not, is ignored.
    pub pins: &'a BTreeMap<Partition, MemberId>,
}

/// An assignment of every partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    members: Vec<MemberId>,
    owners: Vec<Option<u32>>,
}

impl Plan {
    /// The live members, sorted, each once; those without a partition too.
    pub fn members(&self) -> &[MemberId] {
        &self.members
    }

    /// By partition, the owner's index in [`Plan::members`]. Either all have an owner or, without live members, none has.
    pub fn owner_indices(&self) -> &[Option<u32>] {
        &self.owners
    }

    /// The owners by partition.
    pub fn owners(&self) -> impl ExactSizeIterator<Item = Option<&MemberId>> + DoubleEndedIterator {
        self.owners
            .iter()
            .map(|owner| owner.map(|index| &self.members[index as usize]))
    }

    /// The owner of a partition. `None` without live members, or if there is no such partition.
    pub fn owner(&self, partition: Partition) -> Option<&MemberId> {
        let index = (*self.owners.get(usize::from(partition.0))?)?;
        Some(&self.members[index as usize])
    }

    /// The partitions of a member, in ascending order.
    pub fn partitions_of(&self, member: &MemberId) -> impl Iterator<Item = Partition> {
        let index = self.members.binary_search(member).ok();
        (0_u16..)
            .zip(&self.owners)
            .filter(move |(_, owner)| index.is_some() && owner.map(|found| found as usize) == index)
            .map(|(partition, _)| Partition(partition))
    }

    /// The owners by partition, as [`PlanInput::previous`] of the next plan wants them.
    pub fn to_previous(&self) -> Vec<Option<MemberId>> {
        self.owners().map(|owner| owner.cloned()).collect()
    }
}

/// Plans the next assignment. See the [module](self) for the rules.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::num::NonZeroU16;
/// use jetring::ids::MemberId;
/// use jetring::partitioning::Partitions;
/// use jetring::ring::{LiveMember, PlanInput, moves, plan};
///
/// let (a, b) = (MemberId::new("a")?, MemberId::new("b")?);
/// let alone = [LiveMember::new(a.clone())];
/// let input = PlanInput {
///     seed: 0,
///     virtual_nodes: NonZeroU16::MIN,
///     partitions: Partitions::DEFAULT,
///     previous: &[],
///     members: &alone,
///     pins: &BTreeMap::new(),
/// };
/// let first = plan(&input);
/// assert_eq!(first.partitions_of(&a).count(), 32);
///
/// let both = [LiveMember::new(a.clone()), LiveMember::new(b.clone())];
/// let second = plan(&PlanInput { previous: &first.to_previous(), members: &both, ..input });
/// assert_eq!(second.partitions_of(&b).count(), 16);
/// assert_eq!(moves(first.owners(), second.owners()), 16);
/// # Ok::<(), jetring::ids::NameError>(())
/// ```
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let (members, weights) = members_and_weights(input.members);
    let mut owners = vec![None; usize::from(input.partitions.get())];
    if members.is_empty() {
        return Plan { members, owners };
    }
    let holdings = Holdings::new(input, &members, &weights, &mut owners);
    let quotas = quotas(u32::from(input.partitions.get()), &holdings.claimants);

    // Only who has room is on the ring: the others would be walked past anyway.
    let receivers: Vec<usize> = (0..members.len())
        .filter(|&m| holdings.claimants[m].held < quotas[m])
        .collect();
    let ring = Ring::new(
        input.seed,
        input.virtual_nodes,
        receivers.iter().map(|&member| &members[member]),
    );

    for (member, mut unpinned) in holdings.unpinned.into_iter().enumerate() {
        let surplus = holdings.claimants[member].held.saturating_sub(quotas[member]) as usize;
        if surplus > 0 {
            unpinned.sort_by_cached_key(|&partition| (ring.distance(partition), partition));
        }
        for partition in &unpinned[surplus..] {
            owners[usize::from(partition.0)] = Some(index(member));
        }
    }

    // The ring sorts its members as they are sorted here, so its indices are those into `receivers`.
    let room = receivers
        .iter()
        .map(|&member| quotas[member] - holdings.claimants[member].held)
        .collect();
    let mut placement = Placement::new(&ring, room);
    for (partition, owner) in input.partitions.iter().zip(&mut owners) {
        if owner.is_none() {
            *owner = placement.place(partition).map(|receiver| index(receivers[receiver]));
        }
    }
    Plan { members, owners }
}

/// Members are counted in `u32` where there is one number per partition.
#[expect(clippy::expect_used, reason = "the message proves why it cannot fail")]
fn index(member: usize) -> u32 {
    u32::try_from(member).expect("a list of 2^32 member ids does not fit into memory")
}

/// Sorted by id, each once; the weights in the same order, not all 0.
fn members_and_weights(live: &[LiveMember]) -> (Vec<MemberId>, Vec<u16>) {
    let mut sorted: Vec<&LiveMember> = live.iter().collect();
    // The highest weight first, and of equal ids the first stays.
    sorted.sort_unstable_by(|a, b| a.id.cmp(&b.id).then(b.weight.cmp(&a.weight)));
    sorted.dedup_by(|a, b| a.id == b.id);
    let mut weights: Vec<u16> = sorted.iter().map(|member| member.weight).collect();
    if weights.iter().all(|&weight| weight == 0) {
        weights.fill(1);
    }
    (sorted.into_iter().map(|member| member.id.clone()).collect(), weights)
}

/// What each live member that is not drained has, before anything is given up.
struct Holdings {
    claimants: Vec<Claimant>,
    unpinned: Vec<Vec<Partition>>,
}

impl Holdings {
    /// Also enters the owners of the pinned partitions into `owners`.
    fn new(input: &PlanInput<'_>, members: &[MemberId], weights: &[u16], owners: &mut [Option<u32>]) -> Self {
        let by_id: HashMap<&MemberId, usize> = members
            .iter()
            .enumerate()
            .filter(|&(member, _)| weights[member] > 0)
            .map(|(m, id)| (id, m))
            .collect();
        let mut claimants: Vec<Claimant> = weights
            .iter()
            .map(|&weight| Claimant {
                weight,
                pinned: 0,
                held: 0,
            })
            .collect();
        let mut unpinned = vec![Vec::new(); members.len()];
        for (partition, id) in input.pins {
            let slot = owners.get_mut(usize::from(partition.0));
            if let (Some(slot), Some(&member)) = (slot, by_id.get(id)) {
                *slot = Some(index(member));
                claimants[member].pinned += 1;
                claimants[member].held += 1;
            }
        }
        let previous = input.previous.iter().map(Option::as_ref);
        for ((partition, previous), owner) in input.partitions.iter().zip(previous).zip(&*owners) {
            if let (None, Some(&member)) = (owner, previous.and_then(|id| by_id.get(id))) {
                claimants[member].held += 1;
                unpinned[member].push(partition);
            }
        }
        Self { claimants, unpinned }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
