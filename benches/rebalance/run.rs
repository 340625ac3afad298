//! One size: join, leave, join, crash, again and again, and before each of them as much time in which nothing happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jetring::Group;
use jetring::ids::MemberId;
use serde::Serialize;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Fault;
use crate::assignment::Seen;
use crate::bucket::{self, What, Write};
use crate::clock;
use crate::fleet::{Fleet, State};
use crate::history::{self, Handling};
use crate::journal::{MemberChange, Record};
use crate::options::Options;
use crate::pauses::Window;
use crate::publisher::{Publisher, Traffic};
use crate::stage::Stage;

/// How long the members may take to serve everything, on top of the session timeout after a crash.
const SETTLE_DEADLINE: Duration = Duration::from_secs(20);

/// How long the traffic flows before anything is measured.
const WARM_UP: Duration = Duration::from_millis(1500);

/// How long an event is measured, on top of the session timeout after a crash; longer if all is not served by then.
const WINDOW: Duration = Duration::from_millis(1500);

/// The time between what is measured at rest and the event, so that a gap that the event makes is not counted as rest.
const SEPARATION: Duration = Duration::from_millis(200);

/// How long the members may take, after the last publish, to handle what is left.
const DRAIN: Duration = Duration::from_millis(500);

/// How often the members' records are read.
const LOOK: Duration = Duration::from_millis(20);

/// What happens to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// A fourth member joins.
    Join,
    /// One of four members leaves.
    Leave,
    /// One of four members is killed.
    Crash,
}

impl Event {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Join, Self::Leave, Self::Crash];

    /// What happens in one repetition: after it there are as many members as before.
    const REPETITION: [Self; 4] = [Self::Join, Self::Leave, Self::Join, Self::Crash];

    /// What it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Crash => "crash",
        }
    }

    /// How long it is measured.
    pub(crate) fn window(self, session_timeout: Duration) -> Duration {
        match self {
            Self::Join | Self::Leave => WINDOW,
            Self::Crash => session_timeout + WINDOW,
        }
    }
}

/// An event that has happened.
#[derive(Debug)]
pub(crate) struct Happened {
    /// What.
    pub(crate) event: Event,
    /// From the call of `join`, the SIGTERM or the SIGKILL on.
    pub(crate) window: Window,
    /// As much time before it, in which nothing happened.
    pub(crate) rest: Window,
    /// To which member.
    pub(crate) target: usize,
    /// The assignment before.
    pub(crate) before: Option<Seen>,
    /// The members that live after it.
    pub(crate) live: Vec<MemberId>,
}

/// All that was seen of one size.
#[derive(Debug)]
pub(crate) struct Past {
    /// What the handlers did.
    pub(crate) handlings: Vec<Handling>,
    /// When each message was sent, by key.
    pub(crate) sent: BTreeMap<String, Vec<u64>>,
    /// What was written into the bucket.
    pub(crate) writes: Vec<Write>,
    /// Why members cut themselves off, each time one did.
    pub(crate) fenced: Vec<String>,
    /// The events in their order.
    pub(crate) happened: Vec<Happened>,
}

impl Past {
    /// The assignments in their order.
    pub(crate) fn assignments(&self) -> Vec<Seen> {
        let assignments = self.writes.iter().filter_map(|write| match &write.what {
            What::Assignment(seen) => Some(seen.clone()),
            _ => None,
        });
        assignments.collect()
    }
}

/// Makes the run.
pub(crate) async fn run(stage: &Stage, options: &Options) -> Result<Past, Fault> {
    stage.provision().await?;
    let (spec, partitions) = (&stage.spec, stage.spec.choice.partitions);
    let keys = even_keys(&stage.group, partitions, options.keys_per_partition());
    let traffic = Traffic {
        stream: spec.stream.clone(),
        topic: spec.choice.topic.clone(),
        keys,
        seed: 1,
        patience: Traffic::PATIENCE,
    };
    let publisher = Publisher::new(&stage.group, &spec.url, traffic);
    let publisher = Arc::new(publisher.await?);
    let mut scene = Scene::new(stage)?;
    for _ in 0..Options::MEMBERS {
        scene.fleet.start()?;
    }
    scene.settled().await?;

    let stop = CancellationToken::new();
    // Whatever ends the run ends the traffic.
    let _stop_at_the_end = stop.clone().drop_guard();
    let rate = f64::from(partitions) / options.spacing().as_secs_f64();
    let traffic = tokio::spawn(publisher.clone().run(rate.round() as u32, stop.clone()));
    scene.look_for(WARM_UP).await?;
    let mut happened = Vec::new();
    for repetition in 0..options.repeat() {
        for event in Event::REPETITION {
            happened.push(scene.happen(event, repetition.into()).await?);
        }
    }
    stop.cancel();
    traffic.await?;
    scene.look_for(DRAIN).await?;
    scene.fleet.end().await?;
    scene.take_writes();
    Ok(Past {
        handlings: scene.handlings(),
        fenced: scene.fenced(),
        sent: publisher.times().await,
        writes: std::mem::take(&mut scene.writes),
        happened,
    })
}

/// The same number of keys for each partition.
fn even_keys(group: &Group, partitions: u16, per_partition: usize) -> Vec<String> {
    let mut of_partition: BTreeMap<u16, usize> = BTreeMap::new();
    let mut keys = Vec::new();
    let wanted = usize::from(partitions) * per_partition;
    for name in (0_u64..).map(|number| format!("key-{number}")) {
        let count = of_partition.entry(group.partition_of(&name).0).or_default();
        if *count < per_partition {
            *count += 1;
            keys.push(name);
        }
        if keys.len() == wanted {
            break;
        }
    }
    keys
}

