//! jetring
pub mod ids;
pub mod partitioning;
pub mod ring;
