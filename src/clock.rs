//! The one place that reads a clock for leases.

use crate::time::Time;

/// The member's own monotonic clock. On Linux it counts suspended time too, so that a virtual machine that was paused finds its
/// lease over when it wakes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    #[cfg(not(target_os = "linux"))]
    origin: std::time::Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(not(target_os = "linux"))]
            origin: std::time::Instant::now(),
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn now(self) -> Time {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Time since boot: neither part is negative.
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn now(self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
