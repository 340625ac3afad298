//! Every state of small groups of the shipped engine, within bounds: `stateright` searches what the simulator samples.
//!
//! A state is the whole group: each member's `Engine` as it is, what it has asked and not been told, its lanes, the
//! bucket, the stream, and the writes that may still land. Steps are single requests, single inputs and single faults, so that a
//! fault can happen between any two of them. `cargo test --test model -- --nocapture` prints what was visited;
//! `JETRING_MODEL=wide`, best with `--release`, searches further and takes minutes.
//!
//! # Bounds
//!
//! Each row is a search; unless noted there is one fault of its kind in a history, at any step of the first two seconds, which
//! begin with the first start. A history goes on for ten seconds after the last fault can have begun, which is two and a half
//! session timeouts, and for seven after the last one can have been mended. "At 2.0 s" is any step of the first member's second
//! heartbeat, in a group that has settled; by 6.3 s its partitions are somebody else's.
//!
//! | faults | members x partitions | switches | notes | thousand states |
//! |---|---|---|---|---|
//! | crash | 2 x 1, 3 x 1 | 0 | and a restart of the same id | 6, 21 |
//! | crash | 2 x 2 | 1 | | 12 |
//! | crash | 3 x 2 | 0 | | 16 |
//! | freeze | 2 x 1 | 0 | wakes until 7.0 s or never | 53 |
//! | freeze | 2 x 2, 3 x 1 | 0 | at 2.0 s, wakes until 6.3 s or never | 97, 24 |
//! | freeze | 3 x 2 | 0 | the same, without messages | 8 |
//! | loss of a request or a reply, or a slow reply | 2 x 1 | 1 | lands until 2.0 s or never | 53 |
//! | the same | 2 x 2 | 0 | from 0.3 s, the second start | 45 |
//! | the same | 3 x 1 | 0 | | 34 |
//! | the same | 3 x 2 | 0 | from 0.6 s, the third start | 50 |
//! | cut | 2 x 1 | 0 | ends until 7.0 s or never | 44 |
//! | leave | 2 x 1 | 1 | | 14 |
//! | leave | 2 x 2, 3 x 1 | 0 | | 27, 11 |
//! | leave | 3 x 2 | 0 | at 2.0 s | 17 |
//! | consumer vanishes | 2 x 1, 2 x 2 | 0 | | 1, 7 |
//! | crash and loss | 2 x 1 | 0 | both from 2.0 s until 6.3 s | 55 |
//! | crash | 2 x 1 | any | each member's requests in any order | 23 |
//! | crash | 2 x 1 | any | hints of the watch at any time | 5 |
//! | crash | 2 x 2 | 0 | hints of the watch at any time | 30 |
//! | none | 2 x 2 | 0 | requests in any order, without messages | 9 |
//! | crash and restart, freeze, loss | 2 x 1 | 0 | on a work queue | 6, 8, 14 |
//! | the same | 2 x 1 | 0 | on an interest stream | 6, 8, 14 |
//!
//! The wide searches have more switches or any number of them, a freeze with messages at 3 x 2, a cut at 2 x 2, and two faults at
//! once (freeze and loss, two losses, two freezes, two crashes of three members) until 6.3 s.
//!
//! *Switches* is how often, in one burst of requests, the server turns from a member that has more to ask to another one (a
//! context bound); members take their turns in every order. The wide searches raise it.
//!
//! What else is bounded, in all of them:
//!
//! - *Time.* A session timeout of 4 s, two heartbeats in it, leases of 3 s, handlers that need up to 0.95 s to end when
//!   cancelled. Clocks run at one rate. Members start 0.3 s apart, so that no two heartbeats meet. A round trip takes no time
//!   unless the fault is that it does; time goes on when nothing is under way.
//! - *Requests.* Those of one member arrive in the order in which they were sent, except in the searches for reordering and for
//!   the one that is lost or slow. One that is lost takes effect never, at once, or after any later step; a slow answer arrives
//!   after any later step until it is given up.
//! - *Hints* of the watch come with the write that they are about, except to a process that slept, and in the searches that say
//!   so.
//! - *A freeze* ends at any later step up to the time noted, or never. What came in meanwhile is taken in in any order, and a
//!   handler that was running may end successfully before, between or after. *A cut* ends likewise, or never.
//! - *Messages.* One per partition, there from the beginning. A handler ends when it begins, when it is to end,
//!   when it is cancelled, when its process wakes, or at the last moment; successfully, or not.
//! - *Not in it at all:* deaths of messages, streams or buckets that become younger, discovered filters, several groups.
//!
//! The order of what different processes take in is not varied where nothing can tell: it only matters in which order it reaches
//! the server.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

