//! The scenario language of these tests.
//!
//! A [`World`] is a stream, a group and its members. Tests publish into it, let members join, leave, crash and freeze, wait for
//! what has to follow, and have the [`check`] judge the [`journal`], in which every handler writes its start and its end.
//!
//! | file | about |
//! |---|---|
//! | `world` | a stream and a group, publishing, waiting |
//! | `members` | members of a world: in this process and in processes of their own |
//! | `records` | what the bucket and the stream say: claims, assignment, consumers |
//! | `setup` | the choices of a world, which a child process is handed too |
//! | `journal` | what handlers did, in one order over all processes |
//! | `check` | lost, repeated, out of order, two at a time |
//! | `process` | a member in a process of its own |
//! | `proxy`, `frames` | (of the examples) a connection that can be cut, held in one direction, or relieved of its acks |
//! | `gate` | a handler that waits until it is told to go on |

pub(crate) mod check;
#[path = "../../../examples/support/frames.rs"]
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod journal;
pub(crate) mod members;
pub(crate) mod process;
#[allow(dead_code, reason = "the chaos test uses the rest")]
#[path = "../../../examples/support/proxy.rs"]
pub(crate) mod proxy;
pub(crate) mod records;
pub(crate) mod setup;
pub(crate) mod world;

use std::time::{Duration, Instant};

pub(crate) use gate::Gate;
pub(crate) use proxy::Proxy;
pub(crate) use setup::{Kind, Setup};
pub(crate) use world::World;

/// Much longer than anything takes on a busy machine: every wait ends on an event.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The pause between two looks at something that cannot be awaited.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until `look` finds something. What a look found instead is shown if nothing is found in time.
pub(crate) async fn eventually<T, E: std::fmt::Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(instead) => assert!(
                Instant::now() < end,
                "not within {DEADLINE:?}: {what}\ninstead: {instead:#?}"
            ),
        }
        tokio::time::sleep(LOOK).await;
    }
}
