//! How many partitions each member gets: its share, rounded so that as little as possible has to move.

use std::cmp::Reverse;

/// What decides one member's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claimant {
    /// Its part of the work in proportion to the others'. 0: none.
    pub(super) weight: u16,
    /// Partitions it must have.
    pub(super) pinned: u32,
    /// Partitions it has or must have, the pinned ones included.
    pub(super) held: u32,
}

/// Shares `partitions` out. The quotas sum up to `partitions` if anybody has a weight; nobody pins without one.
///
/// Each quota is the member's exact share, rounded down or up. Who is rounded up decides how much moves, so it goes first to
/// those who hold more than their rounded-down share and would otherwise have to give one up; then to the largest remainder;
/// then to who holds more; then to who comes first in the list, that is by member id and not by the ring, so that the choice
/// does not depend on points. Equal weights thus give quotas that differ by at most one.
///
/// A member whose pins exceed its share has just its pins, and the others share the rest.
pub(super) fn quotas(partitions: u32, claimants: &[Claimant]) -> Vec<u32> {
    let mut quotas = vec![0; claimants.len()];
    let mut sharing: Vec<usize> = (0..claimants.len())
        .filter(|&index| claimants[index].weight > 0)
        .collect();
    let mut left = u64::from(partitions);
    let mut total;
    loop {
        total = sharing
            .iter()
            .map(|&index| u64::from(claimants[index].weight))
            .sum::<u64>();
        let (over, within): (Vec<usize>, Vec<usize>) = sharing.iter().partition(|&&index| {
            let claimant = claimants[index];
            // Its pins exceed left * weight / total.
            u64::from(claimant.pinned) * total > left * u64::from(claimant.weight)
        });
        if over.is_empty() {
            break;
        }
        for index in over {
            quotas[index] = claimants[index].pinned;
            left -= u64::from(claimants[index].pinned);
        }
        // The shares of the others shrink by this, so more pins may exceed them now.
        sharing = within;
    }
    if sharing.is_empty() {
        return quotas;
    }
    let mut rounded_off = left;
    let mut order = Vec::with_capacity(sharing.len());
    for index in sharing {
        let claimant = claimants[index];
        let product = left * u64::from(claimant.weight);
        let (floor, remainder) = (product / total, product % total);
        // A share is at most all partitions.
        quotas[index] = floor as u32;
        rounded_off -= floor;
        if remainder > 0 {
            order.push((
                Reverse(claimant.held > quotas[index]),
                Reverse(remainder),
                Reverse(claimant.held),
                index,
            ));
        }
    }
    order.sort_unstable();
    // The remainders sum up to what was rounded off and each is below one, so there are enough of them.
    for (.., index) in order.into_iter().take(rounded_off as usize) {
        quotas[index] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claimant(weight: u16, pinned: u32, held: u32) -> Claimant {
        Claimant { weight, pinned, held }
    }

    fn equal(held: &[u32]) -> Vec<Claimant> {
        held.iter().map(|&held| claimant(1, 0, held)).collect()
    }

    #[test]
    fn the_one_more_goes_to_who_holds_more_then_to_the_first() {
        assert_eq!(quotas(8, &equal(&[0, 0, 0])), [3, 3, 2]);
        assert_eq!(quotas(8, &equal(&[2, 3, 3])), [2, 3, 3]);
        assert_eq!(quotas(8, &equal(&[0, 2, 3])), [2, 3, 3]);
        assert_eq!(quotas(2, &equal(&[0, 1, 1])), [0, 1, 1]);
    }

    #[test]
    fn weights_give_shares() {
        assert_eq!(
            quotas(12, &[claimant(1, 0, 0), claimant(2, 0, 0), claimant(3, 0, 0)]),
            [2, 4, 6]
        );
        // 10/6, 20/6, 30/6: the largest remainder is the first's.
        assert_eq!(
            quotas(10, &[claimant(1, 0, 0), claimant(2, 0, 0), claimant(3, 0, 0)]),
            [2, 3, 5]
        );
        // Unless another already holds one more than its rounded-down share.
        assert_eq!(
            quotas(10, &[claimant(1, 0, 1), claimant(2, 0, 4), claimant(3, 0, 5)]),
            [1, 4, 5]
        );
        assert_eq!(quotas(10, &[claimant(0, 0, 9), claimant(2, 0, 0)]), [0, 10]);
    }

    #[test]
    fn pins_above_the_share_shrink_the_others() {
        assert_eq!(
            quotas(9, &[claimant(1, 5, 5), claimant(1, 0, 0), claimant(1, 0, 0)]),
            [5, 2, 2]
        );
        // The second's pins exceed its share only once the first's are taken off.
        assert_eq!(
            quotas(12, &[claimant(1, 7, 7), claimant(1, 4, 4), claimant(1, 0, 0)]),
            [7, 4, 1]
        );
        assert_eq!(quotas(2, &[claimant(1, 2, 2), claimant(1, 0, 0)]), [2, 0]);
    }

    #[test]
    fn without_a_weight_nobody_gets_any() {
        assert_eq!(quotas(3, &[claimant(0, 0, 3)]), [0]);
        assert_eq!(quotas(3, &[]), [] as [u32; 0]);
    }

    proptest! {
        #[test]
        fn everything_is_shared_out_and_every_quota_is_the_share_rounded(
            partitions in 1_u32..=4096, list in proptest::collection::vec((1_u16.., 0_u32..500), 1..40),
        ) {
            let claimants: Vec<Claimant> = list.iter().map(|&(weight, held)| claimant(weight, 0, held)).collect();
            let found = quotas(partitions, &claimants);
            prop_assert_eq!(found.iter().sum::<u32>(), partitions);
            let total: u64 = list.iter().map(|(weight, _)| u64::from(*weight)).sum();
            for (quota, (weight, _)) in found.iter().zip(&list) {
                let product = u64::from(partitions) * u64::from(*weight);
                prop_assert!(u64::from(*quota) == product / total || u64::from(*quota) == product.div_ceil(total));
            }
        }

        #[test]
        fn pins_are_always_within_the_quota(
            partitions in 1_u32..=64, list in proptest::collection::vec((1_u16..5, 0_u32..20, 0_u32..20), 1..10),
        ) {
            let mut unpinned = partitions;
            let claimants: Vec<Claimant> = list.iter().map(|&(weight, pinned, more)| {
                let pinned = pinned.min(unpinned);
                unpinned -= pinned;
                claimant(weight, pinned, pinned + more)
            }).collect();
            let found = quotas(partitions, &claimants);
            prop_assert_eq!(found.iter().sum::<u32>(), partitions);
            for (quota, claimant) in found.iter().zip(&claimants) {
                prop_assert!(*quota >= claimant.pinned);
            }
        }
    }
}