mod actions;
mod bounds;
mod bucket;
mod driver;
mod faults;
mod planted;
mod process;
mod properties;
mod search;
mod server;
mod stream;
mod world;

use bounds::{Bounds, Faults, SESSION_TIMEOUT};
use jetring::engine::Retention;
use search::{holds, is_wide};

const NONE: Faults = Faults {
    crashes: 0,
    restarts: 0,
    freezes: 0,
    cuts: 0,
    losses: 0,
    leaves: 0,
    vanishes: 0,
};

/// The second heartbeat of the first member: everything has settled by then, and it is the last time at which a fault begins.
const SETTLED: u64 = SESSION_TIMEOUT / 2;

/// A partition that was lost at the second heartbeat is somebody else's by now.
const UNTIL_TAKEN: u64 = 6_300;

/// A few context switches by default, and more in a wide search.
fn switches(usual: u8, wide: Option<u8>) -> Option<u8> {
    if is_wide() { wide } else { Some(usual) }
}

#[test]
fn a_crash() {
    let faults = Faults {
        crashes: 1,
        restarts: 1,
        ..NONE
    };
    for (members, partitions, usual, wide) in [
        (2, 1, 0, None),
        (2, 2, 1, Some(1)),
        (3, 1, 0, Some(1)),
        (3, 2, 0, Some(0)),
    ] {
        let restarts = u8::from(is_wide() || partitions == 1);
        let bounds = Bounds {
            faults: Faults { restarts, ..faults },
            switches: switches(usual, wide),
            ..Bounds::new(members, partitions)
        };
        holds("crash", bounds);
    }
}

#[test]
fn a_freeze() {
    let faults = Faults { freezes: 1, ..NONE };
    let wide = if is_wide() { 0 } else { SETTLED };
    for (members, partitions, from, until, messages) in [
        (2, 1, 0, 7_000, 1),
        (2, 2, SETTLED, UNTIL_TAKEN, 1),
        (3, 1, wide, UNTIL_TAKEN, 1),
        (3, 2, SETTLED, UNTIL_TAKEN, u64::from(is_wide())),
    ] {
        let bounds = Bounds {
            faults,
            faults_from: from,
            mends_until: until,
            messages,
            switches: Some(u8::from(is_wide() && members * partitions == 2)),
            ..Bounds::new(members.into(), partitions)
        };
        holds("freeze", bounds);
    }
}

#[test]
fn a_loss() {
    let faults = Faults { losses: 1, ..NONE };
    for (members, partitions, usual, wide) in [
        (2, 1, 1, None),
        (2, 2, 0, Some(0)),
        (3, 1, 0, Some(1)),
        (3, 2, 0, Some(0)),
    ] {
        let from = match (members, partitions) {
            (3, 2) => 600,
            (2, 2) if !is_wide() => 300,
            _ => 0,
        };
        let bounds = Bounds {
            faults,
            faults_from: from,
            switches: switches(usual, wide),
            ..Bounds::new(members, partitions)
        };
        holds("loss", bounds);
    }
}

