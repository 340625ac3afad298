//! Where a server comes from: what the environment names, what is on `PATH`, or what is installed for it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::ServerError;
use super::install::{self, DEFAULT_VERSION};
use super::version::{OLDEST_SUPPORTED, ServerVersion};

/// The variable with the address of a running server to use instead of starting one.
pub const URL_VARIABLE: &str = "NATS_URL";

/// The variable with the path of the nats-server binary to start.
pub const BINARY_VARIABLE: &str = "JETRING_NATS_SERVER";

/// The variable with the version of nats-server to install and start, for example `2.10.26`.
pub const VERSION_VARIABLE: &str = "JETRING_NATS_VERSION";

/// How long a binary may take to print its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(30);

/// Where a server is looked for. The first that is given wins: [`nats_url`](Self::nats_url),
/// [`server_binary`](Self::server_binary), [`server_version`](Self::server_version), a new enough `nats-server` on
/// [`path`](Self::path), an installed one.
///
/// Tests of the finding itself give their own; everybody else takes [`Environment::from_process`], which is the default.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// The address of a running server, or several with commas between: nothing is started. From `NATS_URL`.
    pub nats_url: Option<String>,
    /// The binary to start. If it is missing or too old that is an error. From `JETRING_NATS_SERVER`.
    pub server_binary: Option<PathBuf>,
    /// The version to install and start, whatever else there is. From `JETRING_NATS_VERSION`.
    pub server_version: Option<String>,
    /// The folders to look for `nats-server` in; one that is missing or too old is passed over. From `PATH`.
    pub path: Option<OsString>,
    /// The Python interpreter whose pip installs a server. `python3`.
    pub python: PathBuf,
    /// The folder that servers are installed into, one folder per version. `jetring-nats-server` in cargo's target folder.
    pub install_root: PathBuf,
}

impl Environment {
    /// What the variables of this process say. Empty variables count as not set.
    pub fn from_process() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            nats_url: set(URL_VARIABLE).map(|url| url.to_string_lossy().into_owned()),
            server_binary: set(BINARY_VARIABLE).map(PathBuf::from),
            server_version: set(VERSION_VARIABLE).map(|version| version.to_string_lossy().into_owned()),
            path: set("PATH"),
            python: PathBuf::from("python3"),
            install_root: install::default_root(),
        }
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::from_process()
    }
}

/// A nats-server that runs on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerBinary {
    pub(super) path: PathBuf,
    pub(super) version: ServerVersion,
}

/// What a test asked for, when it did not leave the choice to the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Whatever the environment has.
    #[default]
    Any,
    /// This binary.
    Binary(PathBuf),
    /// Exactly this version, installed if need be.
    Version(String),
}

impl Environment {
    /// Finds the binary to start, and installs one if there is none.
    pub(super) async fn find(&self, wanted: &Wanted) -> Result<ServerBinary, ServerError> {
        match (wanted, &self.server_binary) {
            (Wanted::Binary(path), _) => named("`NatsServerBuilder::binary`", path).await,
            (Wanted::Version(version), _) => install::installed(self, version.parse()?).await,
            (Wanted::Any, Some(path)) => named(BINARY_VARIABLE, path).await,
            (Wanted::Any, None) => match &self.server_version {
                Some(version) => install::installed(self, version.parse()?).await,
                None => match self.on_path().await {
                    Some(binary) => Ok(binary),
                    None => install::installed(self, DEFAULT_VERSION).await,
                },
            },
        }
    }

    /// The first `nats-server` on the path that is new enough.
    async fn on_path(&self) -> Option<ServerBinary> {
        for folder in env::split_paths(self.path.as_deref()?) {
            let path = folder.join("nats-server");
            if !path.is_file() {
                continue;
            }
            match version_of(&path).await {
                Ok(version) if version >= OLDEST_SUPPORTED => return Some(ServerBinary { path, version }),
                Ok(version) => install::tell(&format!(
                    "{} is version {version}, older than {OLDEST_SUPPORTED}: passed over",
                    path.display()
                )),
                Err(reason) => install::tell(&format!("{} is passed over: {reason}", path.display())),
            }
        }
        None
    }
}

/// A binary that somebody named: it is taken, or it is an error.
async fn named(origin: &'static str, path: &Path) -> Result<ServerBinary, ServerError> {
    let path = path.to_owned();
    match version_of(&path).await {
        Ok(version) if version >= OLDEST_SUPPORTED => Ok(ServerBinary { path, version }),
        Ok(found) => Err(ServerError::TooOld { origin, path, found }),
        Err(reason) => Err(ServerError::BadBinary { origin, path, reason }),
    }
}

/// Asks a binary for its version. The error says why it has none.
pub(super) async fn version_of(path: &Path) -> Result<ServerVersion, String> {
    let asked = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(VERSION_DEADLINE, asked).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("`--version` did not end within {VERSION_DEADLINE:?}")),
    };
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ServerVersion::from_output(&printed).ok_or_else(|| {
        let printed: String = printed.trim().chars().take(200).collect();
        format!("`--version` printed {printed:?} and ended with {}", output.status)
    })
}
