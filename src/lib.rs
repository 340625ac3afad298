#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! ```text
//! KV watch ──▶ engine (pure) ──▶ commands ──▶ driver ──▶ claims, consumers
//!                                               │
//!                     pulls ──▶ lanes (pure) ──▶ handler ──▶ ack
//! ```
//!
//! [`Group`] and [`Member`] are the public face. [`engine`] and [`lanes`] hold all decisions and know no clock and no socket, nor does
//! the [`junction`] where they meet;
//! [`ring`] and [`partitioning`] are plain functions under them. [`docs::protocol`] says how it all fits together, and why.

pub mod batch;
mod clock;
pub mod config;
pub mod dead_letters;
pub mod docs;
mod driver;
pub mod engine;
pub mod error;
mod group;
pub mod handler;
pub mod ids;
pub mod junction;
pub mod lanes;
mod member;
pub mod names;
mod nats;
pub mod partitioning;
pub mod records;
pub mod ring;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

pub use batch::{Batch, BatchFailure, BatchHandler};
pub use config::{Acks, DeadLetterSettings, OnOverrun, RetryPolicy, Settings, SettingsError, StartFrom};
pub use dead_letters::{DeadLetter, DeadLetters};
pub use driver::Status;
pub use engine::{Activity, Change, FenceReason, MemberPhase};
pub use error::Error;
pub use group::Group;
pub use handler::{Cancellation, Delivery, Failure, Handler};
pub use ids::{FencingToken, Generation, GroupName, MemberId, Partition};
pub use lanes::{BatchScope, BatchSettings};
pub use member::Member;
pub use partitioning::{Partitions, SubjectPattern, Token, Transformed};
