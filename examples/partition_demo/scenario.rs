//! The run: members come, leave, crash and freeze while messages flow.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::Fault;
use crate::checks::name;
use crate::clock;
use crate::fleet::{Fleet, State};
use crate::history::Frozen;
use crate::measure::{Happened, Past};
use crate::observer::Observer;
use crate::options::Options;
use crate::pauses::Window;
use crate::publisher::{Publisher, Traffic};
use crate::schedule::{Event, Schedule};
use crate::screen::Screen;
use crate::stage::Stage;
use crate::verdict::Verdict;

/// How long the first members may take until they serve everything.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long the members may take, after the last publish, to handle what is left.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// How long the members go on after everything was handled, so that a message that comes once more is seen.
const LINGER: Duration = Duration::from_millis(500);

/// Makes the run and measures it.
pub(crate) async fn run(
    stage: &Stage,
    options: &Options,
    schedule: Schedule,
    folder: &Path,
    screen: &mut Screen,
) -> Result<Verdict, Fault> {
    screen.line(&stage.server());
    stage.provision().await?;
    let traffic = Traffic {
        stream: stage.spec.stream.clone(),
        topic: options.topic.clone(),
        keys: (0..options.keys()).map(|number| format!("key-{number}")).collect(),
        seed: options.seed,
        patience: Traffic::PATIENCE,
    };
    let publisher = Publisher::new(&stage.group, &stage.spec.url, traffic);
    let publisher = Arc::new(publisher.await?);
    let fleet = Fleet::new(stage.spec.clone(), folder, options.seed);
    let observer = Observer::new(stage, fleet, publisher.clone(), screen);
    let mut scenario = Scenario {
        observer,
        schedule,
        happened: Vec::new(),
        frozen: None,
    };
    scenario.start(options).await?;

    let stop = CancellationToken::new();
    // Whatever ends the run ends the traffic.
    let _stop_at_the_end = stop.clone().drop_guard();
    let traffic = tokio::spawn(publisher.clone().run(options.rate, stop.clone()));
    let rest = scenario.rest().await?;
    for event in Event::ALL {
        scenario.happen(event).await?;
    }
    stop.cancel();
    let traffic_until = clock::now();
    traffic.await?;
    scenario.drain().await?;

    let past = scenario.end(rest, traffic_until).await?;
    let verdict = past.measure(&publisher.last_numbers().await, options, stage.server_version());
    Ok(verdict)
}

struct Scenario<'a> {
    observer: Observer<'a>,
    schedule: Schedule,
    happened: Vec<Happened>,
    frozen: Option<Frozen>,
}

impl Scenario<'_> {
    /// Starts the first members and waits until they serve everything.
    async fn start(&mut self, options: &Options) -> Result<(), Fault> {
        let (partitioning, seconds) = (options.partitioning, options.seconds);
        let (members, partitions, keys) = (options.members, options.partitions, options.keys());
        self.observer.say(&format!(
            "{members} members, {partitions} partitions, {keys} keys, {} messages/s for {seconds} s, {partitioning:?}",
            options.rate
        ));
        for _ in 0..members {
            self.observer.fleet.start()?;
        }
        let all = usize::from(members);
        let settled = |observer: &Observer<'_>| observer.is_settled() && observer.planned_members() == all;
        if !self.observer.watch_until(START_DEADLINE, settled).await? {
            return Err(format!("the members did not serve all partitions within {START_DEADLINE:?}").into());
        }
        Ok(())
    }

    /// The time before the first event; returns the part of it that is measured.
    async fn rest(&mut self) -> Result<Window, Fault> {
        self.observer.count_rates();
        self.observer.watch_for(self.schedule.warm_up()).await?;
        let from = clock::now();
        self.observer
            .watch_for(self.schedule.rest() - self.schedule.warm_up())
            .await?;
        Ok(Window {
            from,
            until: clock::now(),
        })
    }

    /// Has one event happen, and watches until it is time for the next. Where it can be chosen the oldest member is hit: the
    /// one that plans the assignments.
    async fn happen(&mut self, event: Event) -> Result<(), Fault> {
        let oldest = self
            .observer
            .fleet
            .lives()
            .iter()
            .find(|life| life.state == State::Running);
        let oldest = oldest.map_or(1, |life| life.number);
        let before = self.observer.newest_assignment();
        let at = clock::now();
        let target = match event {
            Event::Join => {
                let joiner = self.observer.fleet.start()?;
                self.observer.say(&format!("JOIN    {} is started", name(joiner)));
                joiner
            }
            Event::Leave => {
                self.observer
                    .say(&format!("LEAVE   {} is asked to leave (SIGTERM)", name(oldest)));
                self.observer.fleet.ask_to_leave(oldest)?;
                oldest
            }
            Event::Kill => {
                self.observer.fleet.kill(oldest)?;
                self.observer
                    .say(&format!("KILL    {} is killed (SIGKILL)", name(oldest)));
                oldest
            }
            Event::Freeze => {
                self.observer.fleet.freeze(oldest)?;
                self.observer
                    .say(&format!("FREEZE  {} is frozen (SIGSTOP)", name(oldest)));
                self.frozen = Some(Frozen {
                    member: oldest,
                    from: at,
                    woken: u64::MAX,
                    rejoined: u64::MAX,
                });
                oldest
            }
            Event::Wake => self.wake()?,
        };
        self.happened.push(Happened {
            event,
            at,
            target,
            before,
            live: self.observer.fleet.live(),
        });
        self.observer.watch_for(self.schedule.after(event)).await?;
        self.observer.report_settled();
        Ok(())
    }

    fn wake(&mut self) -> Result<usize, Fault> {
        let Some(frozen) = &mut self.frozen else {
            return Err("no member is frozen".into());
        };
        frozen.woken = clock::now();
        self.observer.fleet.wake(frozen.member)?;
        self.observer
            .say(&format!("WAKE    {} goes on (SIGCONT)", name(frozen.member)));
        Ok(frozen.member)
    }

    /// Waits until everything that was published is handled.
    async fn drain(&mut self) -> Result<(), Fault> {
        let published = self.observer.published();
        self.observer
            .say(&format!("the last of {published} messages is published"));
        if self.observer.watch_until(DRAIN_DEADLINE, Observer::is_drained).await? {
            self.observer.watch_for(LINGER).await?;
        } else {
            self.observer
                .say(&format!("not everything was handled within {DRAIN_DEADLINE:?}"));
        }
        Ok(())
    }

    /// Ends the members, and hands over all that was seen.
    async fn end(mut self, rest: Window, traffic_until: u64) -> Result<Past, Fault> {
        self.observer.say("the members are asked to leave");
        self.observer.fleet.end().await?;
        let ended = clock::now();
        let fleet = &self.observer.fleet;
        if let Some(frozen) = &mut self.frozen {
            let rejoined = fleet
                .life(frozen.member)
                .and_then(|life| life.joined_after(frozen.woken));
            frozen.rejoined = rejoined.unwrap_or(u64::MAX);
        }
        let handlings = fleet.lives().iter().flat_map(|life| {
            let ended_at = life.ended_at.unwrap_or(ended);
            crate::history::handlings(life.number, &life.records, ended_at)
        });
        Ok(Past {
            handlings: handlings.collect(),
            assignments: self.observer.assignments.clone(),
            happened: self.happened,
            frozen: self.frozen,
            rest,
            traffic_until,
        })
    }
}
