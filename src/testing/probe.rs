//! Whether a server serves: a connection and a JetStream request that it answers, never a pause that is hoped to be long enough.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::{Client, ConnectOptions};

use super::{ServerError, ServerVersion};

/// How long one attempt may take. A starting server accepts connections before JetStream answers.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The stream that shows that streams can be made.
const PROBE_STREAM: &str = "jetring-testing-probe";

/// The pause between two tries to make it.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection with default options to an address, or to one of several with commas between.
pub(super) async fn connect(url: &str) -> Result<Client, ServerError> {
    connect_with(ConnectOptions::new(), url).await
}

async fn connect_with(options: ConnectOptions, url: &str) -> Result<Client, ServerError> {
    let addresses: Vec<&str> = url.split(',').map(str::trim).collect();
    let connected = options.connect(&addresses[..]).await;
    connected.map_err(|source| ServerError::Connect {
        url: url.to_owned(),
        source,
    })
}

/// The version of the server if it serves JetStream and, where a name is given, is the one with that name. The error says what is
/// missing.
pub(super) async fn serves_jetstream(url: &str, name: Option<&str>) -> Result<ServerVersion, String> {
    let attempt = async {
        let options = ConnectOptions::new()
            .name("jetring testing")
            .connection_timeout(ATTEMPT);
        let client = connect_with(options, url).await.map_err(|error| error.to_string())?;
        let info = client.server_info();
        if let Some(name) = name
            && info.server_name != name
        {
            return Err(format!("another server answers there: {:?}", info.server_name));
        }
        let account = async_nats::jetstream::new(client).query_account().await;
        account.map_err(|error| format!("JetStream does not answer: {error}"))?;
        info.version.parse().map_err(|error: ServerError| error.to_string())
    };
    match tokio::time::timeout(ATTEMPT, attempt).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {ATTEMPT:?}")),
    }
}

/// Waits until a stream can have `replicas`: servers that have just found each other place none yet.
pub(super) async fn replicates(url: &str, replicas: usize, timeout: Duration) -> Result<(), ServerError> {
    let began = Instant::now();
    loop {
        let attempt = replicated_stream(url, replicas);
        let last = match tokio::time::timeout(ATTEMPT, attempt).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason,
            Err(_) => format!("no answer within {ATTEMPT:?}"),
        };
        let waited = began.elapsed();
        if waited >= timeout {
            return Err(ServerError::NotReady {
                url: url.to_owned(),
                waited,
                last,
                log: String::new(),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Makes a stream with replicas, and deletes it.
async fn replicated_stream(url: &str, replicas: usize) -> Result<(), String> {
    let client = connect(url).await.map_err(|error| error.to_string())?;
    let context = async_nats::jetstream::new(client);
    let config = Config {
        name: PROBE_STREAM.to_owned(),
        subjects: vec![PROBE_STREAM.to_owned()],
        storage: StorageType::Memory,
        num_replicas: replicas,
        ..Config::default()
    };
    // An attempt that was not answered in time may have made it, and creating the same again is no error.
    let created = context.create_stream(config).await;
    created.map_err(|error| format!("no stream with {replicas} replicas: {error}"))?;
    let deleted = context.delete_stream(PROBE_STREAM).await;
    deleted
        .map(drop)
        .map_err(|error| format!("deleting that stream: {error}"))
}
