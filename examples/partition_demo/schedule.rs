//! When what happens.

use std::fmt;
use std::time::Duration;

/// The least that an event needs to be seen through, beside the session timeout where that has to pass.
const SHORTEST: Duration = Duration::from_secs(1);

/// What happens to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// One more member is started.
    Join,
    /// A member is asked to end, and leaves.
    Leave,
    /// A member is killed with SIGKILL.
    Kill,
    /// A member is frozen with SIGSTOP, for longer than its lease.
    Freeze,
    /// The frozen member goes on, and comes back.
    Wake,
}

impl Event {
    /// All, in the order in which they happen.
    pub(crate) const ALL: [Self; 5] = [Self::Join, Self::Leave, Self::Kill, Self::Freeze, Self::Wake];

    /// Whether the old owner is there to hand its partitions over.
    pub(crate) fn is_graceful(self) -> bool {
        matches!(self, Self::Join | Self::Leave | Self::Wake)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Wake => "wake",
        })
    }
}

/// How long each part of the run takes: first a rest, then the time after each event until the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    part: Duration,
    session_timeout: Duration,
}

impl Schedule {
    /// Spreads the events over `total`. After a crash nothing happens for a session timeout, so that two parts are longer.
    pub(crate) fn new(total: Duration, session_timeout: Duration) -> Result<Self, String> {
        let parts = Event::ALL.len() as u32 + 1;
        let needed = SHORTEST * parts + session_timeout * 2;
        if total < needed {
            return Err(format!(
                "--seconds {} is too short: with a session timeout of {session_timeout:?} the run needs at least {} seconds",
                total.as_secs(),
                needed.as_secs_f64().ceil()
            ));
        }
        let part = (total - session_timeout * 2) / parts;
        Ok(Self { part, session_timeout })
    }

    /// The time before the first event.
    pub(crate) fn rest(self) -> Duration {
        self.part
    }

    /// How much of the rest is over when the members have warmed up, so that it can be measured.
    pub(crate) fn warm_up(self) -> Duration {
        self.part / 2
    }

    /// The time from an event to the next, or to the end.
    pub(crate) fn after(self, event: Event) -> Duration {
        match event {
            Event::Kill | Event::Freeze => self.part + self.session_timeout,
            Event::Join | Event::Leave | Event::Wake => self.part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_time() {
        for total in [10, 15, 25, 100].map(Duration::from_secs) {
            let schedule = Schedule::new(total, Duration::from_secs(2)).unwrap();
            let sum = Event::ALL.iter().map(|&event| schedule.after(event)).sum::<Duration>() + schedule.rest();
            assert!(total - sum < Duration::from_micros(1), "{sum:?} of {total:?}");
            assert!(schedule.after(Event::Kill) >= Duration::from_secs(3));
        }
    }

    #[test]
    fn too_little_time_is_refused_with_what_is_needed() {
        let error = Schedule::new(Duration::from_secs(9), Duration::from_secs(2)).unwrap_err();
        assert!(error.contains("at least 10 seconds"), "{error}");
    }
}
