//! A member that has joined, in the hands of the embedding service.

use std::future::Future;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::driver::Status;
use crate::engine::Stop;
use crate::error::Error;
use crate::group::stop_error;
use crate::ids::MemberId;

/// A running member of a group.
///
/// Dropping it makes the member leave in the background; [`leave`](Self::leave) also waits until it has. A runtime that is shut down
/// before that ends it like a crash: the others take over after `session_timeout`.
#[derive(Debug)]
pub struct Member {
    id: MemberId,
    leave: CancellationToken,
    status: watch::Receiver<Status>,
    driver: Option<JoinHandle<Stop>>,
}

impl Member {
    pub(crate) fn new(
        id: MemberId,
        leave: CancellationToken,
        status: watch::Receiver<Status>,
        driver: JoinHandle<Stop>,
    ) -> Self {
        Self {
            id,
            leave,
            status,
            driver: Some(driver),
        }
    }

    /// Its id.
    pub fn id(&self) -> &MemberId {
        &self.id
    }

    /// A snapshot of what it does.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The snapshots as they come.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Waits until a snapshot satisfies `condition`, and returns it. Without a deadline of its own.
    ///
    /// # Errors
    /// [`Error::Ended`] if the member ends first.
    pub async fn wait_until(&mut self, condition: impl FnMut(&Status) -> bool) -> Result<Status, Error> {
        let found = self.status.wait_for(condition).await;
        found.map(|status| status.clone()).map_err(|_| Error::Ended {
            reason: "its task has ended".to_owned(),
        })
    }

    /// Leaves the group: running handlers end, progress is saved, the partitions go to the others at once.
    ///
    /// It takes as long as the handlers that run, which are cancelled after `drain_timeout`. It also ends when the server is out
    /// of reach: then the others find out by themselves.
    ///
    /// # Errors
    /// [`Error`] if the member had already ended for another reason.
    pub async fn leave(mut self) -> Result<(), Error> {
        self.leave.cancel();
        match self.stop().await {
            Stop::Left => Ok(()),
            stop => Err(stop_error(&self.id, stop)),
        }
    }

    /// Takes part until `shutdown` completes, with whatever, and then leaves. Ends earlier if the member does.
    ///
    /// # Errors
    /// [`Error`] if the member ends for another reason than `shutdown`.
    pub async fn run_until(mut self, shutdown: impl Future) -> Result<(), Error> {
        let stopped = {
            let stopping = self.stop();
            tokio::pin!(stopping, shutdown);
            tokio::select! {
                stop = &mut stopping => Some(stop),
                _ = shutdown => None,
            }
        };
        match stopped {
            Some(stop) => Err(stop_error(&self.id, stop)),
            None => self.leave().await,
        }
    }

    /// Why it has ended, as an error.
    pub(crate) async fn ended(&mut self) -> Error {
        let stop = self.stop().await;
        stop_error(&self.id, stop)
    }

    /// Waits until the member's loop has ended.
    async fn stop(&mut self) -> Stop {
        let Some(driver) = &mut self.driver else {
            return Stop::Left;
        };
        let stop = driver.await;
        self.driver = None;
        stop.unwrap_or_else(|error| Stop::Refused(format!("its task was ended: {error}")))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave.cancel();
    }
}
