//! One engine, driven by hand: a test for every rule of membership, assignment and ownership.

mod claims;
mod deaths;
mod handover;
mod lease;
mod opening;
mod patience;
mod planning;
mod presence;
mod rig;
mod server;
mod silence;
mod younger;
