//! Points, their order and collisions, each against the definition; and what `hashring` would do by itself.

use super::super::hash::{member_point, partition_point};
use super::*;
use proptest::prelude::*;

fn members(names: &[&str]) -> Vec<MemberId> {
    names.iter().map(|name| MemberId::new(*name).unwrap()).collect()
}

fn nodes(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn ids(range: std::ops::Range<usize>) -> Vec<MemberId> {
    range
        .map(|number| MemberId::new(format!("m-{number}")).unwrap())
        .collect()
}

/// Keeps only the lowest bits, so that many points are equal.
fn coarse(bits: u32) -> PointHasherBuilder {
    PointHasherBuilder { mask: (1 << bits) - 1 }
}

#[test]
fn a_point_is_the_canonical_hash() {
    let member = MemberId::new("pod-7").unwrap();
    let ring = Ring::new(7, nodes(4), [&member]);
    let mut wanted: Vec<u64> = (0..4).map(|number| member_point(7, &member, number)).collect();
    wanted.sort_unstable();
    assert_eq!(ring.points.iter().map(|point| point.at).collect::<Vec<_>>(), wanted);
    assert!(
        wanted.contains(&0x9fa8_0ce5_a970_a395),
        "the golden point of virtual node 3"
    );
    for number in [0, 1, 31, 4095] {
        assert_eq!(ring.point_of(Partition(number)), partition_point(7, Partition(number)));
    }
}

#[test]
fn a_derived_hash_would_be_another_point() {
    #[derive(Hash)]
    struct Derived<'a>(u64, &'a str, u32);
    let member = MemberId::new("pod-7").unwrap();
    let derived = PointHasherBuilder::EXACT.hash_one(Derived(7, member.as_str(), 3));
    assert_ne!(derived, member_point(7, &member, 3), "the check above can fail");
}

#[test]
fn golden_order() {
    let ring = Ring::new(0, nodes(16), &members(&["a", "b", "c", "d"]));
    let orders: Vec<String> = (0..4)
        .map(|number| {
            ring.successors(Partition(number))
                .map(MemberId::as_str)
                .collect::<String>()
        })
        .collect();
    // Computed with another implementation of the hash, from the definition of the order.
    assert_eq!(orders, ["abdc", "bdca", "abdc", "abdc"]);
}

#[test]
fn an_empty_ring_has_no_successor() {
    let ring = Ring::new(0, nodes(16), []);
    assert_eq!(ring.successors(Partition(0)).count(), 0);
    assert_eq!(ring.distance(Partition(0)), None);
    assert_eq!(Placement::new(&ring, vec![]).place(Partition(0)), None);
}

/// The order on the ring, from the definition: sort everybody by the distance of the nearest point, then by id.
fn slow_successors(hasher: PointHasherBuilder, seed: u64, count: u16, all: &[MemberId], p: Partition) -> Vec<MemberId> {
    let from = hasher.hash_one(PartitionKey { seed, partition: p });
    let point = |member: &MemberId, number| {
        hasher.hash_one(Node {
            seed,
            member,
            index: 0,
            number,
        })
    };
    let mut by_distance: Vec<(u64, &MemberId)> = all
        .iter()
        .map(|member| {
            let nearest = (0..u32::from(count))
                .map(|number| point(member, number).wrapping_sub(from))
                .min();
            (nearest.unwrap(), member)
        })
        .collect();
    by_distance.sort_unstable();
    by_distance.into_iter().map(|(_, member)| member.clone()).collect()
}

