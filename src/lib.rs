//! jetring
pub mod ids;
