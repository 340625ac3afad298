//! What a run is made of, down to every fault: drawn from a seed, shrunk when it fails, kept in a file when it has failed once.

use jetring::engine::Retention;
use jetring::lanes::BatchScope;
use serde::{Deserialize, Serialize};

use crate::planted::Plant;
use crate::random::Random;

/// The retention of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Limits,
    WorkQueue,
    Interest,
}

impl From<Kind> for Retention {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Limits => Self::Limits,
            Kind::WorkQueue => Self::WorkQueue,
            Kind::Interest => Self::Interest,
        }
    }
}

/// Handlers of several messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Batches {
    OfKeys,
    OfPartitions,
}

impl From<Batches> for BatchScope {
    fn from(batches: Batches) -> Self {
        match batches {
            Batches::OfKeys => Self::Key,
            Batches::OfPartitions => Self::Partition,
        }
    }
}

/// One thing that happens. Members are told by the number of their slot, times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// A message with this key is published.
    Publish(u64),
    /// A member's process starts.
    Start(usize),
    /// It is gone at once, and starts again so much later.
    Crash { slot: usize, down: u64 },
    /// It does nothing for so long, and then finds everything that came in the meantime.
    Freeze { slot: usize, long: u64 },
    /// Nothing gets from it to the server, or back, for so long.
    Cut {
        slot: usize,
        up: bool,
        down: bool,
        long: u64,
    },
    /// Its connection is made anew.
    Reconnect(usize),
    /// Its watch shows nothing for so long.
    Stall { slot: usize, long: u64 },
    /// It leaves, and comes back so long after it has left.
    Leave { slot: usize, back: Option<u64> },
    /// The server is away for so long, and may have forgotten the consumers that it held in memory.
    RestartServer { away: u64, forgets: bool },
    /// Another server leads: pulls that wait are lost, and what the former leader knew only by itself. Of every `stuck`th consumer
    /// nothing is delivered any more.
    ChangeLeader { stuck: Option<usize> },
    /// The date of the server jumps by so many seconds: of messages, and of the bucket.
    JumpDate(i64),
    /// Somebody deletes the bucket.
    DeleteBucket,
    /// Somebody deletes a consumer; `quietly`: the pulls that wait for it are not told.
    DeleteConsumer { number: usize, quietly: bool },
    /// Somebody purges the stream; `of`: only one partition.
    Purge { of: Option<u16> },
    /// The server comes back, so much later, without the newest so many messages.
    LoseTail { messages: u64, away: u64 },
    /// Dead letters cannot be stored for so long.
    RefuseDeadLetters(u64),
    /// The group's stream is deleted and made anew.
    ReplaceStream,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Course {
    /// For what is not written down here: the network, handlers.
    pub(crate) seed: u64,
    /// The weight of every member.
    pub(crate) weights: Vec<u16>,
    pub(crate) partitions: u16,
    pub(crate) kind: Kind,
    /// One consumer per key instead of one per partition.
    pub(crate) by_key: bool,
    pub(crate) batches: Option<Batches>,
    /// Of 100 attempts so many fail.
    pub(crate) failures: u64,
    /// So many may; more, and the message is a dead letter. 0: any number.
    pub(crate) attempts: u32,
    /// Of 100 messages so many are rejected.
    pub(crate) rejects: u64,
    /// Whether the network is slow now and then, and loses something.
    pub(crate) noise: bool,
    /// What happens, and when, in milliseconds.
    pub(crate) steps: Vec<(u64, Step)>,
    /// From then on nothing goes wrong any more.
    pub(crate) calm_at: u64,
    /// Who is started again then.
    pub(crate) in_the_end: Vec<usize>,
    #[serde(skip)]
    pub(crate) plant: Option<Plant>,
}

/// How long it may take until all is well again, in milliseconds.
pub(crate) const REST: u64 = 70_000;

impl Course {
    /// Nothing happens to so many members.
    pub(crate) fn quiet(kind: Kind, members: usize, partitions: u16) -> Self {
        Self {
            seed: 0,
            weights: vec![1; members],
            partitions,
            kind,
            by_key: false,
            batches: None,
            failures: 0,
            attempts: 0,
            rejects: 0,
            noise: false,
            steps: Vec::new(),
            calm_at: 0,
            in_the_end: Vec::new(),
            plant: None,
        }
    }

