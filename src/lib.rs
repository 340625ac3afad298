//! jetring
pub mod ids;
#[cfg(feature = "testing")]
pub mod testing;
