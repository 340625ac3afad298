//! The settings of a group's members, with one check for all of them.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::lanes::MOST_DEATHS;

/// How much two clocks may differ in *rate*: 1 in this many.
const CLOCK_RATE_ERROR: u32 = 100;

/// The longest duration that any setting may have. It stands for "never", and sums of times stay far from where they overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The shortest time for a request that is accepted. Below it nothing is ever answered in time.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_millis(10);

/// The shortest session timeout. Below it the round trips of a busy server would look like death.
pub const MIN_SESSION_TIMEOUT: Duration = Duration::from_millis(200);

/// Where a group begins in its stream. It is resolved to a stream sequence once, when the first member creates the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// With the first message that the stream still has.
    #[default]
    First,
    /// With what is published after the group was created. Not possible on a work-queue stream.
    New,
    /// With this stream sequence. Not possible on a work-queue stream.
    Sequence(u64),
}

/// What happens when handlers still run after the lease of a member that was cut off is over: they may overlap with those
/// of the next owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOverrun {
    /// Log it as an error. The fencing token shows a database which write is stale.
    #[default]
    Report,
    /// Abort the process: nothing can overlap any more.
    Abort,
}

/// How finished messages are acked.
///
/// None of them is what keeps a message from being handled twice: that is the progress record. A lost ack leaves its message in a
/// stream that forgets by acks, until it is delivered again, which is after `ack_wait` or when the member's watchdog notices; then
/// it is acked and not handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// Sent once. They cost least.
    #[default]
    Plain,
    /// Sent as a request, and a few times more with pauses until the server confirms it. For streams in which finished messages
    /// should not stay a moment longer than they must, over connections that lose things. A confirmation says that *somebody*
    /// has answered: it is no fence.
    Confirmed,
    /// Not at all: the consumers are made without acks, for streams with limits retention only. This is the fastest way by far, for
    /// the server as well. What is finished stands in the progress record alone, so a crash repeats all that was finished since
    /// the last checkpoint, and the consumers' own figures tell how much was delivered, not how much is finished: look at
    /// [`Status`](crate::Status) for that. Nothing is lost: what was delivered and not finished is delivered again to whoever takes
    /// over.
    None,
}

/// How a failed message is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay after the first failure; it doubles with every further one, and lies somewhere between half and all of that.
    /// More than zero. Usual: 50 ms to 1 s.
    pub initial: Duration,
    /// The longest delay; at least `initial`. Usual: 10 s to a few minutes.
    pub max: Duration,
    /// How many attempts may fail before the message is given up. `None`: never; its key waits for as long as it takes.
    pub max_attempts: Option<NonZeroU32>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(30),
            max_attempts: None,
        }
    }
}

/// Where messages go that are given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSettings {
    /// The stream. It must not hold the group's own subjects.
    pub stream: String,
    /// What stands in front of the original subject: a dead letter of `orders.7` is stored as `<prefix>.orders.7`.
    pub prefix: String,
    /// The replicas of the stream if it has to be created; `None`: it has to be there already.
    pub create_with_replicas: Option<usize>,
}

impl DeadLetterSettings {
    /// Dead letters go to the stream `stream`, which is created if it is not there, under subjects that begin with `prefix`.
    pub fn new(stream: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            prefix: prefix.into(),
            create_with_replicas: Some(1),
        }
    }
}

