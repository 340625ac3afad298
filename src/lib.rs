//! jetring
pub mod engine;
pub mod ids;
pub mod lanes;
pub mod names;
pub mod partitioning;
pub mod records;
pub mod ring;
pub mod time;
