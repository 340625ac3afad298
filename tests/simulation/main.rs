//! Whole groups of the shipped engine and lanes in a world that goes wrong, with virtual time and a seed for everything.
//!
//! `JETRING_SIM_SEEDS=5000 cargo test --test simulation` runs more seeds; `JETRING_SIM_SEED=17` runs one and prints what
//! happens in it. A seed that fails is shrunk first: what is printed is the shortest course that fails the same way, and its
//! history.
//!
//! | module | about |
//! |---|---|
//! | `course`, `random`, `shrink`, `regressions` | what happens in a run: drawn from a seed, made shorter, kept |
//! | `scenario`, `scenarios` | courses that are told step by step, each with a name |
//! | `world`, `clock`, `network`, `faults` | virtual time, and what goes wrong in it |
//! | `process`, `member` | the members: shipped code and a driver as small as can be |
//! | `server`, `bucket`, `kv`, `stream`, `consumer`, `subjects` | the simulated server |
//! | `conformance` | the simulated server and the real one, on the same random histories |
//! | `check`, `rest`, `planted` | what must hold, and proof that its checks find what they are for |
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

mod bucket;
mod check;
mod clock;
mod conformance;
mod consumer;
mod course;
mod faults;
mod kv;
mod member;
mod network;
mod planted;
mod process;
mod random;
mod regressions;
mod rest;
mod scenario;
mod scenarios;
mod server;
mod shrink;
mod stream;
mod subjects;
mod world;

use course::Course;
use world::World;

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;
pub(crate) const ACK_WAIT: u64 = 5 * SECOND;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a course; one that fails is shown as short as can be.
pub(crate) fn run(name: &str, course: &Course) {
    let Err(violation) = World::new(course.clone()).run() else {
        return;
    };
    let (short, shortest) = shrink::shrink(course.clone(), violation.clone());
    println!(
        r#"{{"why":"{shortest}","course":{}}}"#,
        serde_json::to_string(&short).unwrap()
    );
    World::told(short).run().err();
    panic!("{name}: {violation}\nshortest: {shortest}");
}

fn run_every(first: u64) {
    if let Some(seed) = number("JETRING_SIM_SEED") {
        if first == 0 {
            let course = Course::random(seed);
            println!("seed {seed}: {course:?}");
            if let Err(violation) = World::told(course).run() {
                panic!("seed {seed}: {violation}");
            }
        }
        return;
    }
    let seeds = number("JETRING_SIM_SEEDS").unwrap_or(300);
    (first..seeds)
        .step_by(3)
        .for_each(|seed| run(&format!("seed {seed}"), &Course::random(seed)));
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
        World::new(Course::random(seed))
            .run()
            .map(|world| (world.check.handled, world.check.repeated, world.check.dead_letters))
    };
    for seed in [3, 4, 5] {
        assert_eq!(run(seed), run(seed));
    }
}
