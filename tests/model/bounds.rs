//! How far the search goes.

use std::num::NonZeroU16;
use std::sync::LazyLock;
use std::time::Duration;

use jetring::engine::{EngineSettings, Retention};
use jetring::ids::{GroupName, MemberId};
use jetring::partitioning::Partitions;

use crate::planted::Plant;

pub(crate) static GROUP: LazyLock<GroupName> = LazyLock::new(|| GroupName::new("g").unwrap());

pub(crate) const SESSION_TIMEOUT: u64 = 4_000;
const LEASE_MARGIN: u64 = 1_000;
/// How long a cancelled handler may take to end. The rest of the margin is for clock rates.
pub(crate) const CANCEL_GRACE: u64 = 950;
/// How long a request may take before it counts as not answered.
pub(crate) const PATIENCE: u64 = 1_000;
/// How long it may take from the last fault until every partition is served.
const SETTLES: u64 = 2 * SESSION_TIMEOUT + SESSION_TIMEOUT / 2;
/// The same from when the last one was mended: nobody has to be declared dead any more.
const SETTLES_MENDED: u64 = SESSION_TIMEOUT + 3 * SESSION_TIMEOUT / 4;

/// How often each fault may happen in one history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Faults {
    /// A process is gone at once.
    pub(crate) crashes: u8,
    /// A crashed process is started again under the same id.
    pub(crate) restarts: u8,
    /// A process stops running, and may go on at any time, or never.
    pub(crate) freezes: u8,
    /// A process loses the server, and may find it again at any time, or never.
    pub(crate) cuts: u8,
    /// A request does not get through, or its reply does not, or it takes effect at any later time; or its reply is slow.
    pub(crate) losses: u8,
    /// A member leaves.
    pub(crate) leaves: u8,
    /// A consumer vanishes from the server.
    pub(crate) vanishes: u8,
}

/// What is searched.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) members: usize,
    pub(crate) partitions: u16,
    /// Per partition.
    pub(crate) messages: u64,
    pub(crate) retention: Retention,
    pub(crate) faults: Faults,
    /// Faults begin at this time, in milliseconds: what comes before is explored without.
    pub(crate) faults_from: u64,
    /// No fault begins after this time.
    pub(crate) faults_until: u64,
    /// What has begun is mended by this time or never: a thaw, a restart, a link that is back, a write that lands late.
    pub(crate) mends_until: u64,
    /// How much later than the one before a member starts, in milliseconds.
    pub(crate) stagger: u64,
    /// Whether hints of the watch arrive in any order with everything else, instead of with the write that they are about.
    pub(crate) hints_late: bool,
    /// Whether the requests of one member reach the server in any order, instead of the one in which they were sent. Those of
    /// different members always do.
    pub(crate) reorder: bool,
    /// How often in a burst of requests the server turns to another member although the one before has more to ask. `None`:
    /// as often
    /// as can be.
    pub(crate) switches: Option<u8>,
    pub(crate) plant: Option<Plant>,
}

impl Bounds {
    /// No faults, and nothing but the order of the members' requests left to chance.
    pub(crate) fn new(members: usize, partitions: u16) -> Self {
        Self {
            members,
            partitions,
            messages: 1,
            retention: Retention::Limits,
            faults: Faults::default(),
            faults_from: 0,
            faults_until: SESSION_TIMEOUT / 2,
            mends_until: SESSION_TIMEOUT / 2,
            stagger: 300,
            hints_late: false,
            reorder: false,
            switches: None,
            plant: None,
        }
    }

    /// A history ends here.
    pub(crate) fn horizon(&self) -> u64 {
        (self.faults_until + SETTLES).max(self.mends_until + SETTLES_MENDED)
    }

    pub(crate) fn starts_at(&self, slot: usize) -> u64 {
        self.stagger * slot as u64
    }

    pub(crate) fn member(slot: usize) -> MemberId {
        MemberId::new(format!("m{slot}")).unwrap()
    }

    /// Few heartbeats, for each of them is a time at which everything else can happen.
    pub(crate) fn settings(&self, slot: usize) -> EngineSettings {
        EngineSettings {
            group: GROUP.clone(),
            member: Self::member(slot),
            weight: 1,
            address: String::new(),
            partitions: Partitions::new(u64::from(self.partitions)).unwrap(),
            retention: self.retention,
            ring_seed: 0,
            virtual_nodes: NonZeroU16::new(4).unwrap(),
            session_timeout: Duration::from_millis(SESSION_TIMEOUT),
            heartbeat_interval: Duration::from_millis(SESSION_TIMEOUT / 2),
            lease_margin: Duration::from_millis(LEASE_MARGIN),
            rebalance_delay: Duration::ZERO,
            drain_timeout: Duration::from_millis(SESSION_TIMEOUT / 2),
            retry_interval: Duration::from_millis(PATIENCE),
            reconcile_interval: Duration::from_millis(SESSION_TIMEOUT * 3 / 2),
        }
    }
}
