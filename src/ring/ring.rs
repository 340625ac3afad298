//! The ring itself: [`hashring::HashRing`] for the points and their order, and what it lacks.
//!
//! Used alone it does not fit, for four reasons; each has its answer here and a test:
//!
//! - It has no virtual nodes: a node here is a member *and* a number.
//! - It hashes whatever a type's [`Hash`] feeds its hasher: the nodes' `Hash` feeds the canonical bytes of
//!   [`hash`](super::hash) and nothing else, and the hasher is XXH3.
//! - Its lookups may answer with any one of several nodes that share a point, and which one can change when others come or go.
//!   Here equal points are ordered by member id: the nodes are added in one batch from a sorted list, `hashring` sorts
//!   stably, and the search takes the first one. So a member that comes or goes never moves anything between two others.
//! - Its list of successors repeats members and copies the whole ring at each call: it is asked once, at the start, for the
//!   order of all points, and the walks over them borrow and skip.
//!
//! A ring is built once for a list of members and never edited, so its content depends on the members alone.

use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU16;

use hashring::HashRing;
use xxhash_rust::xxh3::Xxh3;

use super::hash::{feed_member, feed_partition};
use crate::ids::{MemberId, Partition};

/// Members on a ring of 2^64 points, each at several of them.
#[derive(Debug, Clone)]
pub struct Ring {
    seed: u64,
    hasher: PointHasherBuilder,
    /// Sorted and without duplicates.
    members: Vec<MemberId>,
    /// In ring order; equal points in the order of their members.
    points: Vec<Point>,
}

/// One virtual node's place. They are ordered by their place, and where that is equal by member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: u64,
    /// Index into the members.
    member: u32,
}

impl Ring {
    /// Places `members`, each at `virtual_nodes` points. Their order and duplicates do not matter.
    ///
    /// ```
    /// use std::num::NonZeroU16;
    /// use jetring::ids::{MemberId, Partition};
    /// use jetring::ring::Ring;
    ///
    /// let members = [MemberId::new("a")?, MemberId::new("b")?];
    /// let ring = Ring::new(0, NonZeroU16::MIN, &members);
    /// assert_eq!(ring.successors(Partition(0)).count(), 2);
    /// # Ok::<(), jetring::ids::NameError>(())
    /// ```
    pub fn new<'a>(seed: u64, virtual_nodes: NonZeroU16, members: impl IntoIterator<Item = &'a MemberId>) -> Self {
        Self::with_hasher(PointHasherBuilder::EXACT, seed, virtual_nodes, members)
    }

    /// As [`Ring::new`], with a hasher that may be coarse: tests make points collide with it.
    fn with_hasher<'a>(
        hasher: PointHasherBuilder,
        seed: u64,
        virtual_nodes: NonZeroU16,
        members: impl IntoIterator<Item = &'a MemberId>,
    ) -> Self {
        let mut members: Vec<MemberId> = members.into_iter().cloned().collect();
        members.sort_unstable();
        members.dedup();
        let nodes = (0_u32..)
            .zip(&members)
            .flat_map(|(index, member)| {
                (0..u32::from(virtual_nodes.get())).map(move |number| Node {
                    seed,
                    member,
                    index,
                    number,
                })
            })
            .collect();
        let mut ring = HashRing::with_hasher(hasher);
        // One batch: `hashring` sorts it stably, so equal points stay in the order of the members.
        ring.batch_add(nodes);
        let points = ring_order(hasher, &ring);
        Self {
            seed,
            hasher,
            members,
            points,
        }
    }

    /// Every member on the ring, sorted, each once.
    pub fn members(&self) -> &[MemberId] {
        &self.members
    }

    /// Every member once, in ring order from the point of `partition`: the first one a plain hash ring would name, then the
    /// one it would name if the first were gone, and so on.
    pub fn successors(&self, partition: Partition) -> impl Iterator<Item = &MemberId> {
        let start = self.start(partition);
        let mut seen = vec![false; self.members.len()];
        let (before, behind) = self.points.split_at(start);
        behind
            .iter()
            .chain(before)
            .map(|point| point.member as usize)
            .filter(move |&member| !std::mem::replace(&mut seen[member], true))
            .map(|member| &self.members[member])
            .take(self.members.len())
    }

    /// How far it is from the point of `partition` to the next member's. `None` on an empty ring.
    pub(super) fn distance(&self, partition: Partition) -> Option<u64> {
        let from = self.point_of(partition);
        let next = self.points.get(self.start(partition)).or(self.points.first())?;
        Some(next.at.wrapping_sub(from))
    }

    /// The position in [`Ring::points`] at which the walk for `partition` starts; their number stands for "at the first".
    fn start(&self, partition: Partition) -> usize {
        let from = self.point_of(partition);
        self.points.partition_point(|point| point.at < from)
    }

    fn point_of(&self, partition: Partition) -> u64 {
        self.hasher.hash_one(PartitionKey {
            seed: self.seed,
            partition,
        })
    }
}

