//! Everything at once: members that join, leave, crash and freeze, a server that restarts, consumers that vanish, in an order that
//! a seed decides.
//!
//! `JETRING_MIXED_SEED` and `JETRING_MIXED_STEPS` run another course, for example a long one over night.

use std::env;
use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy::{Limits, WorkQueue};

use crate::support::{Kind, Setup, World};

const KEYS: [&str; 12] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"];

/// How many things happen.
const STEPS: u64 = 10;

/// The most members at a time.
const MOST: usize = 4;

/// A small generator (SplitMix64): a course must be the same wherever it is run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of<'a>(&mut self, of: &'a [String]) -> Option<&'a String> {
        let bound = u64::try_from(of.len()).unwrap();
        (bound > 0).then(|| &of[usize::try_from(self.below(bound)).unwrap()])
    }
}

struct Course {
    world: World,
    dice: Dice,
    /// The members that are there; those that are frozen, too.
    members: Vec<String>,
    frozen: Vec<String>,
    /// Whoever was frozen at any time.
    was_frozen: Vec<String>,
    /// What happened, for the message of a failed course.
    history: Vec<String>,
    joined: u32,
}

impl Course {
    async fn step(&mut self) {
        let choice = self.dice.below(10);
        let awake: Vec<String> = self
            .members
            .iter()
            .filter(|id| !self.frozen.contains(id))
            .cloned()
            .collect();
        let victim = self.dice.one_of(&awake).cloned();
        match (choice, victim) {
            (0..=2, _) if self.members.len() < MOST => self.join(),
            (3, Some(id)) if awake.len() > 1 => {
                self.note("leaves", &id);
                self.members.retain(|other| *other != id);
                // Before, it does not listen to anybody yet.
                self.world.await_change(&id, "Joined", 0).await;
                self.world.leave(&id).await;
            }
            (4, Some(id)) => {
                self.note("is killed", &id);
                self.members.retain(|other| *other != id);
                self.world.kill(&id);
            }
            (5 | 6, Some(id)) => {
                self.note("is frozen", &id);
                self.world.process(&id).freeze();
                self.frozen.push(id.clone());
                self.was_frozen.push(id);
            }
            (7, _) => {
                self.note("crashes", "the server");
                self.world.server().kill().unwrap();
                self.world.server().restart().await.unwrap();
            }
            (8, _) => {
                let consumers: Vec<String> = self.world.consumers().await.keys().map(ToString::to_string).collect();
                if let Some(name) = self.dice.one_of(&consumers).cloned() {
                    self.note("is deleted", &name);
                    let stream = self
                        .world
                        .jetstream
                        .get_stream_no_info(&self.world.setup.name)
                        .await
                        .unwrap();
                    // Its owner may have been faster.
                    stream.delete_consumer(&name).await.ok();
                }
            }
            _ => self.thaw(),
        }
    }

    fn note(&mut self, what: &str, id: &str) {
        self.history.push(format!("{id} {what}"));
    }

    fn join(&mut self) {
        self.joined += 1;
        let id = format!("m{}", self.joined);
        self.note("joins", &id);
        self.world.spawn_with(&id, |spec| spec.pace = Duration::from_millis(2));
        self.members.push(id);
    }

    fn thaw(&mut self) {
        for id in std::mem::take(&mut self.frozen) {
            self.note("is thawed", &id);
            self.world.process(&id).thaw();
        }
    }
}

async fn course(seed: u64, setup: Setup) {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("JETRING_MIXED_SEED").unwrap_or(seed);
    let steps = number("JETRING_MIXED_STEPS").unwrap_or(STEPS);
    let retention = setup.retention;
    let world = World::start_on_own_server(setup.mortal()).await;
    let publisher = world.keep_publishing(&KEYS);
    let mut course = Course {
        world,
        dice: Dice(seed),
        members: Vec::new(),
        frozen: Vec::new(),
        was_frozen: Vec::new(),
        history: Vec::new(),
        joined: 0,
    };
    course.join();
    course.join();
    for _ in 0..steps {
        // When the next thing happens is as much part of a course as what happens.
        tokio::time::sleep(Duration::from_millis(course.dice.below(1200))).await;
        course.step().await;
    }
    course.thaw();
    if course.members.is_empty() {
        course.join();
    }
    println!("seed {seed}: {:#?}", course.history);
    let world = course.world;
    let members: Vec<&str> = course.members.iter().map(String::as_str).collect();
    world.wait_settled(&members).await;
    publisher.stop().await;
    world.await_handled().await;
    let frozen: Vec<&str> = course.was_frozen.iter().map(String::as_str).collect();
    world.verdict().at_least_once_with_overrun(&frozen);
    if retention == WorkQueue {
        world.all_acked().await;
    }
}

#[tokio::test]
async fn a_mixed_course_on_a_work_queue() {
    course(1, Setup::new(Kind::Transformed, WorkQueue)).await;
}

#[tokio::test]
async fn a_mixed_course_on_a_limits_stream() {
    course(2, Setup::new(Kind::Transformed, Limits)).await;
}

#[tokio::test]
async fn a_mixed_course_without_acks() {
    let acked = false;
    course(
        4,
        Setup {
            acked,
            ..Setup::new(Kind::Transformed, Limits)
        },
    )
    .await;
}

#[tokio::test]
async fn a_mixed_course_by_token() {
    course(3, Setup::new(Kind::Token, WorkQueue)).await;
}
