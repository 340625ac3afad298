//! How jetring works, for whoever carries it on or wants to know what to rely on.

#[doc = include_str!("protocol.md")]
pub mod protocol {}