/// Reads the points out of `hashring` in ring order.
fn ring_order(hasher: PointHasherBuilder, ring: &HashRing<Node<'_>, PointHasherBuilder>) -> Vec<Point> {
    // With a hasher of one's own there is one way to see all nodes: as the successors of something, here of nothing.
    let nodes = ring.get_with_replicas(&(), usize::MAX).unwrap_or_default();
    // `hashring` keeps its points to itself, so each is computed once more.
    let mut points: Vec<Point> = nodes
        .iter()
        .map(|node| Point {
            at: hasher.hash_one(node),
            member: node.index,
        })
        .collect();
    // The successors start somewhere, perhaps amid equal points. A sorted list that was rotated descends in one place at most.
    if let Some(last) = points.windows(2).position(|pair| pair[1] < pair[0]) {
        points.rotate_left(last + 1);
    }
    points
}

/// Finds, for one partition after the other, the first member in ring order that has room.
///
/// A full member never gets room again, so its points are skipped for good: `skip` is a forest of short cuts, and each point
/// is passed over once in all the searches together.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    ring: &'a Ring,
    /// How many partitions each member of the ring can still take.
    room: Vec<u32>,
    /// For each position, the next one that may be open; one more than there are points, for the end.
    skip: Vec<usize>,
}

impl<'a> Placement<'a> {
    /// `room` is in the order of [`Ring::members`].
    pub(super) fn new(ring: &'a Ring, room: Vec<u32>) -> Self {
        Self {
            ring,
            room,
            skip: (0..=ring.points.len()).collect(),
        }
    }

    /// Places one partition and returns the index of the member that got it. `None` if all are full.
    pub(super) fn place(&mut self, partition: Partition) -> Option<usize> {
        let start = self.ring.start(partition);
        let position = self.open(start).or_else(|| self.open(0))?;
        let member = self.ring.points[position].member as usize;
        self.room[member] -= 1;
        Some(member)
    }

    /// The first position at or behind `start` whose member has room.
    fn open(&mut self, start: usize) -> Option<usize> {
        let mut position = start;
        loop {
            while self.skip[position] != position {
                // Halve the path on the way.
                self.skip[position] = self.skip[self.skip[position]];
                position = self.skip[position];
            }
            let point = self.ring.points.get(position)?;
            if self.room[point.member as usize] > 0 {
                return Some(position);
            }
            self.skip[position] = position + 1;
        }
    }
}

/// What `hashring` holds: one virtual node of a member.
#[derive(Debug, Clone)]
struct Node<'a> {
    seed: u64,
    member: &'a MemberId,
    index: u32,
    number: u32,
}

impl Hash for Node<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // `write` only: the other methods of a hasher add bytes of their own, in the order of the machine.
        feed_member(self.seed, self.member, self.number, |piece| state.write(piece));
    }
}

/// What is looked up on the ring.
struct PartitionKey {
    seed: u64,
    partition: Partition,
}

impl Hash for PartitionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        feed_partition(self.seed, self.partition, |piece| state.write(piece));
    }
}

/// Makes the hashers of a [`Ring`].
#[derive(Debug, Clone, Copy)]
struct PointHasherBuilder {
    /// The bits of the hash that count. All of them, but for tests: nobody finds points of 64 bits that collide.
    mask: u64,
}

impl PointHasherBuilder {
    const EXACT: Self = Self { mask: u64::MAX };
}

impl BuildHasher for PointHasherBuilder {
    type Hasher = PointHasher;

    fn build_hasher(&self) -> PointHasher {
        PointHasher {
            hash: Xxh3::new(),
            mask: self.mask,
        }
    }
}

/// XXH3-64 of the bytes written, without a seed.
struct PointHasher {
    hash: Xxh3,
    mask: u64,
}

impl Hasher for PointHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    fn finish(&self) -> u64 {
        self.hash.digest() & self.mask
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
