//! A member's own clock: another origin and another rate than everybody else's.

use std::time::Duration;

use jetring::time::Time;

/// Local time = origin + world time x (1 + rate).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) origin: u64,
    /// Parts per million faster than the world; negative: slower.
    pub(crate) rate: i64,
}

impl Clock {
    pub(crate) fn local(&self, world: u64) -> Time {
        let drift = i128::from(world) * i128::from(self.rate) / 1_000_000;
        Time::from_nanos((i128::from(self.origin) + i128::from(world) + drift) as u64)
    }

    /// The first world time at which the local clock has reached `local`.
    pub(crate) fn world(&self, local: Time) -> u64 {
        let elapsed = i128::from(local.as_nanos()) - i128::from(self.origin);
        let mut world = (elapsed.max(0) * 1_000_000 / i128::from(1_000_000 + self.rate)) as u64;
        while self.local(world) < local {
            world += 1;
        }
        world
    }

    /// World time that passes in a local duration.
    pub(crate) fn span(&self, local: Duration) -> u64 {
        (local.as_nanos() * 1_000_000 / (1_000_000 + i128::from(self.rate)) as u128) as u64
    }
}
