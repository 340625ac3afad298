//! Where it happens: a cluster, the stream, and a proxy between every member and every server.

use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::stream::Config as StreamConfig;
use jetring::Group;
use jetring::testing::NatsCluster;

use crate::support::Fault;
use crate::support::proxy::{Link, Proxy};

use super::Settings;
use super::member::GroupSpec;
use super::run::Log;
use super::schedule::SPARE;
use super::servers::Servers;

/// What exists before the first member.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) servers: Servers,
    pub(crate) server_version: String,
    /// The addresses of the servers, with commas between.
    pub(crate) url: String,
    /// A connection to the servers themselves.
    pub(crate) client: Client,
    pub(crate) spec: GroupSpec,
    pub(crate) group: Group,
    /// For each place of a member its way to each server.
    proxies: Vec<Vec<Proxy>>,
}

impl Stage {
    /// Starts the servers and makes the stream.
    pub(crate) async fn build(settings: &Settings, log: Arc<Log>) -> Result<Self, Fault> {
        let cluster = NatsCluster::start(settings.servers).await?;
        let client = cluster.connect().await?;
        let spec = GroupSpec {
            stream: "chaos".to_owned(),
            bucket: "chaos-group".to_owned(),
            partitions: settings.partitions,
            replicas: settings.servers,
            session_timeout: settings.session_timeout,
        };
        let group = spec.group()?;
        let template = StreamConfig {
            retention: settings.retention.into(),
            num_replicas: settings.servers,
            // Longer than any publish is tried, so that the server keeps one of it.
            duplicate_window: super::run::PUBLISH_PATIENCE * 2,
            ..StreamConfig::default()
        };
        group.provision(&client, template).await?;
        let mut proxies = Vec::new();
        for _ in 0..settings.members + SPARE {
            let mut ways = Vec::new();
            for server in cluster.servers() {
                ways.push(Proxy::to(server.url()).await?);
            }
            proxies.push(ways);
        }
        Ok(Self {
            server_version: cluster.servers()[0].version().to_string(),
            url: cluster.url().to_owned(),
            servers: Servers::new(cluster, log),
            client,
            spec,
            group,
            proxies,
        })
    }

    /// The addresses by which the member of a slot knows the servers.
    pub(crate) fn urls(&self, slot: usize) -> Vec<String> {
        self.proxies[slot].iter().map(Proxy::url).collect()
    }

    /// Decides what becomes of the connections of a member.
    pub(crate) fn link(&self, slot: usize, link: Link) {
        self.proxies[slot].iter().for_each(|proxy| proxy.set(link));
    }
}
