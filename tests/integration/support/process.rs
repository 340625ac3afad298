//! A member in a process of its own, which can be killed and frozen: this test binary, run again.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jetring::Status;
use jetring::testing::Process;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::journal::{Journal, Life, What};
use super::members::{Recorder, work};
use super::{DEADLINE, Setup};

/// Holds the [`Spec`] of the member that this process is to be.
const SPEC: &str = "JETRING_INTEGRATION_MEMBER";

/// The body of a message that aborts whatever process runs it.
pub(crate) const POISON: &str = "poison";

/// How many handlers of a process can be about to start at the same moment.
pub(crate) const THREADS: usize = 2;

/// What the process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) setup: Setup,
    pub(crate) url: String,
    pub(crate) life: Life,
    pub(crate) journal: PathBuf,
    /// The handler of this key's messages waits for the gate.
    pub(crate) held_key: Option<String>,
    /// The gate is open when this file is there.
    pub(crate) gate: PathBuf,
    /// How long every handler takes.
    pub(crate) pace: Duration,
    /// How long a message with the body [`POISON`] runs before it aborts the process.
    pub(crate) dies_after: Duration,
}

/// A member's process.
#[derive(Debug)]
pub(crate) struct MemberProcess {
    process: Process,
    spec: Spec,
}

impl MemberProcess {
    pub(crate) fn spawn(spec: Spec) -> Self {
        let text = serde_json::to_string(&spec).unwrap();
        let process = Process::current_exe()
            .unwrap()
            .args(["--exact", "support::process::member_process", "--nocapture"])
            .env(SPEC, text)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, spec }
    }

    pub(crate) fn life(&self) -> &Life {
        &self.spec.life
    }

    /// Lets the handler of the held key go on.
    pub(crate) fn open_gate(&self) {
        std::fs::write(&self.spec.gate, "").unwrap();
    }

    pub(crate) fn freeze(&mut self) {
        self.process.freeze().unwrap();
    }

    pub(crate) fn thaw(&mut self) {
        self.process.thaw().unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Whether the process has ended by itself.
    pub(crate) fn is_over(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub(crate) async fn leave(mut self) {
        self.process.terminate().unwrap();
        let status = self.process.wait(DEADLINE).await.unwrap();
        assert!(status.success(), "{status}");
    }
}

/// The member, when this process is one; nothing otherwise.
#[test]
fn member_process() {
    if let Ok(text) = env::var(SPEC) {
        let spec: Spec = serde_json::from_str(&text).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build();
        runtime.unwrap().block_on(run(spec));
    }
}

async fn run(spec: Spec) {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let client = async_nats::connect(&spec.url).await.unwrap();
    let journal = Arc::new(Journal::open(&spec.journal));
    let id = spec.life.id.clone();
    let (group, life, pace) = (spec.setup.group(), spec.life.clone(), spec.pace);
    let spec = Arc::new(spec);
    let work = work(move |delivery| {
        let spec = spec.clone();
        async move {
            if delivery.payload() == POISON {
                tokio::time::sleep(spec.dies_after).await;
                std::process::abort();
            }
            let held = spec.held_key.as_deref() == Some(delivery.key());
            while held && !spec.gate.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if !pace.is_zero() {
                tokio::time::sleep(pace).await;
            }
            Ok(())
        }
    });
    let recorder = Recorder::new(journal.clone(), life.clone(), work);
    let member = recorder.listen(group).join(&client, id, recorder).await.unwrap();
    tokio::spawn(tell_parked(member.watch(), journal, life));
    let terminated = async {
        terminate.recv().await;
    };
    member.run_until(terminated).await.unwrap();
}

/// Writes into the journal which keys the member says are parked, as if it were a change.
async fn tell_parked(mut status: watch::Receiver<Status>, journal: Arc<Journal>, life: Life) {
    let mut told = BTreeSet::new();
    while status.changed().await.is_ok() {
        let partitions = status.borrow_and_update().lanes.partitions.clone();
        for parked in partitions.into_iter().flat_map(|partition| partition.parked) {
            if told.insert(parked.stream_sequence) {
                let (key, sequence, error) = (parked.key, parked.stream_sequence, parked.error);
                journal.write(&life, What::Changed(format!("Parked {key} {sequence}: {error}")));
            }
        }
    }
}
