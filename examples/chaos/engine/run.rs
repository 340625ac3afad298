//! The run: traffic, faults by the schedule, then everything is healed and what is left is handled.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::Fault;
use crate::support::publisher::{Publisher, Traffic};

use super::fleet::Fleet;
use super::judge::{Past, judge};
use super::meddle::{Lag, Meddler};
use super::member::{Retention, TOPIC};
use super::schedule::{Action, Step};
use super::stage::Stage;
use super::verdict::Verdict;
use super::{Place, Settings};

/// How long a publish is tried: longer than any outage, so that it is known of every message whether it is in the stream.
pub(crate) const PUBLISH_PATIENCE: Duration = Duration::from_secs(180);

/// How long the first members may take until they serve everything.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long the members go on after everything was handled, so that a message that comes once more is seen.
const LINGER: Duration = Duration::from_secs(1);

/// The pause between two looks at what the members wrote down, and at what the servers say.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_AT_LAG: Duration = Duration::from_millis(250);

/// How often it is told what is left.
const TELL_LEFT: Duration = Duration::from_secs(5);

/// What happened, line by line.
#[derive(Debug)]
pub(crate) struct Log {
    began: Instant,
    tell: bool,
    lines: Mutex<Vec<String>>,
}

impl Log {
    fn new(tell: bool) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            tell,
            lines: Mutex::default(),
        })
    }

    /// Takes a line down, with the time.
    pub(crate) fn line(&self, text: &str) {
        let line = format!("{:7.2}s  {text}", self.began.elapsed().as_secs_f64());
        if self.tell {
            eprintln!("{line}");
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes a run with a schedule, and judges it.
pub(crate) async fn run(settings: &Settings, schedule: &[Step], place: Place) -> Result<Verdict, Fault> {
    let log = Log::new(place.tell);
    let stage = Stage::build(settings, log.clone()).await?;
    log.line(&format!(
        "{} servers {} at {}, seed {}",
        settings.servers, stage.server_version, stage.url, settings.seed
    ));
    let traffic = Traffic {
        stream: stage.spec.stream.clone(),
        topic: TOPIC.to_owned(),
        keys: (0..settings.keys).map(|number| format!("key-{number}")).collect(),
        seed: settings.seed,
        patience: PUBLISH_PATIENCE,
    };
    let publisher = Arc::new(Publisher::new(&stage.group, &stage.url, traffic).await?);
    let mut chaos = Chaos {
        settings,
        fleet: Fleet::new(place, stage.spec.clone(), settings.seed, settings.plant),
        meddler: Meddler::new(&stage.client, &stage.spec, &stage.group),
        stage,
        publisher: publisher.clone(),
        meddling: JoinSet::new(),
        purged_below: 0,
        log: log.clone(),
    };
    chaos.start().await?;
    let stop = CancellationToken::new();
    // Whatever ends the run ends the traffic.
    let _stop_at_the_end = stop.clone().drop_guard();
    let traffic = tokio::spawn(publisher.clone().run(settings.rate, stop.clone()));
    let began = Instant::now();
    for step in schedule {
        chaos.until(began + step.at).await?;
        chaos.act(step.action)?;
    }
    chaos.until(began + settings.length).await?;
    chaos.heal().await?;
    stop.cancel();
    traffic.await?;
    let past = chaos.end(schedule).await?;
    Ok(judge(settings, past, log.lines()))
}

struct Chaos<'a> {
    settings: &'a Settings,
    stage: Stage,
    fleet: Fleet,
    meddler: Meddler,
    publisher: Arc<Publisher>,
    /// What takes its time: each gives the sequence below which it has purged the stream.
    meddling: JoinSet<Result<u64, Fault>>,
    purged_below: u64,
    log: Arc<Log>,
}

impl Chaos<'_> {
    /// Starts the first members and waits until they serve everything.
    async fn start(&mut self) -> Result<(), Fault> {
        for slot in 0..self.settings.members {
            self.act(Action::Start { slot })?;
        }
        let end = Instant::now() + START_DEADLINE;
        while !self.fleet.serves_all(self.settings.partitions) {
            if Instant::now() >= end {
                return Err(format!("the members did not serve all partitions within {START_DEADLINE:?}").into());
            }
            self.look().await?;
        }
        self.log.line("all partitions are served");
        Ok(())
    }

    /// Takes in what the members wrote down.
    async fn look(&mut self) -> Result<(), Fault> {
        self.fleet.read()?;
        tokio::time::sleep(LOOK).await;
        Ok(())
    }

    /// Waits, and watches meanwhile.
    async fn until(&mut self, end: Instant) -> Result<(), Fault> {
        while Instant::now() < end {
            self.fleet.read()?;
            self.take_meddling()?;
            tokio::time::sleep_until(end.min(Instant::now() + LOOK)).await;
        }
        Ok(())
    }

    fn take_meddling(&mut self) -> Result<(), Fault> {
        while let Some(done) = self.meddling.try_join_next() {
            self.purged_below = self.purged_below.max(done??);
        }
        Ok(())
    }

    /// Does what the schedule says.
    fn act(&mut self, action: Action) -> Result<(), Fault> {
        self.log.line(&action.to_string());
        match action {
            Action::Start { slot } => {
                let urls = self.stage.urls(slot);
                self.fleet.start(slot, urls)?;
            }
            Action::Leave { slot } => self.fleet.leave(slot)?,
            Action::Kill { slot } => self.fleet.kill(slot)?,
            Action::Freeze { slot } => self.fleet.freeze(slot)?,
            Action::Thaw { slot } => self.fleet.thaw(slot)?,
            Action::Link { slot, link } => self.stage.link(slot, link),
            Action::KillServer { server } => self.stage.servers.kill(server),
            Action::RestartServers => self.stage.servers.restart_stopped(),
            Action::Purge { unhandled } => {
                let (meddler, publisher, log) = (self.meddler.clone(), self.publisher.clone(), self.log.clone());
                let mut done = self.fleet.finished().clone();
                // What was purged before is not taken once more.
                done.extend(0..self.purged_below);
                self.meddling.spawn(async move {
                    let below = meddler.purge(&publisher, &done, unhandled).await?;
                    log.line(&format!("        purged: everything below {below}"));
                    Ok(below)
                });
            }
            Action::StepDown(_)
            | Action::DeleteConsumer { .. }
            | Action::DeleteClaim { .. }
            | Action::DeleteMember { .. } => {
                let (meddler, log) = (self.meddler.clone(), self.log.clone());
                self.meddling.spawn(async move {
                    // That it cannot be done while servers are away is part of the chaos.
                    match meddler.meddle(action).await {
                        Ok(answer) => log.line(&format!("        {action}: {answer}")),
                        Err(error) => log.line(&format!("        {action} was not done: {error}")),
                    }
                    Ok(0)
                });
            }
        }
        Ok(())
    }

    /// Ends what is still being done. The schedule itself has ended each of its faults.
    async fn heal(&mut self) -> Result<(), Fault> {
        self.log.line("the chaos is over");
        self.stage.servers.whole().await?;
        while let Some(done) = self.meddling.join_next().await {
            self.purged_below = self.purged_below.max(done??);
        }
        self.fleet.read()
    }

    /// Waits until everything is handled, ends the members, and hands over all that was seen.
    async fn end(mut self, schedule: &[Step]) -> Result<Past, Fault> {
        self.log.line("everything is healed, and the last message is published");
        let stuck = self.drain().await?;
        if stuck.is_none() {
            self.until(Instant::now() + LINGER).await?;
        }
        self.log.line("the members are asked to leave");
        self.fleet.end().await?;
        let stored = match self.settings.retention {
            Retention::Limits => Some(self.meddler.stored().await?),
            Retention::WorkQueue => None,
        };
        Ok(Past {
            sent: self.publisher.sent().await,
            purged_below: self.purged_below,
            stored,
            handlings: self.fleet.handlings(),
            frozen: self.fleet.frozen(),
            complaints: self.fleet.complaints().iter().cloned().chain(stuck).collect(),
            processes: self.fleet.processes(),
            faults: schedule.iter().filter_map(|step| step.action.kind()).collect(),
            server_version: self.stage.server_version,
        })
    }

    /// Waits until the members have nothing left to do. What they had left at the deadline, in words.
    async fn drain(&mut self) -> Result<Option<String>, Fault> {
        let end = Instant::now() + self.settings.patience;
        let mut tell_at = Instant::now() + TELL_LEFT;
        loop {
            let left = self.left().await;
            if let (Ok(Some(left)), true) = (&left, Instant::now() >= tell_at) {
                // Some handlers take long, and those of one key wait for each other.
                self.log.line(&format!("still to come: {left}"));
                tell_at = Instant::now() + TELL_LEFT;
            }
            match left {
                Ok(None) => return Ok(None),
                Ok(Some(left)) if Instant::now() >= end => {
                    return Ok(Some(format!(
                        "after {:?} in peace there was left: {left}",
                        self.settings.patience
                    )));
                }
                Err(error) if Instant::now() >= end => return Err(error),
                _ => {}
            }
            self.until(Instant::now() + LOOK_AT_LAG).await?;
        }
    }

    /// What is left to do, in words.
    async fn left(&mut self) -> Result<Option<String>, Fault> {
        self.fleet.read()?;
        let finished = self.fleet.finished();
        let sent = self.publisher.sent().await;
        let sequences = sent.values().flatten().map(|sent| sent.sequence);
        let missing = sequences.filter(|sequence| *sequence >= self.purged_below && !finished.contains(sequence));
        let missing = missing.count();
        if missing > 0 {
            return Ok(Some(format!("{missing} messages are not handled")));
        }
        let lag = self.meddler.lag().await?;
        let done = Lag {
            consumers: usize::from(self.settings.partitions),
            ..Lag::default()
        };
        if lag != done {
            return Ok(Some(format!("{lag:?} for {} partitions", self.settings.partitions)));
        }
        let kept = match self.settings.retention {
            Retention::Limits => 0,
            Retention::WorkQueue => self.meddler.messages().await?,
        };
        Ok((kept > 0).then(|| format!("{kept} messages are handled and still in the stream")))
    }
}
