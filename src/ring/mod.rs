//! Who owns what, as pure functions: no clock, no network, no randomness.
//!
//! - [`hash`]: the numbers all members must agree on.
//! - [`Ring`]: the members on a ring of points, and the order in which a partition prefers them.
//! - [`plan()`](plan::plan): from the last assignment and the live members to the next one, moving as little as possible.
//! - [`moves`], [`least_moves`]: how much a plan moves, and how little any could.
//!
//! The same functions run in the member, in the command line tool, in the simulator and in the tests.

pub mod hash;
mod movement;
pub mod plan;
mod quota;
// The file bears the name of its one subject.
#[allow(clippy::module_inception)]
mod ring;

pub use movement::{least_moves, moves};
pub use plan::{LiveMember, Plan, PlanInput, plan};
pub use ring::Ring;