proptest! {
    /// With few bits many points are equal, those of partitions and members too.
    #[test]
    fn successors_are_distinct_complete_and_in_ring_order(
        seed: u64, bits in prop_oneof![2_u32..6, Just(64)], count in 1_u16..8, members in 1_usize..20, partition in 0_u16..4096,
    ) {
        let hasher = if bits == 64 { PointHasherBuilder::EXACT } else { coarse(bits) };
        let all = ids(0..members);
        let ring = Ring::with_hasher(hasher, seed, nodes(count), &all);
        let found: Vec<MemberId> = ring.successors(Partition(partition)).cloned().collect();
        prop_assert_eq!(found, slow_successors(hasher, seed, count, &all, Partition(partition)));
    }

    #[test]
    fn the_order_of_the_members_and_duplicates_do_not_matter(
        seed: u64, bits in 2_u32..64, mut list in Just(ids(0..12)).prop_shuffle(), twice in 0_usize..12,
    ) {
        let ring = Ring::with_hasher(coarse(bits), seed, nodes(3), &ids(0..12));
        list.push(list[twice].clone());
        let other = Ring::with_hasher(coarse(bits), seed, nodes(3), &list);
        prop_assert_eq!(&ring.points, &other.points);
        prop_assert_eq!(ring.members(), other.members());
    }

    /// With 16 or fewer points on the whole ring nearly all of them collide.
    #[test]
    fn s15_when_points_collide_a_leaver_changes_nothing_between_the_others(
        seed: u64, bits in 0_u32..5, leaver in 0_usize..12,
    ) {
        let all = ids(0..12);
        let gone = &all[leaver];
        let rest: Vec<MemberId> = all.iter().filter(|member| *member != gone).cloned().collect();
        let before = Ring::with_hasher(coarse(bits), seed, nodes(3), &all);
        let after = Ring::with_hasher(coarse(bits), seed, nodes(3), &rest);
        for partition in (0..64).map(Partition) {
            let without: Vec<&MemberId> = before.successors(partition).filter(|member| *member != gone).collect();
            let found: Vec<&MemberId> = after.successors(partition).collect();
            prop_assert_eq!(&found, &without);
            if before.successors(partition).next() != Some(gone) {
                prop_assert_eq!(before.successors(partition).next(), after.successors(partition).next());
            }
        }
    }

    #[test]
    fn placement_is_the_walk_with_full_members_left_out(
        seed: u64, count in 1_u16..6, room in proptest::collection::vec(0_u32..5, 1..12),
    ) {
        let ring = Ring::new(seed, nodes(count), &ids(0..room.len()));
        let mut left = room.clone();
        let mut placement = Placement::new(&ring, room);
        for partition in (0..64).map(Partition) {
            let index = |member: &MemberId| ring.members().binary_search(member).unwrap();
            let wanted = ring.successors(partition).map(index).find(|member| left[*member] > 0);
            if let Some(member) = wanted {
                left[member] -= 1;
            }
            prop_assert_eq!(placement.place(partition), wanted);
        }
    }
}

/// The planted faults for S15: what `hashring` does by itself when points collide.
#[test]
fn s15_hashring_alone_lets_members_disagree_and_removes_bystanders_when_points_collide() {
    let build = |list: &mut dyn Iterator<Item = &MemberId>| {
        let mut ring = HashRing::with_hasher(coarse(2));
        list.for_each(|member| ring.add(Plain(member.as_str().to_owned())));
        ring
    };
    let key = |partition| PartitionKey {
        seed: 0,
        partition: Partition(partition),
    };
    let all = ids(0..12);
    let (forwards, backwards) = (build(&mut all.iter()), build(&mut all.iter().rev()));
    let disagree = (0..64).any(|partition| {
        forwards.get(&key(partition)).map(|node| &node.0) != backwards.get(&key(partition)).map(|node| &node.0)
    });
    assert!(
        disagree,
        "two members that learned of the others in another order name another owner"
    );
    let removed_another = all.iter().any(|member| {
        let gone = build(&mut all.iter()).remove(&Plain(member.as_str().to_owned()));
        gone.is_some_and(|node| node.0 != member.as_str())
    });
    assert!(removed_another, "removing one member takes another off the ring");
}

struct Plain(String);
impl Hash for Plain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        feed_member(0, &MemberId::new(self.0.as_str()).unwrap(), 0, |piece| {
            state.write(piece)
        });
    }
}
