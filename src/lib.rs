//! jetring
mod clock;
pub mod config;
pub mod engine;
pub mod error;
pub mod handler;
pub mod ids;
pub mod lanes;
pub mod names;
pub mod partitioning;
pub mod records;
pub mod ring;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

pub use config::{Settings, SettingsError};
pub use error::Error;

mod nats;
