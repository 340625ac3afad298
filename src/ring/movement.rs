//! How much an assignment moves, and how little any could: the yardstick that [`plan`](super::plan()) is held to.
//!
//! [`least_moves`] is a formula of its own and shares no code with the plan, so that a mistake in one shows in the other.

use std::collections::BTreeMap;

use super::plan::LiveMember;
use crate::ids::MemberId;
use crate::partitioning::Partitions;

/// How many partitions change hands from `previous` to `next`: they had an owner, and now have another.
///
/// A partition that nobody had owned does not move by being given out, nor one that is left without an owner.
pub fn moves<'a>(
    previous: impl IntoIterator<Item = Option<&'a MemberId>>,
    next: impl IntoIterator<Item = Option<&'a MemberId>>,
) -> usize {
    let pairs = previous.into_iter().zip(next);
    pairs
        .filter(|(before, after)| before.is_some() && after.is_some() && before != after)
        .count()
}

/// The least number of partitions that any balanced assignment to `members` has to move, without pins.
///
/// Balanced means that each member has its exact share, rounded down or up; for equal weights loads then differ by at most
/// one. A member that holds at least its share rounded up can keep no more than that, but not all can be rounded up: only as
/// many as the shares rounded down leave over. What cannot be kept moves.
pub fn least_moves(previous: &[Option<MemberId>], members: &[LiveMember], partitions: Partitions) -> usize {
    let count = u64::from(partitions.get());
    let mut weights: BTreeMap<&MemberId, u64> = BTreeMap::new();
    for member in members {
        let weight = weights.entry(&member.id).or_default();
        *weight = u64::from(member.weight).max(*weight);
    }
    if weights.values().all(|&weight| weight == 0) {
        weights.values_mut().for_each(|weight| *weight = 1);
    }
    let total: u64 = weights.values().sum();
    if total == 0 {
        return 0;
    }
    let owned: Vec<&MemberId> = previous.iter().take(usize::from(partitions.get())).flatten().collect();
    let mut held: BTreeMap<&MemberId, u64> = BTreeMap::new();
    for owner in &owned {
        *held.entry(*owner).or_default() += 1;
    }
    let (mut kept, mut left_over, mut would_keep_one_more) = (0, count, 0);
    for (member, weight) in weights {
        let held = held.get(member).copied().unwrap_or(0);
        let (rounded_down, rounded_up) = (count * weight / total, (count * weight).div_ceil(total));
        kept += held.min(rounded_down);
        left_over -= rounded_down;
        would_keep_one_more += held.min(rounded_up) - held.min(rounded_down);
    }
    kept += left_over.min(would_keep_one_more);
    owned.len() - kept as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(number: usize) -> MemberId {
        MemberId::new(format!("m-{number}")).unwrap()
    }

    /// Tries every assignment there is.
    fn by_force(previous: &[Option<MemberId>], members: &[LiveMember], count: usize) -> usize {
        let all_drained = members.iter().all(|member| member.weight == 0);
        let weight = |member: &LiveMember| if all_drained { 1 } else { usize::from(member.weight) };
        let total: usize = members.iter().map(weight).sum();
        let balanced = |owners: &[usize]| {
            members.iter().enumerate().all(|(index, member)| {
                let load = owners.iter().filter(|owner| **owner == index).count();
                let product = count * weight(member);
                load == product / total || load == product.div_ceil(total)
            })
        };
        (0..members.len().pow(count as u32))
            .map(|number| {
                (0..count)
                    .map(|place| number / members.len().pow(place as u32) % members.len())
                    .collect()
            })
            .filter(|owners: &Vec<usize>| balanced(owners))
            .map(|owners| {
                let next: Vec<&MemberId> = owners.iter().map(|owner| &members[*owner].id).collect();
                moves(previous.iter().map(Option::as_ref), next.into_iter().map(Some))
            })
            .min()
            .unwrap()
    }

    #[test]
    fn what_counts_as_a_move() {
        let (a, b) = (id(0), id(1));
        let previous = [Some(&a), Some(&a), None, Some(&b), None];
        assert_eq!(moves(previous, [Some(&a), Some(&b), Some(&b), None, None]), 1);
        assert_eq!(moves(previous, previous), 0);
        assert_eq!(moves([], [Some(&a)]), 0);
    }

    #[test]
    fn a_join_and_a_leave() {
        let partitions = Partitions::DEFAULT;
        let previous: Vec<Option<MemberId>> = (0..32).map(|partition| Some(id(partition % 3))).collect();
        let live = |range: std::ops::Range<usize>| range.map(|number| LiveMember::new(id(number))).collect::<Vec<_>>();
        assert_eq!(least_moves(&previous, &live(0..3), partitions), 0);
        assert_eq!(least_moves(&previous, &live(0..4), partitions), 8);
        assert_eq!(least_moves(&previous, &live(0..2), partitions), 10);
        assert_eq!(least_moves(&previous, &[], partitions), 0);
        assert_eq!(least_moves(&[], &live(0..4), partitions), 0);
    }

    proptest! {
        #[test]
        fn no_assignment_moves_less(
            owners in proptest::collection::vec(proptest::option::of(0_usize..5), 0..7), count in 1_usize..7,
            weights in proptest::collection::vec(0_u16..4, 1..4),
        ) {
            let previous: Vec<Option<MemberId>> = owners.into_iter().map(|owner| owner.map(id)).collect();
            let members: Vec<LiveMember> =
                weights.iter().enumerate().map(|(number, &weight)| LiveMember { id: id(number), weight }).collect();
            let found = least_moves(&previous, &members, Partitions::new(count as u64).unwrap());
            prop_assert_eq!(found, by_force(&previous, &members, count));
        }
    }
}
