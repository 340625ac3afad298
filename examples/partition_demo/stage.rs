//! The server, the stream and the group that the run happens on, and tidying them up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::stream::Config as StreamConfig;
use jetring::Group;
use jetring::testing::NatsServer;

use crate::Fault;
use crate::member::GroupSpec;
use crate::options::Options;
use crate::random::mix;

/// How long tidying up may take.
const TIDY_DEADLINE: Duration = Duration::from_secs(5);

/// What exists before the first member.
#[derive(Debug)]
pub(crate) struct Stage {
    server: NatsServer,
    /// The demo's own connection.
    pub(crate) client: Client,
    /// What members are told.
    pub(crate) spec: GroupSpec,
    /// The group.
    pub(crate) group: Group,
}

impl Stage {
    /// Starts or finds the server.
    pub(crate) async fn build(options: &Options) -> Result<Self, Fault> {
        let server = NatsServer::start().await?;
        let client = server.connect().await?;
        // Others may use the server, other runs of the demo too.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unique = mix(crate::clock::nanos(since_epoch) ^ u64::from(std::process::id())) >> 32;
        let spec = GroupSpec {
            url: server.url().to_owned(),
            stream: format!("partition-demo-{unique:08x}"),
            bucket: format!("partition-demo-{unique:08x}-group"),
            topic: options.topic.clone(),
            partitioning: options.partitioning,
            partitions: options.partitions,
            session_timeout: options.session_timeout,
        };
        let group = spec.group()?;
        Ok(Self {
            server,
            client,
            spec,
            group,
        })
    }

    /// Creates the stream.
    pub(crate) async fn provision(&self) -> Result<(), Fault> {
        let template = StreamConfig {
            description: Some("jetring: partition_demo; deleted at its end".to_owned()),
            ..StreamConfig::default()
        };
        self.group.provision(&self.client, template).await.map_err(|error| {
            let hint = "if another stream takes the subjects, perhaps one that a killed demo left behind, use --topic";
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