/// The settings of a group's members.
///
/// `bucket`, `domain`, `session_timeout`, `ring_seed` and `virtual_nodes` are the group's: all members need the same ones, and one
/// that differs is refused as far as that can be seen. All others may differ from member to member.
///
/// ```
/// use std::time::Duration;
/// use jetring::Settings;
///
/// let settings = Settings { session_timeout: Duration::from_secs(10), ..Settings::default() };
/// settings.validate()?;
/// # Ok::<(), jetring::SettingsError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a member may be silent before others declare it dead and take over. At least 200 ms. Usual: 2 s to 30 s.
    pub session_timeout: Duration,
    /// How often a member writes its heartbeat. `None`: a quarter of `session_timeout`. Three must fit into the lease, which is
    /// `session_timeout` less 1 % and `cancel_grace`.
    pub heartbeat_interval: Option<Duration>,
    /// How long handlers of a member that was cut off get to end by themselves when their cancellation fires, before they are
    /// dropped. `None`: an eighth of `session_timeout`. Less than half of it.
    pub cancel_grace: Option<Duration>,
    /// How long membership must be quiet before partitions are assigned anew, so that a rolling restart is not one rebalance
    /// per member. Usual: 100 ms to 5 s.
    pub rebalance_delay: Duration,
    /// How long running handlers may go on after their partition was assigned to another member. Then they are cancelled.
    pub drain_timeout: Duration,
    /// How often a member compares everything with the server's records, whatever it was told by its watch.
    pub reconcile_interval: Duration,
    /// How often the stream is asked for new keys, where they have to be discovered.
    pub discovery_interval: Duration,
    /// How often what is finished is saved, when something changed. A crash repeats at most what was finished since.
    pub checkpoint_interval: Duration,
    /// How long one request to the server may take. Usual: 1 s to 10 s; never more than half of `session_timeout` is waited for a
    /// heartbeat.
    pub request_timeout: Duration,
    /// How many handlers may run at a time in this member. A key never has more than one.
    pub concurrency: NonZeroUsize,
    /// How many messages of one partition this member may hold: queued, running or waiting.
    pub max_held_per_partition: NonZeroUsize,
    /// How many messages this member may hold over all its partitions; at least `max_held_per_partition`.
    pub max_held: NonZeroUsize,
    /// How many bytes of one partition this member may hold. A larger message comes alone, above the bound.
    pub max_bytes_per_partition: NonZeroUsize,
    /// How many bytes this member may hold over all its partitions; at least `max_bytes_per_partition`.
    pub max_bytes: NonZeroUsize,
    /// How many messages of a key that waits stay in memory. Of the others only the number is kept, and they are read again
    /// when their turn comes. Never more than half of `max_held_per_partition`, whatever is set here.
    pub lane_depth: NonZeroUsize,
    /// How many messages of one partition may be kept by number only before it stops pulling; at least `max_held_per_partition`.
    pub max_parked: NonZeroUsize,
    /// How many ranges of finished messages one filter may have above its floor before it stops pulling. They are what its
    /// progress record grows by, some 60 bytes each.
    pub max_ranges: NonZeroUsize,
    /// The `ack_wait` of the consumers. A message that is held longer is kept by in-progress acks, so this only says how fast
    /// the server offers a message again whose delivery was lost. At least 1 s.
    pub ack_wait: Duration,
    /// Whether acks are confirmed. Whether they have reached the server is also looked at every `reconcile_interval`.
    pub acks: Acks,
    /// How often the server is asked about consumers from which messages are awaited and none come. One that does not deliver, or
    /// whose last delivery was lost, is replaced after the second such answer. `None`: a sixth of `ack_wait`, at least 1 s.
    pub inspect_interval: Option<Duration>,
    /// How a failed message is tried again.
    pub retry: RetryPolicy,
    /// How long one attempt may take before it is cancelled and counts as failed. `None`: as long as it likes.
    pub handler_timeout: Option<Duration>,
    /// How often a process may die while it runs one message and nothing else before that message is not run any more and its key
    /// waits. A message that was running when two processes died is run alone from then on. At most 16. Usual: 2 to 5.
    pub max_kills: NonZeroU32,
    /// Whether a message that has ended its process `max_kills` times becomes a dead letter, so that its key goes on. Off by default:
    /// what looks like the message's fault can be the machine's. Needs `dead_letters`.
    pub dead_letter_killers: bool,
    /// Where messages go that are rejected or have failed `retry.max_attempts` times. `None`: nowhere; such a message is kept, its
    /// key waits, and status and log say so.
    pub dead_letters: Option<DeadLetterSettings>,
    /// Where the group begins, if this member creates it.
    pub start: StartFrom,
    /// What happens when handlers outlive the lease.
    pub on_overrun: OnOverrun,
    /// This member's share of the partitions relative to the others'. 0: it gets none while others have more.
    pub weight: u16,
    /// Free text for operators, stored in the member's record, for example a host name.
    pub address: String,
    /// The KV bucket; created if it is not there. Several groups can share one. It is where the members of a group find each other,
    /// so all of them must name the same.
    pub bucket: String,
    /// The replicas of the bucket, if this member creates it. Odd; as many as the stream has is usual.
    pub bucket_replicas: usize,
    /// The JetStream domain, for a server behind a leaf node.
    pub domain: Option<String>,
    /// The seed of the ring. Only to be changed to make another group's assignment differ.
    pub ring_seed: u64,
    /// Points per member on the ring. Usual: 16 to 128.
    pub virtual_nodes: NonZeroU16,
}

