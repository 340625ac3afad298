//! Delivery inside one member: order per key, parallel keys, what is finished, retries, and how much to pull.

mod filter;
mod marks;

pub use self::filter::Filter;
pub use self::marks::{Mark, Marks, Range};