/// The members and the bucket, as the benchmark sees them.
struct Scene {
    fleet: Fleet,
    session_timeout: Duration,
    writes: Vec<Write>,
    incoming: mpsc::UnboundedReceiver<Write>,
    watcher: JoinHandle<()>,
    /// Where the members' records are.
    _folder: TempDir,
}

impl Scene {
    fn new(stage: &Stage) -> Result<Self, Fault> {
        let folder = tempfile::Builder::new().prefix("rebalance-bench-").tempdir()?;
        let (sender, incoming) = mpsc::unbounded_channel();
        Ok(Self {
            fleet: Fleet::new(stage.spec.clone(), folder.path(), 1),
            session_timeout: stage.spec.choice.session_timeout,
            writes: Vec::new(),
            incoming,
            watcher: tokio::spawn(bucket::watch(stage.client.clone(), stage.spec.clone(), sender)),
            _folder: folder,
        })
    }

    fn look(&mut self) -> Result<(), Fault> {
        self.fleet.read()?;
        self.take_writes();
        Ok(())
    }

    fn take_writes(&mut self) {
        while let Ok(write) = self.incoming.try_recv() {
            self.writes.push(write);
        }
    }

    async fn look_for(&mut self, span: Duration) -> Result<(), Fault> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.look()?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until the members that live serve what the assignment for them says.
    async fn settled(&mut self) -> Result<(), Fault> {
        let deadline = Instant::now() + self.session_timeout + SETTLE_DEADLINE;
        while !self.is_settled() {
            if Instant::now() >= deadline {
                return Err(format!("the members do not serve all partitions after {SETTLE_DEADLINE:?}").into());
            }
            self.look()?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn newest_assignment(&self) -> Option<&Seen> {
        self.writes.iter().rev().find_map(|write| match &write.what {
            What::Assignment(seen) => Some(seen),
            _ => None,
        })
    }

    fn is_settled(&self) -> bool {
        let Some(newest) = self.newest_assignment() else {
            return false;
        };
        let mut live = self.fleet.live();
        live.sort();
        let serving = |owner: &MemberId, partition: u16| {
            let life = self.fleet.lives().iter().find(|life| life.id == *owner);
            life.is_some_and(|life| life.serving.contains(&partition))
        };
        let mut owners = newest.owners.iter().zip(0..);
        newest.members == live
            && owners.all(|(owner, partition)| owner.as_ref().is_some_and(|owner| serving(owner, partition)))
    }

    /// Has one event happen. The member that it hits is another one each time: first the oldest, which plans the assignments.
    async fn happen(&mut self, event: Event, repetition: usize) -> Result<Happened, Fault> {
        let window = event.window(self.session_timeout);
        let rest_from = clock::now();
        self.look_for(window).await?;
        let rest = Window {
            from: rest_from,
            until: clock::now(),
        };
        self.look_for(SEPARATION).await?;
        let before = self.newest_assignment().cloned();
        let running = |fleet: &Fleet| {
            let running = fleet.lives().iter().filter(|life| life.state == State::Running);
            running.map(|life| life.number).collect::<Vec<_>>()
        };
        let running = running(&self.fleet);
        let chosen = running.get(repetition % running.len().max(1)).copied().unwrap_or(1);
        let mut from = clock::now();
        let target = match event {
            Event::Join => self.fleet.start()?,
            Event::Leave => {
                self.fleet.ask_to_leave(chosen)?;
                chosen
            }
            Event::Crash => {
                self.fleet.kill(chosen)?;
                chosen
            }
        };
        if event == Event::Join {
            from = self.join_called(target).await?;
        }
        let passed = Duration::from_nanos(clock::now().saturating_sub(from));
        self.look_for(window.saturating_sub(passed)).await?;
        self.settled().await?;
        Ok(Happened {
            event,
            window: Window {
                from,
                until: clock::now(),
            },
            rest,
            target,
            before,
            live: self.fleet.live(),
        })
    }

    /// When a member that was just started called `join`: the time to start a process is not the group's.
    async fn join_called(&mut self, number: usize) -> Result<u64, Fault> {
        let deadline = Instant::now() + SETTLE_DEADLINE;
        loop {
            self.look()?;
            let records = self.fleet.life(number).map(|life| life.records.as_slice());
            let called = records.unwrap_or_default().iter().find_map(|record| match record {
                Record::Member(event) if event.what == MemberChange::Joining => Some(event.at),
                _ => None,
            });
            match called {
                Some(at) => return Ok(at),
                None if Instant::now() >= deadline => return Err("a member process does not start".into()),
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    fn fenced(&self) -> Vec<String> {
        let records = self.fleet.lives().iter().flat_map(|life| &life.records);
        let reasons = records.filter_map(|record| match record {
            Record::Member(event) => match &event.what {
                MemberChange::Fenced { reason } => Some(reason.clone()),
                _ => None,
            },
            _ => None,
        });
        reasons.collect()
    }

    fn handlings(&self) -> Vec<Handling> {
        let now = clock::now();
        let lives = self.fleet.lives().iter();
        let handlings =
            lives.flat_map(|life| history::handlings(life.number, &life.records, life.ended_at.unwrap_or(now)));
        handlings.collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}
