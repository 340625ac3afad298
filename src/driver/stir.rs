//! Keeps the rest of a runtime going while a handler blocks its thread.
//!
//! On tokio's multi-threaded runtime one worker at a time waits for sockets and timers, for all of them. When that one wakes, runs
//! a handler and is blocked by it, nobody waits any more: the other workers sleep until a task is given to them, and no heartbeat
//! goes out while cores are idle. A task from outside of the runtime wakes one of them, and it takes the wait over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// A thread that wakes a sleeping worker of the runtime now and then, until this is dropped.
#[derive(Debug)]
pub(super) struct Stir {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stir {
    /// Stirs the runtime that this is called on, once in a `period`. One with a single thread has no other worker to wake.
    pub(super) fn start(period: Duration) -> Self {
        let runtime = Handle::current();
        let stopped = Arc::new(AtomicBool::new(false));
        if runtime.runtime_flavor() != RuntimeFlavor::MultiThread {
            return Self { stopped, thread: None };
        }
        let seen = stopped.clone();
        let stir = move || {
            let mut last = runtime.spawn(std::future::ready(()));
            while !seen.load(Ordering::Acquire) {
                std::thread::park_timeout(period);
                // With every worker blocked they would only pile up.
                if last.is_finished() {
                    last = runtime.spawn(std::future::ready(()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("jetring-stir".to_owned()).spawn(stir);
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread to keep heartbeats going while a handler blocks its thread");
        }
        Self {
            stopped,
            thread: thread.ok(),
        }
    }
}

impl Drop for Stir {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}
