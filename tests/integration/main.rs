//! What a group does on a real nats-server, as a course: from joining to the faults that were found on the way.
//!
//! One binary, because every test binary links the whole crate. The tests share one server, each with its own stream, bucket and
//! group; those that stop or restart a server have their own. Waits end on events: the only fixed times are the durations of
//! the faults themselves. `support` holds the scenario language and the checker that judges what handlers did.
//!
//! | module | about |
//! |---|---|
//! | `t10_join` | entering a group, sharing the partitions, duplicates of an id |
//! | `t20_delivery` | what a handler is given, order, retry |
//! | `t25_batches` | handlers of several messages at once |
//! | `t25_dead_letters` | messages that are given up |
//! | `t30_handover` | graceful moves: join under load, leave |
//! | `t40_crash` | members that are killed |
//! | `t45_poison` | messages that kill whatever process runs them |
//! | `t50_freeze` | members that are frozen, and what they can do when they wake |
//! | `t60_consumers` | consumers that lose deliveries, vanish, or are contested |
//! | `t65_acks` | acks that are lost, and confirmed ones |
//! | `t70_bad_input` | what does not fit is refused before anything is created |
//! | `t71_unfit` | streams and buckets that would fail a group later are refused at once |
//! | `t73_domains` | a JetStream domain behind a leaf node |
//! | `t80_server` | a server that restarts, loses replies, or is out of reach |
//! | `t85_stream` | a stream that is purged, large messages, many keys, handlers that block |
//! | `t87_restored` | a stream that comes back from an older copy |
//! | `t90_mixed` | all of it at once, in an order that a seed decides |
//! | `t90_regressions` | faults that were found by trying to break members |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as the tests do"
)]

mod support;
mod t10_join;
mod t20_delivery;
mod t25_batches;
mod t25_dead_letters;
mod t30_handover;
mod t40_crash;
mod t45_poison;
mod t50_freeze;
mod t60_consumers;
mod t65_acks;
mod t70_bad_input;
mod t71_unfit;
mod t73_domains;
mod t80_server;
mod t85_stream;
mod t87_restored;
mod t90_mixed;
mod t90_regressions;
