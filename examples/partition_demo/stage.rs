//! The server, the stream and the group that the run happens on, and tidying them up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::stream::Config as StreamConfig;
use jetring::Group;
use jetring::testing::NatsServer;

use crate::Fault;
use crate::member::{GroupChoice, GroupSpec};
use crate::random::mix;

/// How long tidying up may take.
const TIDY_DEADLINE: Duration = Duration::from_secs(5);

/// What exists before the first member.
#[derive(Debug)]
pub(crate) struct Stage {
    server: NatsServer,
    /// Whose it is, for those who see its stream on a shared server.
    name: &'static str,
    /// A connection for everything but the traffic.
    pub(crate) client: Client,
    /// What members are told.
    pub(crate) spec: GroupSpec,
    /// The group.
    pub(crate) group: Group,
}

impl Stage {
    /// Starts or finds the server, for the program `name`.
    pub(crate) async fn build(name: &'static str, choice: GroupChoice) -> Result<Self, Fault> {
        let server = NatsServer::start().await?;
        let client = server.connect().await?;
        // Others may use the server, other runs of the same program too.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unique = mix(crate::clock::nanos(since_epoch) ^ u64::from(std::process::id())) >> 32;
        let spec = GroupSpec {
            url: server.url().to_owned(),
            stream: format!("{name}-{unique:08x}"),
            bucket: format!("{name}-{unique:08x}-group"),
            choice,
        };
        let group = spec.group()?;
        Ok(Self {
            server,
            name,
            client,
            spec,
            group,
        })
    }

    /// Creates the stream.
    pub(crate) async fn provision(&self) -> Result<(), Fault> {
        let template = StreamConfig {
            description: Some(format!("jetring: {}; deleted at its end", self.name)),
            ..StreamConfig::default()
        };
        self.group.provision(&self.client, template).await.map_err(|error| {
            let hint = "if another stream takes the subjects, perhaps one that a killed run left behind, use --topic";
            format!("{error}\n({hint})").into()
        })
    }

    /// The server in a few words.
    pub(crate) fn server(&self) -> String {
        let whose = match self.server.is_external() {
            true => "of NATS_URL",
            false => "started for this run",
        };
        format!(
            "nats-server {} at {} ({whose})",
            self.server.version(),
            self.server.url()
        )
    }

    /// The version of the server.
    pub(crate) fn server_version(&self) -> String {
        self.server.version().to_string()
    }

    /// Deletes what the run created. A server that was started for it takes everything with it anyway.
    pub(crate) async fn tidy_up(self) {
        if !self.server.is_external() {
            return;
        }
        let context = jetstream::new(self.client.clone());
        let tidied = tokio::time::timeout(TIDY_DEADLINE, async {
            // Neither exists if the run ended before it created them.
            let _ = context.delete_stream(&self.spec.stream).await;
            let _ = context.delete_key_value(&self.spec.bucket).await;
        });
        if tidied.await.is_err() {
            let (stream, bucket) = (&self.spec.stream, &self.spec.bucket);
            eprintln!("the server did not answer: the stream {stream} and the bucket {bucket} may be left on it");
        }
    }
}
