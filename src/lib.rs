//! jetring
pub mod ids;
pub mod time;
