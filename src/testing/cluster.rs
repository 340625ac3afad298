//! Several servers that replicate: started together, killed and restarted one by one.

use std::net::{Ipv4Addr, TcpListener};

use futures_util::future::{join_all, try_join_all};

use super::server::random_port;
use super::{NatsServer, NatsServerBuilder, ServerError, probe};

/// How many ports are looked at for each that is needed. Many can only be taken when something is wrong.
const PORT_TRIES: usize = 50;

/// How often a cluster is started with other ports, when somebody took one between looking and using.
const STARTS: usize = 3;

/// A cluster of NATS servers with JetStream for tests, on loopback ports: every stream and bucket can have a replica on each.
///
/// The servers are the test's own, also when `NATS_URL` is set. Ports and stores stay the same over kills and restarts. Dropping it
/// ends all servers.
///
/// ```no_run
/// # async fn example() -> Result<(), jetring::testing::ServerError> {
/// use jetring::testing::NatsCluster;
///
/// let mut cluster = NatsCluster::start(3).await?;
/// let client = cluster.connect().await?; // knows all three
/// // ... create a stream with three replicas ...
/// cluster.server_mut(0).kill()?; // the other two go on
/// cluster.server_mut(0).restart().await?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<NatsServer>,
    url: String,
}

impl NatsCluster {
    /// Starts `size` servers, as [`NatsServerBuilder::start_cluster`] with default choices.
    ///
    /// # Errors
    /// [`ServerError`]. Nothing is left running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn start(size: usize) -> Result<Self, ServerError> {
        NatsServer::builder().start_cluster(size).await
    }

    pub(super) async fn start_with(builder: &NatsServerBuilder, size: usize) -> Result<Self, ServerError> {
        let mut started = Self::start_on_free_ports(builder, size).await;
        for _ in 1..STARTS {
            match &started {
                Err(error) if error.is_taken_port() => started = Self::start_on_free_ports(builder, size).await,
                _ => break,
            }
        }
        started
    }

    async fn start_on_free_ports(builder: &NatsServerBuilder, size: usize) -> Result<Self, ServerError> {
        let clients = free_ports(size)?;
        let routes = free_ports(size)?;
        let members = clients.iter().zip(&routes).enumerate();
        // None serves before most of them do, so they start at the same time.
        let servers = members.map(|(index, (&port, &route))| {
            let member = builder.clone().cluster_member(index, port, route, &routes);
            NatsServer::start_with(member)
        });
        let servers = try_join_all(servers).await?;
        let urls: Vec<&str> = servers.iter().map(NatsServer::url).collect();
        let url = urls.join(",");
        probe::replicates(&url, size, builder.start_timeout).await?;
        Ok(Self { servers, url })
    }

    /// The addresses of all servers with commas between, as [`NatsCluster::connect`] and most clients take them.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many servers there are, running or not.
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// The servers, in the order of their numbers.
    pub fn servers(&self) -> &[NatsServer] {
        &self.servers
    }

    /// One server, to kill, freeze or restart it. A restart is over when the server serves JetStream again, which needs a majority of
    /// the servers; it may catch up with the others for longer.
    ///
    /// # Panics
    /// If there are not that many.
    pub fn server_mut(&mut self, index: usize) -> &mut NatsServer {
        &mut self.servers[index]
    }

    /// A new connection with default options, to any server that answers.
    ///
    /// # Errors
    /// [`ServerError::Connect`].
    pub async fn connect(&self) -> Result<async_nats::Client, ServerError> {
        probe::connect(&self.url).await
    }

    /// Starts all servers again that do not run, at the same time: what is left after the loss of a majority, when no single one could
    /// serve. It is over when each serves JetStream, and a stream can have a replica on every one.
    ///
    /// # Errors
    /// What [`NatsServer::restart`] returns. It can be tried again.
    pub async fn restart_stopped(&mut self) -> Result<(), ServerError> {
        let stopped = self.servers.iter_mut().filter(|server| server.pid().is_none());
        let restarted = join_all(stopped.map(NatsServer::restart)).await;
        restarted.into_iter().collect::<Result<(), ServerError>>()?;
        probe::replicates(&self.url, self.size(), self.servers[0].start_timeout()).await
    }
}

impl NatsServerBuilder {
    /// Starts a cluster of `size` servers with these choices, and waits until a stream can have a replica on every one. Three bear
    /// the loss of one. Each has the chosen name with its number behind it, a port of its own, whatever was chosen, and, in the chosen
    /// store folder, a folder of its own.
    ///
    /// # Errors
    /// [`ServerError`], whose message says what to do. Nothing is left running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled, and if `size` is 0.
    pub async fn start_cluster(self, size: usize) -> Result<NatsCluster, ServerError> {
        assert!(size > 0, "a cluster has servers");
        NatsCluster::start_with(&self, size).await
    }

    fn cluster_member(self, index: usize, port: u16, route: u16, routes: &[u16]) -> Self {
        let (name, store) = (format!("{}-{index}", self.name), self.store_dir.clone());
        let others = routes.iter().filter(|&&other| other != route);
        let others: Vec<String> = others
            .map(|port| format!("\"nats-route://127.0.0.1:{port}\""))
            .collect();
        let cluster = format!(
            "cluster {{ name: \"jetring-test\", listen: \"127.0.0.1:{route}\", routes: [{}] }}",
            others.join(", ")
        );
        // A single server has nobody to agree with, and would wait for a quorum for ever.
        let member = match others.is_empty() {
            true => self,
            false => self.config(cluster),
        };
        let member = member.name(name.clone()).port(port);
        match store {
            Some(folder) => member.store_dir(folder.join(name)),
            None => member,
        }
    }
}

/// Different ports that nobody listens on now. They are known before the servers start, because each names the others'.
fn free_ports(count: usize) -> Result<Vec<u16>, ServerError> {
    let mut held = Vec::new();
    for _ in 0..count * PORT_TRIES {
        if held.len() == count {
            break;
        }
        let port = random_port();
        // Kept until all are found, so that none is found twice.
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|listener| (port, listener)));
    }
    match held.len() == count {
        true => Ok(held.into_iter().map(|(port, _)| port).collect()),
        false => Err(ServerError::NoPort {
            tries: count * PORT_TRIES,
            log: String::new(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_names_the_routes_of_the_others() {
        let builder = NatsServer::builder().name("n").store_dir("/store");
        let member = builder.cluster_member(1, 4002, 5002, &[5001, 5002, 5003]);
        assert_eq!((member.name.as_str(), member.port), ("n-1", Some(4002)));
        assert_eq!(member.store_dir.as_deref(), Some(std::path::Path::new("/store/n-1")));
        let text = member.render(4002, std::path::Path::new("/store/n-1"));
        let cluster = "cluster { name: \"jetring-test\", listen: \"127.0.0.1:5002\", routes: \
                       [\"nats-route://127.0.0.1:5001\", \"nats-route://127.0.0.1:5003\"] }\n";
        assert!(text.starts_with(cluster), "{text}");
    }

    #[test]
    fn free_ports_differ() {
        let mut ports = free_ports(20).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
