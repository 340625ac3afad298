//! Faults planted into the world: a check that finds none of them would prove nothing.

use crate::world::{Options, World};

/// One fault of one member's driver, or of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The lease is not looked at and nothing is closed.
    LeaseIgnored,
    /// Checkpoints say more than is finished.
    ProgressAhead,
    /// A failed handler counts as one that succeeded.
    FailureIsSuccess,
    /// The re-open count is left out of consumer names.
    NameReused,
    /// Progress and listings do not show the tokens of a deleted bucket, and the new bucket claims to be older.
    TokensForgotten,
    /// All partitions are planned onto one member.
    PlanUneven,
    /// Acks do not reach the server.
    AcksLost,
    /// The last message is stored where no filter finds it.
    MessagesSkipped,
    /// A partition's consumer is never made.
    NeverOpened,
}

/// One of the first seeds must end with a violation that says one of these. What else a fault leads to is found as well.
fn finds(plant: Plant, says: &[&str]) {
    let mut found = Vec::new();
    for seed in 0..30 {
        let options = Options {
            plant: Some(plant),
            ..Options::random(seed)
        };
        if let Err(violation) = World::new(seed, options).run() {
            if says.iter().any(|says| violation.contains(says)) {
                return;
            }
            found.push(violation);
        }
    }
    panic!("{plant:?} was not found: {found:?}");
}

#[test]
fn a_member_that_ignores_its_lease_is_found() {
    finds(Plant::LeaseIgnored, &["two owners"]);
}

#[test]
fn progress_ahead_of_what_is_handled_is_found() {
    finds(Plant::ProgressAhead, &["is ahead"]);
}

#[test]
fn a_failure_taken_for_a_success_is_found() {
    finds(Plant::FailureIsSuccess, &["order:"]);
}

#[test]
fn a_name_used_twice_is_found() {
    finds(Plant::NameReused, &["is created a second time"]);
}

#[test]
fn a_token_that_falls_is_found() {
    finds(Plant::TokensForgotten, &["is not above"]);
}

#[test]
fn an_uneven_plan_is_found() {
    finds(Plant::PlanUneven, &["at rest: loads"]);
}

#[test]
fn lag_that_stays_is_found() {
    finds(Plant::AcksLost, &["at rest: lag"]);
}

#[test]
fn a_message_nobody_handles_is_found() {
    finds(Plant::MessagesSkipped, &["at rest: not handled"]);
}

#[test]
fn a_partition_nobody_serves_is_found() {
    finds(Plant::NeverOpened, &["at rest: partition"]);
}
