//! A real nats-server, and real child processes, for tests, examples and benches: the crate's own and yours (feature `testing`).
//!
//! JetStream's behaviour under crashes, restarts and frozen processes is what this crate is about, and no imitation of a server has it.
//! So tests run against the real thing:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use jetring::testing::NatsServer;
//!
//! let mut server = NatsServer::start().await?;
//! let client = server.connect().await?;
//! // ... create streams, publish, join groups ...
//! server.restart().await?; // same port, same store: what was stored is still there
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! - [`NatsServer`] is one server on a loopback port, with JetStream in a temporary folder. [`NatsServerBuilder`] has the choices.
//! - [`NatsCluster`] is several of them that replicate, to be killed and restarted one by one.
//! - [`Environment`] says where a server is looked for, and what is installed when there is none.
//! - [`Process`] is a child process that can be killed and frozen, for tests that need members to die.
//!
//! Everything started here ends with the value that started it, and also when the process that started it dies by any
//! means, SIGKILL included.

#[cfg(not(unix))]
compile_error!("the feature `testing` starts and signals processes, which needs a Unix system");

mod cluster;
mod error;
mod find;
mod guard;
mod install;
mod probe;
mod process;
mod server;
mod server_builder;
mod version;

pub use cluster::NatsCluster;
pub use error::ServerError;
pub use find::{BINARY_VARIABLE, Environment, URL_VARIABLE, VERSION_VARIABLE};
pub use install::DEFAULT_VERSION;
pub use process::{Process, ProcessBuilder};
pub use server::NatsServer;
pub use server_builder::NatsServerBuilder;
pub use version::{OLDEST_SUPPORTED, ServerVersion};