const fn number(value: usize) -> NonZeroUsize {
    match NonZeroUsize::new(value) {
        Some(number) => number,
        None => NonZeroUsize::MIN,
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(4),
            heartbeat_interval: None,
            cancel_grace: None,
            rebalance_delay: Duration::from_millis(200),
            drain_timeout: Duration::from_secs(10),
            reconcile_interval: Duration::from_secs(20),
            discovery_interval: Duration::from_millis(500),
            checkpoint_interval: Duration::from_secs(1),
            request_timeout: Duration::from_secs(2),
            concurrency: number(256),
            max_held_per_partition: number(512),
            max_held: number(8192),
            max_bytes_per_partition: number(16 << 20),
            max_bytes: number(128 << 20),
            lane_depth: number(64),
            max_parked: number(10_000),
            max_ranges: number(2_000),
            ack_wait: Duration::from_secs(30),
            acks: Acks::Plain,
            inspect_interval: None,
            retry: RetryPolicy::default(),
            handler_timeout: None,
            max_kills: match NonZeroU32::new(3) {
                Some(number) => number,
                None => NonZeroU32::MIN,
            },
            dead_letter_killers: false,
            dead_letters: None,
            start: StartFrom::First,
            on_overrun: OnOverrun::Report,
            weight: 1,
            address: String::new(),
            bucket: "jetring".to_owned(),
            bucket_replicas: 1,
            domain: None,
            ring_seed: 0,
            virtual_nodes: match NonZeroU16::new(64) {
                Some(number) => number,
                None => NonZeroU16::MIN,
            },
        }
    }
}

/// A setting that cannot work. Nothing was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the setting {field} is {found}, but {needed}")]
#[non_exhaustive]
pub struct SettingsError {
    /// The name of the setting.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it has to be.
    pub needed: String,
}

