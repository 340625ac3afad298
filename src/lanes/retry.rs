//! How long a failed message waits.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::settings::Retry;

/// The delay before the attempt that follows `failed` failures: exponential, and somewhere between half and the whole of that, so that
/// what failed together does not come back together. The place is a hash and not a draw: a simulation repeats it.
pub(super) fn backoff(retry: &Retry, seed: u64, sequence: u64, failed: u32) -> Duration {
    let doublings = failed.saturating_sub(1).min(63);
    let nanos = retry.initial.as_nanos().saturating_mul(1 << doublings);
    let delay = u64::try_from(nanos.min(retry.max.as_nanos())).unwrap_or(u64::MAX);
    let half = delay / 2;
    Duration::from_nanos((delay - half) + jitter(seed, sequence, failed) % (half + 1))
}

fn jitter(seed: u64, sequence: u64, failed: u32) -> u64 {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes[16..].copy_from_slice(&failed.to_le_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(initial: Duration, max: Duration) -> Retry {
        Retry {
            initial,
            max,
            max_attempts: None,
        }
    }

    #[test]
    fn doubles_up_to_the_longest_and_stays_within_half_and_whole() {
        let retry = retry(Duration::from_millis(100), Duration::from_secs(2));
        let whole = [100, 200, 400, 800, 1600, 2000, 2000];
        for (failed, millis) in (1..).zip(whole) {
            for sequence in 0..50 {
                let delay = backoff(&retry, 7, sequence, failed);
                assert!(delay <= Duration::from_millis(millis), "{failed}: {delay:?}");
                assert!(delay >= Duration::from_millis(millis) / 2, "{failed}: {delay:?}");
            }
        }
    }

    #[test]
    fn spreads_and_repeats() {
        let retry = retry(Duration::from_secs(1), Duration::from_secs(1));
        let delays: std::collections::BTreeSet<_> = (0..100).map(|sequence| backoff(&retry, 7, sequence, 1)).collect();
        assert!(delays.len() > 90);
        assert_eq!(backoff(&retry, 7, 3, 1), backoff(&retry, 7, 3, 1));
        assert_ne!(backoff(&retry, 7, 3, 1), backoff(&retry, 8, 3, 1));
    }

    #[test]
    fn extreme_settings_do_not_overflow() {
        assert_eq!(backoff(&retry(Duration::ZERO, Duration::ZERO), 1, 1, 1), Duration::ZERO);
        assert!(backoff(&retry(Duration::MAX, Duration::MAX), 1, 1, u32::MAX) > Duration::from_secs(1 << 32));
    }
}
