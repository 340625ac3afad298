//! Whole groups of the shipped engine and lanes in a world that goes wrong, with virtual time and a seed for everything.
//!
//! `JETRING_SIM_SEEDS=5000 cargo test --test simulation` runs more seeds; `JETRING_SIM_SEED=17` runs one and prints what
//! happens in it. A seed that fails is run again with its history printed.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

mod bucket;
mod check;
mod clock;
mod faults;
mod member;
mod planted;
mod random;
mod server;
mod stream;
mod world;

use world::{Options, World};

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;
pub(crate) const ACK_WAIT: u64 = 5 * SECOND;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a seed; one that fails is run again for its history.
fn run(seed: u64) {
    let Err(violation) = World::new(seed, Options::random(seed)).run() else {
        return;
    };
    let options = Options {
        history: true,
        ..Options::random(seed)
    };
    println!("seed {seed}: {options:?}");
    World::new(seed, options).run().err();
    panic!("seed {seed}: {violation}");
}

fn run_every(first: u64) {
    if let Some(seed) = number("JETRING_SIM_SEED") {
        if first == 0 {
            let options = Options {
                history: true,
                ..Options::random(seed)
            };
            println!("seed {seed}: {options:?}");
            if let Err(violation) = World::new(seed, options).run() {
                panic!("seed {seed}: {violation}");
            }
        }
        return;
    }
    let seeds = number("JETRING_SIM_SEEDS").unwrap_or(200);
    (first..seeds).step_by(3).for_each(run);
}

#[test]
fn groups_on_limits_streams_survive() {
    run_every(0);
}

#[test]
fn groups_on_work_queue_streams_survive() {
    run_every(1);
}

#[test]
fn groups_on_interest_streams_survive() {
    run_every(2);
}

#[test]
fn a_seed_repeats_itself() {
    let run = |seed| {
        World::new(seed, Options::random(seed))
            .run()
            .map(|world| (world.check.handled, world.check.repeated))
    };
    for seed in [3, 4, 5] {
        assert_eq!(run(seed), run(seed));
    }
}