impl Settings {
    /// How often a heartbeat is written.
    pub fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval.unwrap_or(self.session_timeout / 4)
    }

    /// How long cancelled handlers get to end by themselves.
    pub fn cancel_grace(&self) -> Duration {
        self.cancel_grace.unwrap_or(self.session_timeout / 8)
    }

    /// How long before `session_timeout` a member without a confirmed heartbeat cuts itself off: the clock-rate error and the
    /// time its handlers get to end.
    pub fn lease_margin(&self) -> Duration {
        self.session_timeout / CLOCK_RATE_ERROR + self.cancel_grace()
    }

    /// How many messages of a key that waits stay in memory.
    pub(crate) fn lane_depth(&self) -> NonZeroUsize {
        self.lane_depth.min(number(self.max_held_per_partition.get() / 2))
    }

    /// How many messages of one consumer may be delivered and unacked: those kept by number, and twice those held, because messages
    /// whose ack is on its way still count at the server.
    pub(crate) fn max_ack_pending(&self) -> i64 {
        let held = self.max_held_per_partition.get().saturating_mul(2);
        i64::try_from(held.saturating_add(self.max_parked.get())).unwrap_or(i64::MAX)
    }

    /// How often the server is asked about consumers that are silent.
    pub fn inspect_interval(&self) -> Duration {
        self.inspect_interval
            .unwrap_or((self.ack_wait / 6).max(Duration::from_secs(1)))
    }

    /// How long the engine waits before it tries a failed step again.
    pub(crate) fn retry_interval(&self) -> Duration {
        (self.heartbeat_interval() / 4).clamp(Duration::from_millis(20), Duration::from_millis(250))
    }

    fn durations(&self) -> [(&'static str, Duration); 13] {
        [
            ("session_timeout", self.session_timeout),
            ("heartbeat_interval", self.heartbeat_interval()),
            ("cancel_grace", self.cancel_grace()),
            ("rebalance_delay", self.rebalance_delay),
            ("drain_timeout", self.drain_timeout),
            ("reconcile_interval", self.reconcile_interval),
            ("discovery_interval", self.discovery_interval),
            ("checkpoint_interval", self.checkpoint_interval),
            ("request_timeout", self.request_timeout),
            ("ack_wait", self.ack_wait),
            ("retry.initial", self.retry.initial),
            ("retry.max", self.retry.max),
            ("handler_timeout", self.handler_timeout.unwrap_or_default()),
        ]
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// [`SettingsError`] for the first one that cannot work.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |ok: bool, field: &'static str, found: String, needed: String| {
            if ok {
                Ok(())
            } else {
                Err(SettingsError { field, found, needed })
            }
        };
        let positive = |value: Duration, field: &'static str| {
            let needed = "it has to be more than zero".to_owned();
            check(value > Duration::ZERO, field, format!("{value:?}"), needed)
        };
        for (field, value) in self.durations() {
            check(
                value <= LONGEST,
                field,
                format!("{value:?}"),
                "it has to be at most 365 days".to_owned(),
            )?;
        }
        check(
            self.session_timeout >= MIN_SESSION_TIMEOUT,
            "session_timeout",
            format!("{:?}", self.session_timeout),
            format!("it has to be at least {MIN_SESSION_TIMEOUT:?}"),
        )?;
        check(
            self.cancel_grace() < self.session_timeout / 2,
            "cancel_grace",
            format!("{:?}", self.cancel_grace()),
            format!(
                "it has to be less than half of session_timeout ({:?})",
                self.session_timeout
            ),
        )?;
        positive(self.heartbeat_interval(), "heartbeat_interval")?;
        let lease = self.session_timeout.saturating_sub(self.lease_margin());
        check(
            self.heartbeat_interval() * 3 <= lease,
            "session_timeout",
            format!("{:?}", self.session_timeout),
            format!(
                "three heartbeats of {:?} have to fit into the lease, which is {lease:?}; raise session_timeout or lower \
                 heartbeat_interval or cancel_grace",
                self.heartbeat_interval()
            ),
        )?;
        positive(self.drain_timeout, "drain_timeout")?;
        positive(self.reconcile_interval, "reconcile_interval")?;
        positive(self.discovery_interval, "discovery_interval")?;
        positive(self.checkpoint_interval, "checkpoint_interval")?;
        check(
            self.request_timeout >= MIN_REQUEST_TIMEOUT,
            "request_timeout",
            format!("{:?}", self.request_timeout),
            format!("it has to be at least {MIN_REQUEST_TIMEOUT:?}"),
        )?;
        positive(self.inspect_interval(), "inspect_interval")?;
        positive(self.retry.initial, "retry.initial")?;
        check(
            self.retry.max >= self.retry.initial,
            "retry.max",
            format!("{:?}", self.retry.max),
            format!("it has to be at least retry.initial ({:?})", self.retry.initial),
        )?;
        check(
            self.ack_wait >= Duration::from_secs(1),
            "ack_wait",
            format!("{:?}", self.ack_wait),
            "it has to be at least 1s".to_owned(),
        )?;
        let at_least = |value: NonZeroUsize, field: &'static str, least: NonZeroUsize, name: &str| {
            let needed = format!("it has to be at least {name} ({least})");
            check(value >= least, field, value.to_string(), needed)
        };
        at_least(
            self.max_held,
            "max_held",
            self.max_held_per_partition,
            "max_held_per_partition",
        )?;
        at_least(
            self.max_bytes,
            "max_bytes",
            self.max_bytes_per_partition,
            "max_bytes_per_partition",
        )?;
        at_least(
            self.max_parked,
            "max_parked",
            self.max_held_per_partition,
            "max_held_per_partition",
        )?;
        positive(self.handler_timeout.unwrap_or(Duration::MAX), "handler_timeout")?;
        let kept = usize::try_from(self.max_kills.get()).unwrap_or(usize::MAX);
        check(
            kept <= MOST_DEATHS,
            "max_kills",
            self.max_kills.to_string(),
            format!("it has to be at most {MOST_DEATHS}: no more deaths are kept of a message"),
        )?;
        check(
            !self.dead_letter_killers || self.dead_letters.is_some(),
            "dead_letter_killers",
            "true".to_owned(),
            "dead_letters has to say where such messages go".to_owned(),
        )?;
        if let Some(letters) = &self.dead_letters {
            check(
                is_literal_subject(&letters.prefix),
                "dead_letters.prefix",
                format!("{:?}", letters.prefix),
                "it has to be a subject without wildcards, white space, empty tokens or a leading $".to_owned(),
            )?;
            check(
                !letters.stream.is_empty() && !letters.stream.contains(FORBIDDEN_IN_STREAM_NAMES),
                "dead_letters.stream",
                format!("{:?}", letters.stream),
                "it has to be the name of a stream: not empty, no white space, none of . * > / \\".to_owned(),
            )?;
            let replicas = letters.create_with_replicas;
            check(
                matches!(replicas, None | Some(1 | 3 | 5)),
                "dead_letters.create_with_replicas",
                format!("{replicas:?}"),
                "it has to be 1, 3 or 5, or None".to_owned(),
            )?;
        }
        check(
            is_bucket_name(&self.bucket),
            "bucket",
            format!("{:?}", self.bucket),
            "it has to be one or more of A-Z, a-z, 0-9, '-' and '_'".to_owned(),
        )?;
        check(
            matches!(self.bucket_replicas, 1 | 3 | 5),
            "bucket_replicas",
            self.bucket_replicas.to_string(),
            "it has to be 1, 3 or 5".to_owned(),
        )
    }
}

/// What no stream name may hold, besides white space and control characters.
pub(crate) const FORBIDDEN_IN_STREAM_NAMES: fn(char) -> bool =
    |c| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);

