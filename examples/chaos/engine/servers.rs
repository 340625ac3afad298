//! The servers, killed and started again beside everything else: a restart takes as long as it takes.

use std::sync::Arc;
use std::time::Duration;

use jetring::testing::NatsCluster;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::support::Fault;

use super::run::Log;

/// How often a restart is tried.
const TRIES: usize = 3;

/// How long it may take until everything that was asked for is done and all servers run.
const DEADLINE: Duration = Duration::from_secs(240);

enum Command {
    Kill(usize),
    RestartStopped,
    /// Tells when everything before it is done.
    Tell(oneshot::Sender<()>),
}

/// The cluster in the hands of a task.
#[derive(Debug)]
pub(crate) struct Servers {
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<Result<(), Fault>>,
}

impl Servers {
    /// Hands the cluster over.
    pub(crate) fn new(cluster: NatsCluster, log: Arc<Log>) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(obey(cluster, receiver, log));
        Self { commands, task }
    }

    /// Has a server killed, when all that was asked for before is done.
    pub(crate) fn kill(&self, server: usize) {
        // The task only ends before its time with an error, which `whole` returns.
        let _ = self.commands.send(Command::Kill(server));
    }

    /// Has all servers started again that do not run.
    pub(crate) fn restart_stopped(&self) {
        let _ = self.commands.send(Command::RestartStopped);
    }

    /// Waits until everything is done and all servers run.
    pub(crate) async fn whole(&mut self) -> Result<(), Fault> {
        let (done, told) = oneshot::channel();
        self.restart_stopped();
        let _ = self.commands.send(Command::Tell(done));
        match tokio::time::timeout(DEADLINE, told).await {
            Ok(Ok(())) => Ok(()),
            // The task has ended before its time: with an error.
            Ok(Err(_)) => (&mut self.task).await?,
            Err(_) => Err(format!("the servers were not back within {DEADLINE:?}").into()),
        }
    }
}

/// The task keeps the cluster until nobody can ask for anything any more.
impl Drop for Servers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn obey(
    mut cluster: NatsCluster,
    mut commands: mpsc::UnboundedReceiver<Command>,
    log: Arc<Log>,
) -> Result<(), Fault> {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Kill(server) => cluster.server_mut(server).kill()?,
            Command::RestartStopped if cluster.servers().iter().all(|server| server.pid().is_some()) => {}
            Command::RestartStopped => {
                restart(&mut cluster).await?;
                log.line("        all servers are back");
            }
            Command::Tell(done) => {
                // Nobody waits any more: then nobody needs to know.
                let _ = done.send(());
            }
        }
    }
    Ok(())
}

async fn restart(cluster: &mut NatsCluster) -> Result<(), Fault> {
    for _ in 1..TRIES {
        match cluster.restart_stopped().await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::warn!(%error, "the servers are started once more"),
        }
    }
    Ok(cluster.restart_stopped().await?)
}
