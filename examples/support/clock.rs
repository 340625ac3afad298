//! One clock for all processes of the run.

use rustix::time::{ClockId, clock_gettime};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Nanoseconds since the machine was started. Every process of the machine reads the same clock, and nobody sets it, so the
/// records of different members can be compared.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Time since the start of the machine: neither part is negative.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)
}

/// A time between two readings in milliseconds, to the microsecond: more digits would only be noise.
pub(crate) fn milliseconds(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

/// A time between two readings in seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A span as nanoseconds of this clock.
pub(crate) fn nanos(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
