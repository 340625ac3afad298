//! The choices of a [`NatsServer`], and the configuration file they become.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::find::{Environment, Wanted};
use super::{NatsServer, ServerError};

/// The choices of a [`NatsServer`]. Each one but [`start_timeout`](Self::start_timeout) and
/// [`environment`](Self::environment) is about a server of one's own, so it implies [`own`](Self::own).
///
/// ```no_run
/// # async fn example() -> Result<(), jetring::testing::ServerError> {
/// use jetring::testing::NatsServer;
///
/// let server = NatsServer::builder()
///     .version("2.10.26")
///     .config("max_payload: 64KB")
///     .jetstream_config("sync_interval: always")
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing runs before `start`"]
pub struct NatsServerBuilder {
    pub(super) environment: Environment,
    pub(super) wanted: Wanted,
    pub(super) own: bool,
    /// `None`: any free one.
    pub(super) port: Option<u16>,
    /// `None`: a temporary one.
    pub(super) store_dir: Option<PathBuf>,
    pub(super) name: String,
    pub(super) start_timeout: Duration,
    config: String,
    jetstream_config: String,
}

impl NatsServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            environment: Environment::from_process(),
            wanted: Wanted::Any,
            own: false,
            port: None,
            store_dir: None,
            name: unique_name(),
            start_timeout: Duration::from_secs(30),
            config: String::new(),
            jetstream_config: String::new(),
        }
    }

    /// Starts a server even when `NATS_URL` names a running one. For tests that stop or kill their server.
    pub fn own(mut self) -> Self {
        self.own = true;
        self
    }

    /// Starts this binary, not what the environment has.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.wanted = Wanted::Binary(path.into());
        self.own()
    }

    /// Starts exactly this version, for example `"2.10.26"`, and installs it if it is not there yet.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.wanted = Wanted::Version(version.into());
        self.own()
    }

    /// Listens on this port of 127.0.0.1. Default: any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self.own()
    }

    /// Keeps what JetStream stores in this folder, which is made if need be and outlives the server: another server can be
    /// started on it later. Default: a temporary folder, which ends with the [`NatsServer`].
    pub fn store_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.store_dir = Some(folder.into());
        self.own()
    }

    /// The server's name, as clients see it. Default: one that no other test's server has.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self.own()
    }

    /// Adds text to the server's configuration file, for example `max_payload: 64KB`. What is set here by name (`host`, `port`,
    /// `server_name`, `jetstream`) stays as it is; for the last one there is [`jetstream_config`](Self::jetstream_config).
    pub fn config(mut self, text: impl AsRef<str>) -> Self {
        push_line(&mut self.config, text.as_ref());
        self.own()
    }

    /// Adds text to the `jetstream` block of the configuration file, for example `sync_interval: always` or `max_mem: 64MB`.
    pub fn jetstream_config(mut self, text: impl AsRef<str>) -> Self {
        push_line(&mut self.jetstream_config, text.as_ref());
        self.own()
    }

    /// How long the server may take until it serves JetStream, after it was found or installed. Default: 30 s, which is much more
    /// than it needs on a busy machine.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Where a server is looked for. Default: [`Environment::from_process`].
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Finds the server, starts it if it is an own one, and waits until it serves JetStream.
    ///
    /// # Errors
    /// [`ServerError`], whose message says what to do. Nothing is left running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn start(self) -> Result<NatsServer, ServerError> {
        NatsServer::start_with(self).await
    }

    /// The configuration file. What must hold comes last: of two equal names the server takes the later one.
    pub(super) fn render(&self, port: u16, store_dir: &Path) -> String {
        let Self {
            config,
            jetstream_config,
            ..
        } = self;
        let name = quoted(&self.name);
        let store_dir = quoted(&store_dir.to_string_lossy());
        format!(
            "{config}\n\
             server_name: {name}\n\
             host: \"127.0.0.1\"\n\
             port: {port}\n\
             jetstream {{\n{jetstream_config}store_dir: {store_dir}\n}}\n"
        )
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// A string of the server's configuration language.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A name that no other server of this machine's tests has, by which the server that answers is known to be the one started.
fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("jetring-test-{}-{count}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_hold_comes_after_extra_text() {
        let builder = NatsServerBuilder::new()
            .name("a \"b\"")
            .config("port: 1")
            .jetstream_config("max_mem: 64MB");
        let text = builder.render(4222, Path::new("/store"));
        assert_eq!(
            text,
            "port: 1\n\nserver_name: \"a \\\"b\\\"\"\nhost: \"127.0.0.1\"\nport: 4222\n\
             jetstream {\nmax_mem: 64MB\nstore_dir: \"/store\"\n}\n"
        );
    }

    #[test]
    fn names_are_unique() {
        assert_ne!(unique_name(), unique_name());
    }
}