#[test]
fn a_cut() {
    let faults = Faults { cuts: 1, ..NONE };
    let cut = Bounds {
        faults,
        mends_until: 7_000,
        switches: switches(0, Some(1)),
        ..Bounds::new(2, 1)
    };
    holds("cut", cut.clone());
    if is_wide() {
        let settled = Bounds {
            partitions: 2,
            faults_from: SETTLED,
            switches: Some(0),
            ..cut
        };
        holds("cut", settled);
    }
}

#[test]
fn a_leave() {
    let faults = Faults { leaves: 1, ..NONE };
    for (members, partitions, usual, wide, from) in [
        (2, 1, 1, None, 0),
        (2, 2, 0, Some(0), 0),
        (3, 1, 0, Some(1), 0),
        (3, 2, 0, Some(0), SETTLED),
    ] {
        let bounds = Bounds {
            faults,
            faults_from: from,
            switches: switches(usual, wide),
            ..Bounds::new(members, partitions)
        };
        holds("leave", bounds);
    }
}

#[test]
fn two_faults() {
    let bounds = |members, faults| Bounds {
        faults,
        faults_from: SETTLED,
        faults_until: UNTIL_TAKEN,
        mends_until: UNTIL_TAKEN,
        switches: Some(0),
        ..Bounds::new(members, 1)
    };
    let [crash, freeze, loss] = [
        Faults { crashes: 1, ..NONE },
        Faults { freezes: 1, ..NONE },
        Faults { losses: 1, ..NONE },
    ];
    holds("crash and loss", bounds(2, Faults { losses: 1, ..crash }));
    if is_wide() {
        holds("freeze and loss", bounds(2, Faults { losses: 1, ..freeze }));
        holds("two losses", bounds(2, Faults { losses: 2, ..loss }));
        holds("two freezes", bounds(2, Faults { freezes: 2, ..freeze }));
        holds("two crashes", bounds(3, Faults { crashes: 2, ..crash }));
    }
}

#[test]
fn a_consumer_that_vanishes() {
    let faults = Faults { vanishes: 1, ..NONE };
    for (members, partitions) in [(2, 1), (2, 2)] {
        let bounds = Bounds {
            faults,
            switches: switches(0, Some(1)),
            ..Bounds::new(members, partitions)
        };
        holds("vanished consumer", bounds);
    }
}

#[test]
fn requests_and_hints_in_any_order() {
    let crash = Faults { crashes: 1, ..NONE };
    let one = Bounds {
        faults: crash,
        ..Bounds::new(2, 1)
    };
    let reordered = Bounds {
        reorder: true,
        ..one.clone()
    };
    holds("crash, requests in any order", reordered);
    let hints = Bounds {
        hints_late: true,
        ..one
    };
    holds("crash, hints at any time", hints);
    let two = Bounds {
        faults: crash,
        hints_late: true,
        switches: Some(0),
        ..Bounds::new(2, 2)
    };
    holds("crash, hints at any time", two);
    let undisturbed = Bounds {
        reorder: true,
        messages: u64::from(is_wide()),
        switches: Some(0),
        faults_until: 0,
        mends_until: 0,
        ..Bounds::new(2, 2)
    };
    holds("requests in any order", undisturbed);
}

#[test]
fn other_retentions() {
    for retention in [Retention::WorkQueue, Retention::Interest] {
        for (faults, name) in [
            (
                Faults {
                    crashes: 1,
                    restarts: 1,
                    ..NONE
                },
                "crash",
            ),
            (Faults { freezes: 1, ..NONE }, "freeze"),
            (Faults { losses: 1, ..NONE }, "loss"),
        ] {
            let bounds = Bounds {
                retention,
                faults,
                mends_until: if faults.freezes > 0 { UNTIL_TAKEN } else { SETTLED },
                faults_from: if faults.freezes > 0 { SETTLED } else { 0 },
                switches: switches(0, Some(1)),
                ..Bounds::new(2, 1)
            };
            holds(&format!("{name}, {retention:?}"), bounds);
        }
    }
}
