//! Faults planted into the world: a search that finds none of them would prove nothing.

use crate::bounds::{Bounds, Faults, SESSION_TIMEOUT};
use crate::properties::{
    ALL_SERVED, EPOCHS_NEW, NO_FOREIGN_ACK, NO_LIVING_DELETED, NOTHING_LATE, NOTHING_SKIPPED, ONE_OWNER, ORDERLY,
    TOKENS_GROW,
};
use crate::search::finds;

/// One fault, of the members' drivers or of what the server does with what they ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Plant {
    /// The lease is not looked at before a message is started, and nothing is closed when it ends.
    LeaseIgnored,
    /// A taker does not raise the epoch in its consumer's name, and deletes its predecessor's by that name.
    NameReused,
    /// A taker does not raise the epoch and goes on with its predecessor's consumer, as with a durable one that all share.
    ConsumerShared,
    /// The progress is read as if one more message were finished.
    FloorSkipped,
    /// Progress and listings show no tokens, and the bucket claims to be older to all members but the first.
    TokensForgotten,
    /// The re-open count is left out of the epoch.
    ReopenKept,
    /// No consumer is ever made.
    NeverOpened,
    /// The engine is not told that its deadline has passed.
    DeadlineIgnored,
}

fn two_members(faults: Faults) -> Bounds {
    Bounds {
        faults,
        switches: Some(1),
        ..Bounds::new(2, 1)
    }
}

/// The first member is frozen in the middle of a message, and wakes when the other one has taken over.
fn frozen() -> Bounds {
    Bounds {
        messages: 2,
        faults_from: SESSION_TIMEOUT / 2,
        mends_until: 2 * SESSION_TIMEOUT,
        switches: Some(0),
        ..two_members(Faults {
            freezes: 1,
            ..Faults::default()
        })
    }
}

fn crash() -> Bounds {
    two_members(Faults {
        crashes: 1,
        ..Faults::default()
    })
}

#[test]
fn a_member_that_wakes_and_ignores_its_lease_is_found() {
    finds(Plant::LeaseIgnored, NOTHING_LATE, frozen());
}

#[test]
fn a_member_that_is_cut_off_and_ignores_its_lease_is_found() {
    let cut = Faults {
        cuts: 1,
        ..Faults::default()
    };
    finds(Plant::LeaseIgnored, ONE_OWNER, two_members(cut));
}

#[test]
fn a_deletion_of_a_name_that_was_used_before_is_found() {
    finds(Plant::NameReused, NO_LIVING_DELETED, crash());
}

/// The first member opens its consumer again and deletes the former one; that is lost, and so is the member. The other one takes
/// over under the name that the former one had, and then the deletion takes effect.
#[test]
fn a_late_deletion_by_an_owner_of_before_is_found() {
    let faults = Faults {
        vanishes: 1,
        losses: 1,
        crashes: 1,
        ..Faults::default()
    };
    let bounds = Bounds {
        faults_from: 2_300,
        faults_until: 2_300,
        mends_until: 2 * SESSION_TIMEOUT,
        switches: Some(0),
        ..two_members(faults)
    };
    finds(Plant::ConsumerShared, NO_LIVING_DELETED, bounds);
}

#[test]
fn a_late_ack_on_a_consumer_that_was_taken_over_is_found() {
    finds(Plant::ConsumerShared, NO_FOREIGN_ACK, frozen());
}

#[test]
fn a_floor_that_was_skipped_is_found() {
    finds(Plant::FloorSkipped, NOTHING_SKIPPED, crash());
}

#[test]
fn a_token_that_falls_is_found() {
    finds(Plant::TokensForgotten, TOKENS_GROW, crash());
}

#[test]
fn an_epoch_that_is_opened_twice_is_found() {
    let vanish = Faults {
        vanishes: 1,
        ..Faults::default()
    };
    finds(Plant::ReopenKept, EPOCHS_NEW, two_members(vanish));
}

#[test]
fn a_partition_that_nobody_serves_is_found() {
    finds(Plant::NeverOpened, ALL_SERVED, two_members(Faults::default()));
}

#[test]
fn a_deadline_that_spins_is_found() {
    finds(Plant::DeadlineIgnored, ORDERLY, two_members(Faults::default()));
}