fn is_literal_subject(subject: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control();
    let literal = |token: &str| !token.is_empty() && token != "*" && token != ">";
    !subject.starts_with('$') && !subject.contains(bad) && subject.split('.').all(literal)
}

fn is_bucket_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &Settings) -> &'static str {
        settings.validate().unwrap_err().field
    }

    #[test]
    fn the_defaults_are_valid_and_so_is_a_sub_second_session() {
        Settings::default().validate().unwrap();
        let session_timeout = MIN_SESSION_TIMEOUT;
        let settings = Settings {
            session_timeout,
            ..Settings::default()
        };
        settings.validate().unwrap();
    }

    #[test]
    fn each_impossible_setting_is_named() {
        let ok = Settings::default;
        let tiny = Duration::from_millis(100);
        assert_eq!(
            refused(&Settings {
                session_timeout: tiny,
                ..ok()
            }),
            "session_timeout"
        );
        let slow = Some(Duration::from_secs(2));
        assert_eq!(
            refused(&Settings {
                heartbeat_interval: slow,
                ..ok()
            }),
            "session_timeout"
        );
        assert_eq!(
            refused(&Settings {
                heartbeat_interval: Some(Duration::ZERO),
                ..ok()
            }),
            "heartbeat_interval"
        );
        assert_eq!(
            refused(&Settings {
                cancel_grace: slow,
                ..ok()
            }),
            "cancel_grace"
        );
        assert_eq!(
            refused(&Settings {
                drain_timeout: Duration::ZERO,
                ..ok()
            }),
            "drain_timeout"
        );
        assert_eq!(refused(&Settings { ack_wait: tiny, ..ok() }), "ack_wait");
        assert_eq!(
            refused(&Settings {
                max_held: number(1),
                ..ok()
            }),
            "max_held"
        );
        assert_eq!(
            refused(&Settings {
                bucket: "a.b".into(),
                ..ok()
            }),
            "bucket"
        );
        assert_eq!(
            refused(&Settings {
                bucket: String::new(),
                ..ok()
            }),
            "bucket"
        );
        assert_eq!(
            refused(&Settings {
                bucket_replicas: 2,
                ..ok()
            }),
            "bucket_replicas"
        );
        let retry = RetryPolicy {
            max: Duration::ZERO,
            ..RetryPolicy::default()
        };
        assert_eq!(refused(&Settings { retry, ..ok() }), "retry.max");
        assert_eq!(
            refused(&Settings {
                max_kills: NonZeroU32::new(17).unwrap(),
                ..ok()
            }),
            "max_kills"
        );
        assert_eq!(
            refused(&Settings {
                dead_letter_killers: true,
                ..ok()
            }),
            "dead_letter_killers"
        );
    }

    #[test]
    fn a_duration_that_means_for_ever_is_refused_and_does_not_overflow() {
        let never = Duration::MAX;
        let ok = Settings::default;
        for (field, settings) in [
            (
                "session_timeout",
                Settings {
                    session_timeout: never,
                    ..ok()
                },
            ),
            (
                "heartbeat_interval",
                Settings {
                    heartbeat_interval: Some(never),
                    ..ok()
                },
            ),
            (
                "cancel_grace",
                Settings {
                    cancel_grace: Some(never),
                    ..ok()
                },
            ),
            (
                "rebalance_delay",
                Settings {
                    rebalance_delay: never,
                    ..ok()
                },
            ),
            (
                "drain_timeout",
                Settings {
                    drain_timeout: never,
                    ..ok()
                },
            ),
            (
                "checkpoint_interval",
                Settings {
                    checkpoint_interval: never,
                    ..ok()
                },
            ),
            (
                "request_timeout",
                Settings {
                    request_timeout: never,
                    ..ok()
                },
            ),
            (
                "ack_wait",
                Settings {
                    ack_wait: never,
                    ..ok()
                },
            ),
            (
                "handler_timeout",
                Settings {
                    handler_timeout: Some(never),
                    ..ok()
                },
            ),
        ] {
            assert_eq!(refused(&settings), field);
        }
        let settings = Settings {
            drain_timeout: LONGEST,
            ..ok()
        };
        settings.validate().unwrap();
    }

    #[test]
    fn an_error_says_what_is_wrong_what_was_found_and_what_to_do() {
        let settings = Settings {
            bucket_replicas: 2,
            ..Settings::default()
        };
        let text = settings.validate().unwrap_err().to_string();
        assert_eq!(text, "the setting bucket_replicas is 2, but it has to be 1, 3 or 5");
    }
}