    /// A course as a seed says.
    pub(crate) fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0xABCD);
        let kind = [Kind::Limits, Kind::WorkQueue, Kind::Interest][(seed % 3) as usize];
        let members = random.between(2, 5) as usize;
        let mut course = Self {
            seed,
            by_key: kind != Kind::Interest && random.percent(25),
            noise: true,
            failures: if random.percent(80) { 8 } else { 0 },
            calm_at: random.between(20_000, 50_000),
            ..Self::quiet(kind, members, random.between(2, 7) as u16)
        };
        if random.percent(30) {
            let scope = if random.percent(50) {
                Batches::OfKeys
            } else {
                Batches::OfPartitions
            };
            course.batches = Some(scope);
        }
        if random.percent(30) {
            (course.attempts, course.rejects) = (3, random.between(0, 10));
        }
        if random.percent(25) {
            course.weights = (0..members).map(|_| random.between(1, 4) as u16).collect();
        }
        course.plan_messages(random);
        course.plan_faults(random);
        for slot in 0..members {
            let at = if random.percent(70) {
                0
            } else {
                random.between(0, 10_000)
            };
            course.steps.push((at, Step::Start(slot)));
        }
        course.in_the_end = (0..members).filter(|_| random.percent(70)).collect();
        if course.in_the_end.is_empty() {
            course.in_the_end.push(0);
        }
        course.steps.sort_by_key(|(at, _)| *at);
        course
    }

    fn plan_messages(&mut self, random: &mut Random) {
        let keys = random.between(4, 16);
        for _ in 0..random.between(60, 200) {
            let at = random.between(0, self.calm_at);
            let key = random.between(0, keys);
            self.steps.push((at, Step::Publish(key)));
        }
    }

    fn plan_faults(&mut self, random: &mut Random) {
        // A date that jumps back hides that a bucket or the messages of a stream are younger than others, so these do not come together.
        let odd = random.between(0, 3);
        let mut at = random.between(500, 4_000);
        while at < self.calm_at {
            let step = self.random_step(random, odd);
            self.steps.push((at, step));
            at += random.between(300, 6_000);
        }
    }

    fn random_step(&self, random: &mut Random, odd: u64) -> Step {
        let slot = random.between(0, self.weights.len() as u64) as usize;
        let long = random.between(200, 9_000);
        let disposable = self.kind != Kind::Interest;
        match random.between(0, 106) {
            0..14 => Step::Crash {
                slot,
                down: random.between(0, 12_000),
            },
            14..28 => {
                let most = if random.percent(50) { 4_000 } else { 15_000 };
                Step::Freeze {
                    slot,
                    long: random.between(100, most),
                }
            }
            28..40 => Step::Cut {
                slot,
                up: true,
                down: true,
                long,
            },
            40..47 => Step::Cut {
                slot,
                up: true,
                down: false,
                long,
            },
            47..54 => Step::Cut {
                slot,
                up: false,
                down: true,
                long,
            },
            54..62 => Step::Stall {
                slot,
                long: random.between(1_000, 15_000),
            },
            62..74 => {
                let back = random.between(500, 6_000);
                Step::Leave {
                    slot,
                    back: random.percent(60).then_some(back),
                }
            }
            74..80 => Step::RestartServer {
                away: random.between(200, 4_000),
                forgets: disposable && random.percent(60),
            },
            80..84 if odd == 0 => Step::DeleteBucket,
            80..84 if odd == 1 => Step::JumpDate(random.between(0, 1_200) as i64 - 600),
            80..84 if disposable => Step::LoseTail {
                messages: random.between(1, 30),
                away: random.between(200, 3_000),
            },
            84..88 if disposable => Step::DeleteConsumer {
                number: random.between(0, 16) as usize,
                quietly: random.percent(30),
            },
            88..92 => Step::ChangeLeader {
                stuck: random.percent(40).then_some(random.between(1, 4) as usize),
            },
            92..94 => Step::Purge {
                of: random
                    .percent(50)
                    .then_some(random.between(0, u64::from(self.partitions)) as u16),
            },
            94..98 => Step::RefuseDeadLetters(random.between(500, 8_000)),
            _ => Step::Reconnect(slot),
        }
    }
}
