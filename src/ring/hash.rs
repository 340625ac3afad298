//! The numbers every member must agree on: where a member and a partition stand on the ring, and which partition a key has.
//!
//! What is hashed is written out here byte by byte. `#[derive(Hash)]` would not do: the standard library may feed a hasher
//! other bytes in another version, and feeds integers in the byte order of the machine. Two members that disagree would both
//! believe to own a partition, or neither would. So these functions never change; golden vectors, computed with another
//! implementation of the hash, hold them in place.
//!
//! | point of | bytes, numbers in little-endian order |
//! |---|---|
//! | a member's virtual node | `1`, seed (8), length of the member id in bytes (4), member id (UTF-8), virtual node (4) |
//! | a partition | `2`, seed (8), partition (2) |
//!
//! The first byte keeps the two kinds apart, the length keeps an id apart from the number behind it.

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{MemberId, Partition};
use crate::partitioning::Partitions;

const MEMBER: u8 = 1;
const PARTITION: u8 = 2;

/// Hands the canonical bytes of a member's virtual node to `sink`, piece by piece.
pub(super) fn feed_member(seed: u64, member: &MemberId, virtual_node: u32, mut sink: impl FnMut(&[u8])) {
    let id = member.as_str().as_bytes();
    sink(&[MEMBER]);
    sink(&seed.to_le_bytes());
    // An id is at most `MAX_NAME_LEN` bytes long, so its length fits.
    sink(&(id.len() as u32).to_le_bytes());
    sink(id);
    sink(&virtual_node.to_le_bytes());
}

/// Hands the canonical bytes of a partition to `sink`, piece by piece.
pub(super) fn feed_partition(seed: u64, partition: Partition, mut sink: impl FnMut(&[u8])) {
    sink(&[PARTITION]);
    sink(&seed.to_le_bytes());
    sink(&partition.0.to_le_bytes());
}

/// The point on the ring of one virtual node of a member.
pub fn member_point(seed: u64, member: &MemberId, virtual_node: u32) -> u64 {
    let mut bytes = Vec::with_capacity(17 + member.as_str().len());
    feed_member(seed, member, virtual_node, |piece| bytes.extend_from_slice(piece));
    xxh3_64(&bytes)
}

/// The point on the ring of a partition.
pub fn partition_point(seed: u64, partition: Partition) -> u64 {
    let mut bytes = Vec::with_capacity(11);
    feed_partition(seed, partition, |piece| bytes.extend_from_slice(piece));
    xxh3_64(&bytes)
}

/// The partition of a key where the crate is free to choose it: XXH3-64 of the key's UTF-8 bytes, modulo `partitions`.
///
/// ```
/// use jetring::partitioning::Partitions;
/// use jetring::ring::hash::key_partition;
///
/// assert_eq!(key_partition("42", Partitions::DEFAULT).0, 17);
/// ```
pub fn key_partition(key: &str, partitions: Partitions) -> Partition {
    partitions.of_hash(xxh3_64(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // All golden vectors were computed with the C implementation of XXH3 (python-xxhash) from the table above.

    #[test]
    fn golden_member_points() {
        let long = "x".repeat(128);
        for (seed, id, virtual_node, point) in [
            (0, "a", 0, 0x72f4_a763_0a0b_d1b7_u64),
            (0, "a", 1, 0xd5eb_12bb_2313_e415),
            (7, "pod-7", 3, 0x9fa8_0ce5_a970_a395),
            (u64::MAX, "größe", 65_535, 0xc5cb_2951_6a18_ec9f),
            (0, long.as_str(), 0, 0xa513_8bdf_b2a6_13c6),
        ] {
            let member = MemberId::new(id).unwrap();
            assert_eq!(
                member_point(seed, &member, virtual_node),
                point,
                "{seed} {id} {virtual_node}"
            );
        }
    }

    #[test]
    fn golden_partition_points() {
        for (seed, partition, point) in [
            (0, 0, 0xba4f_86ce_f964_cdf0_u64),
            (0, 1, 0x6511_af13_9fb7_6ba3),
            (7, 31, 0x73a4_1ec2_51b1_063e),
            (u64::MAX, 4095, 0x27d0_b2b7_b15d_dc66),
        ] {
            assert_eq!(partition_point(seed, Partition(partition)), point, "{seed} {partition}");
        }
    }

    #[test]
    fn golden_key_partitions() {
        for (key, of_32, of_4096) in [
            ("", 2, 1218),
            ("a", 31, 3615),
            ("42", 17, 401),
            ("token-1", 2, 1506),
            ("a.b", 22, 758),
            ("größe", 12, 1836),
        ] {
            assert_eq!(key_partition(key, Partitions::new(1).unwrap()), Partition(0), "{key}");
            assert_eq!(
                key_partition(key, Partitions::new(32).unwrap()),
                Partition(of_32),
                "{key}"
            );
            assert_eq!(
                key_partition(key, Partitions::new(4096).unwrap()),
                Partition(of_4096),
                "{key}"
            );
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let member = MemberId::new("ab").unwrap();
        let mut bytes = Vec::new();
        feed_member(0x0102, &member, 3, |piece| bytes.extend_from_slice(piece));
        assert_eq!(bytes, [1, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b', 3, 0, 0, 0]);
        bytes.clear();
        feed_partition(0x0102, Partition(0x0304), |piece| bytes.extend_from_slice(piece));
        assert_eq!(bytes, [2, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3]);
    }
}
