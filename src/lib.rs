//! jetring
pub mod ids;
pub mod lanes;
pub mod time;
