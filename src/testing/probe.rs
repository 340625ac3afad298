//! Whether a server serves: a connection and a JetStream request that it answers, never a pause that is hoped to be long enough.

use std::time::Duration;

use async_nats::{Client, ConnectOptions};

use super::{ServerError, ServerVersion};

/// How long one attempt may take. A starting server accepts connections before JetStream answers.
const ATTEMPT: Duration = Duration::from_secs(2);

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
