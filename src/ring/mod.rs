//! Who owns what, as pure functions: no clock, no network, no randomness.
//!
//! - [`hash`]: the numbers all members must agree on.
//! - [`Ring`]: the members on a ring of points, and the order in which a partition prefers them.
//! - `plan`: from the last assignment and the live members to the next one, moving as little as possible.
//!
//! The same functions run in the member, in the command line tool, in the simulator and in the tests.

pub mod hash;
// The file bears the name of its one subject.
#[allow(clippy::module_inception)]
mod ring;

pub use ring::Ring;
