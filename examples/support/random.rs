//! Numbers that look random and are the same for the same seed.

use std::time::Duration;

/// Mixes a number so that near ones come out far apart (the finalizer of SplitMix64: Steele, Lea and Flood, *Fast Splittable
/// Pseudorandom Number Generators*, 2014).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Puts `items` into an order that the seed decides.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for last in (1..items.len()).rev() {
        state = mix(state);
        // The remainder is below the length of a slice.
        items.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

/// A sequence of such numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = mix(self.0);
        self.0
    }

    /// The next number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The remainder is below the bound, which is a `usize`.
        (self.number() % bound as u64) as usize
    }

    /// The next time between two, the second excluded unless they are the same.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least);
        // 53 bits are what a float can hold.
        least + span.mul_f64((self.number() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}
