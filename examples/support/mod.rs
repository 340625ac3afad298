//! What the examples, the benches and the tests that watch members from outside have in common: how members write down what their
//! handlers do, who publishes, what disturbs a connection, and what is made of it all.
//!
//! | file | about |
//! |---|---|
//! | `clock`, `random` | one clock for all processes; numbers that a seed decides |
//! | `publisher` | the traffic: keyed, in order, confirmed |
//! | `journal` | the handlers' own records, which outlive their process |
//! | `history` | from the records to what each handler did |
//! | `checks` | lost, repeated, out of order, two at a time, stale fencing tokens |
//! | `proxy`, `frames` | a connection that can be cut, slowed down, held in one direction, or relieved of its acks |

pub(crate) mod checks;
pub(crate) mod clock;
pub(crate) mod frames;
pub(crate) mod history;
pub(crate) mod journal;
pub(crate) mod proxy;
pub(crate) mod publisher;
pub(crate) mod random;

/// Why a run could not be made. There is nobody who would tell the kinds apart.
pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;
