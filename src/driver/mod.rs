//! The one loop of a member: it carries out what engine and lanes want done, and turns what comes back into their inputs.
//!
//! ```text
//!  watch, pulls, answers ──▶ inputs ──▶ junction ──▶ effects ──▶ NATS, handlers, acks, pulls
//! ```
//!
//! Nothing is decided here, but in the [junction](crate::junction) of engine and lanes. The loop itself never waits for the server or for a handler: both run in tasks of their own.

mod commands;
mod handlers;
mod status;
mod stir;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batch::BatchHandler;
use crate::clock::Clock;
use crate::config::{Acks, OnOverrun, Settings};
use crate::engine::{Change, Command, Event, Stop};
use crate::handler::Message;
use crate::ids::{Epoch, Partition};
use crate::junction::{Effect, Junction};
use crate::lanes::{Action, ConsumerView, Delivered, Ended, Filter, Found, ReadId, RunId};
use crate::names::ConsumerName;
use crate::nats::Nats;
use crate::nats::answers::{self, Answer, Confirm};
use crate::nats::consumers::ConsumerSettings;
use crate::nats::discovery::{Filters, Horizon};
use crate::nats::pull::{Ask, Pulled, PulledMessage};
use crate::nats::records::Records;

pub(crate) use status::Listener;
pub use status::Status;

use handlers::{Lease, Runs};
use stir::Stir;

/// The loop looks up at least this often: a timer may sleep through a suspended machine, and a lost connection is only seen by
/// looking.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// A handler that blocks its thread holds everything else up for this long at most, and never for a heartbeat.
const LONGEST_BLOCK: Duration = Duration::from_millis(100);

/// How many inputs are taken before the next look at timers.
const INPUTS_AT_ONCE: usize = 256;

/// How many requests of the engine may be under way; heartbeats do not count. The server answers one after the other, so more
/// would only make heartbeats wait behind them.
const REQUESTS_IN_FLIGHT: usize = 16;

/// What comes back to the loop.
#[derive(Debug)]
pub(crate) enum Input {
    /// For the engine.
    Event(Event),
    /// The group is prepared: these are its records.
    Opened(Box<Records>),
    /// From a pull loop.
    Pulled(Partition, Filter, Epoch, Pulled),
    /// How far a consumer is; `None`: there is none.
    Inspected(Partition, Filter, Epoch, Option<ConsumerView>),
    /// The stream's leader answers, and nobody answers for the consumer.
    Leaderless(Partition, Filter, Epoch),
    /// A handler has ended.
    Ended(RunId, Ended),
    /// A dead letter is stored, or could not be.
    DeadLettered(RunId, Result<(), String>),
    /// A spilled message was read again, or is gone.
    Read(ReadId, Found<Arc<Message>>),
}

/// Everything a member is made of, handed over at the start.
#[derive(Debug)]
pub(crate) struct Parts<H> {
    pub(crate) junction: Junction<Arc<Message>>,
    pub(crate) nats: Nats,
    pub(crate) settings: Settings,
    pub(crate) consumers: ConsumerSettings,
    pub(crate) start_sequence: u64,
    pub(crate) handler: Arc<H>,
    pub(crate) listener: Option<Listener>,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) leave: CancellationToken,
}

#[derive(Debug)]
struct PullLoop {
    epoch: Epoch,
    requests: mpsc::UnboundedSender<Ask>,
    task: AbortHandle,
}

/// The running member.
#[derive(Debug)]
pub(crate) struct Driver<H> {
    parts: Parts<H>,
    clock: Clock,
    lease: Arc<Lease>,
    records: Option<Records>,
    inputs: mpsc::UnboundedReceiver<Input>,
    sender: mpsc::UnboundedSender<Input>,
    acks: mpsc::UnboundedSender<Answer>,
    answer_sender: JoinHandle<()>,
    pulls: BTreeMap<(Partition, Filter), PullLoop>,
    runs: Runs,
    requests: Arc<Semaphore>,
    handler_tasks: TaskTracker,
    /// Tasks that end with the loop.
    background: JoinSet<()>,
    watch: Option<AbortHandle>,
    troubles: status::Troubles,
    connects: u64,
    checkpoint_at: tokio::time::Instant,
    status_at: tokio::time::Instant,
    stop: Option<Stop>,
}

impl<H: BatchHandler> Driver<H> {
    pub(crate) fn new(parts: Parts<H>) -> Self {
        let (sender, inputs) = mpsc::unbounded_channel();
        let (acks, receiver) = mpsc::unbounded_channel();
        let background = JoinSet::new();
        let confirm = (parts.settings.acks == Acks::Confirmed).then_some(Confirm {
            limit: parts.settings.request_timeout,
            pause: parts.settings.retry_interval(),
        });
        let client = parts.nats.context.client();
        let answer_sender = tokio::spawn(answers::send_answers(client, receiver, confirm));
        let now = tokio::time::Instant::now();
        let mut driver = Self {
            clock: Clock::new(),
            lease: Arc::new(Lease::default()),
            records: None,
            inputs,
            sender,
            acks,
            answer_sender,
            pulls: BTreeMap::new(),
            runs: Runs::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT)),
            handler_tasks: TaskTracker::new(),
            background,
            watch: None,
            troubles: status::Troubles::new(),
            connects: 0,
            checkpoint_at: now + parts.settings.checkpoint_interval,
            status_at: now,
            stop: None,
            parts,
        };
        driver.connects = driver.count_connects();
        if driver.parts.nats.strategy.needs_discovery() {
            driver.start_discovery();
        }
        driver
    }

    /// Runs the member until it has ended, and says why it did.
    pub(crate) async fn run(mut self) -> Stop {
        let _stir = Stir::start(LONGEST_BLOCK.min(self.parts.settings.heartbeat_interval() / 2));
        self.step(Event::Start);
        let mut inputs = Vec::with_capacity(INPUTS_AT_ONCE);
        let mut leaving = false;
        while self.stop.is_none() {
            self.settle();
            let sleep = tokio::time::sleep(self.sleep_time());
            let leave = self.parts.leave.clone();
            tokio::select! {
                biased;
                () = leave.cancelled(), if !leaving => {
                    leaving = true;
                    self.step(Event::Leave);
                }
                _ = self.inputs.recv_many(&mut inputs, INPUTS_AT_ONCE) => {}
                () = sleep => {}
            }
            self.notice_reconnect();
            for input in inputs.drain(..) {
                self.take(input);
            }
        }
        self.end().await
    }

    /// Ends every task. Handlers have ended: the engine stops only then.
    async fn end(mut self) -> Stop {
        self.handler_tasks.close();
        self.handler_tasks.wait().await;
        self.background.shutdown().await;
        let stop = self.stop.take().unwrap_or(Stop::Left);
        if stop != Stop::Left {
            // Whoever holds the member may not look at it before it is to leave.
            let (group, member) = (&self.parts.nats.group, self.parts.junction.engine().member());
            tracing::error!(%group, %member, ?stop, "the member has ended");
        }
        self.publish_status(Some(&stop));
        // Without a sender the answers end; what was finished last is acked before the member is gone.
        drop(self.acks);
        let client = self.parts.nats.context.client();
        let flush = async {
            self.answer_sender.await.ok();
            client.flush().await.ok();
        };
        let limit = self.parts.settings.request_timeout;
        if tokio::time::timeout(limit, flush).await.is_err() {
            tracing::debug!("the last acks could not be sent; what they are for is in the progress record");
        }
        stop
    }

    fn count_connects(&self) -> u64 {
        let client = self.parts.nats.context.client();
        client.statistics().connects.load(Ordering::Relaxed)
    }

    /// The client tells nobody that it has reconnected: it is seen from its count.
    fn notice_reconnect(&mut self) {
        let connects = self.count_connects();
        if connects == self.connects {
            return;
        }
        self.connects = connects;
        tracing::info!(group = %self.parts.nats.group, "the connection to the server was made again");
        self.parts.junction.reconnected(self.clock.now());
        self.follow();
    }

    fn sleep_time(&self) -> Duration {
        let now = self.clock.now();
        let next = self.parts.junction.deadline();
        next.map_or(LONGEST_SLEEP, |at| now.until(at).min(LONGEST_SLEEP))
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        let junction = &mut self.parts.junction;
        match input {
            Input::Event(event) => junction.step(now, event),
            Input::Opened(records) => self.records = Some(*records),
            Input::Pulled(partition, filter, epoch, pulled) => self.on_pulled(partition, &filter, epoch, pulled),
            Input::Inspected(partition, filter, epoch, view) => {
                junction.inspected(now, partition, &filter, epoch, view);
            }
            Input::Leaderless(partition, filter, epoch) => junction.leaderless(partition, &filter, epoch),
            Input::Ended(run, ended) => {
                self.runs.0.remove(&run);
                junction.ended(now, run, ended);
            }
            Input::DeadLettered(run, stored) => junction.dead_lettered(now, run, stored),
            Input::Read(read, found) => junction.read(read, found),
        }
        self.follow();
    }

    fn on_pulled(&mut self, partition: Partition, filter: &Filter, epoch: Epoch, pulled: Pulled) {
        let junction = &mut self.parts.junction;
        match pulled {
            Pulled::Message(message) => self.deliver(partition, filter, epoch, *message),
            Pulled::Over(end) => junction.pull_ended(partition, filter, epoch, end),
            Pulled::Lost => junction.pulls_lost(partition, filter, epoch),
            Pulled::Missing => junction.missing(self.clock.now(), partition, filter, epoch),
        }
    }

    fn deliver(&mut self, partition: Partition, filter: &Filter, epoch: Epoch, message: PulledMessage) {
        // One that belongs to no key is handled by nobody, but the lanes must know of it: to them it would be a lost delivery. Under a
        // key of its own it is given up without holding any other.
        let resolved = self.parts.nats.strategy.resolve(&message.subject);
        let stray = resolved.is_none();
        let (key, subject) = match resolved {
            Some(resolved) => (resolved.key, resolved.subject),
            None => (message.subject.clone(), message.subject),
        };
        let delivered = Delivered {
            stream_sequence: message.stream_sequence,
            read_sequence: message.stream_sequence,
            consumer_sequence: message.consumer_sequence,
            time: message.time,
            key: key.into(),
            reply: message.reply.into(),
            bytes: message.bytes,
            message: Arc::new(Message {
                subject: subject.into(),
                payload: message.payload,
                headers: message.headers,
                stray,
            }),
        };
        let now = self.clock.now();
        self.parts.junction.deliver(now, partition, filter, epoch, delivered);
    }

    /// Hands the engine one event and carries out what follows.
    fn step(&mut self, event: Event) {
        self.parts.junction.step(self.clock.now(), event);
        self.follow();
    }

    /// Does everything that is due, until nothing follows from it any more.
    fn settle(&mut self) {
        self.parts.junction.wake(self.clock.now());
        self.checkpoint();
        loop {
            // The lease is looked at before every dispatch, on a clock that counts suspended time.
            let more = self.parts.junction.dispatch(self.clock.now());
            self.follow();
            if !more {
                break;
            }
        }
        if tokio::time::Instant::now() >= self.status_at {
            self.publish_status(None);
        }
    }

    /// Carries out what engine and lanes want done.
    fn follow(&mut self) {
        self.lease.set(self.parts.junction.engine().lease_end());
        for effect in self.parts.junction.effects() {
            match effect {
                Effect::Command(command) => self.carry_out(command),
                Effect::Action(action) => self.act(action),
                Effect::StartPull {
                    partition,
                    filter,
                    epoch,
                } => self.start_pull(partition, filter, epoch),
                Effect::StopPulls(partition) => self.stop_pulls(partition),
            }
        }
    }

    fn act(&mut self, action: Action<Arc<Message>>) {
        match action {
            Action::Run(run) => self.run_handler(run),
            Action::Cancel { run } => {
                if let Some(cancel) = self.runs.0.get(&run) {
                    cancel.cancel();
                }
            }
            // Nobody waits for them.
            Action::Ack { .. } | Action::Terminate { .. } | Action::InProgress { .. }
                if self.parts.settings.acks == Acks::None => {}
            Action::Ack { reply } => self.answer(Answer::Ack(reply)),
            Action::Terminate { reply } => self.answer(Answer::Terminate(reply)),
            Action::InProgress { reply } => self.answer(Answer::InProgress(reply)),
            Action::Pull {
                partition,
                filter,
                epoch,
                messages,
                bytes,
            } => {
                let pull = self.pulls.get(&(partition, filter)).filter(|pull| pull.epoch == epoch);
                if let Some(pull) = pull {
                    pull.requests.send(Ask { messages, bytes }).ok();
                }
            }
            Action::Reopen {
                partition,
                filter,
                epoch,
                reason,
            } => {
                tracing::info!(%partition, %filter, %epoch, ?reason, "the consumer is replaced");
            }
            Action::Inspect {
                partition,
                filter,
                epoch,
            } => self.inspect(partition, filter, epoch),
            Action::DeadLetter(letter) => self.store_dead_letter(letter),
            Action::Parked(parked) => tracing::error!(
                partition = %parked.partition,
                key = %parked.key,
                sequence = parked.stream_sequence,
                error = parked.error,
                store_error = parked.store_error,
                "a key waits: its message is not run any more and is not stored as a dead letter"
            ),
            Action::Read {
                read,
                partition,
                sequence,
                ..
            } => self.read_spilled(read, partition, sequence),
            Action::Gone {
                partition,
                key,
                stream_sequence,
                ..
            } => tracing::warn!(
                %partition,
                %key,
                sequence = stream_sequence,
                "a message was deleted from the stream before its turn came"
            ),
            // The junction has seen to these.
            Action::Record { .. } | Action::Drained { .. } | Action::Ended { .. } => {}
        }
    }

    /// Asks how far a consumer is, once: the lanes ask again by themselves.
    fn inspect(&mut self, partition: Partition, filter: Filter, epoch: Epoch) {
        let name = ConsumerName::new(&self.parts.nats.group, partition, &filter, epoch);
        let (nats, sender, permits) = (self.parts.nats.clone(), self.sender.clone(), self.requests.clone());
        self.background.spawn(async move {
            let _permit = permits.acquire().await.ok();
            match nats.view_consumer(&name).await {
                Ok(view) => {
                    sender.send(Input::Inspected(partition, filter, epoch, view)).ok();
                }
                Err(fault) => {
                    tracing::debug!(%fault, %name, "a consumer could not be inspected");
                    // When nothing answers there is no telling whose fault it is.
                    if nats.stream_info().await.is_ok() {
                        sender.send(Input::Leaderless(partition, filter, epoch)).ok();
                    }
                }
            }
        });
    }

    /// Reads a spilled message again, from the leader, for as long as it takes to know whether it is there.
    fn read_spilled(&mut self, read: ReadId, partition: Partition, sequence: u64) {
        let (nats, sender, pause) = (
            self.parts.nats.clone(),
            self.sender.clone(),
            self.parts.settings.retry_interval(),
        );
        self.background.spawn(async move {
            loop {
                match nats.read_message(sequence).await {
                    Ok(found) => {
                        sender.send(Input::Read(read, found)).ok();
                        return;
                    }
                    Err(error) => tracing::debug!(%error, %partition, sequence, "a spilled message could not be read"),
                }
                tokio::time::sleep(pause).await;
            }
        });
    }

    fn answer(&self, answer: Answer) {
        // The receiver lives as long as the loop.
        self.acks.send(answer).ok();
    }

    fn stop_pulls(&mut self, partition: Partition) {
        self.pulls.retain(|(other, _), pull| {
            let keep = *other != partition;
            if !keep {
                pull.task.abort();
            }
            keep
        });
    }

    fn start_pull(&mut self, partition: Partition, filter: Filter, epoch: Epoch) {
        let (requests, asked) = mpsc::unbounded_channel();
        let name = ConsumerName::new(&self.parts.nats.group, partition, &filter, epoch);
        let (nats, sender, own_filter) = (self.parts.nats.clone(), self.sender.clone(), filter.clone());
        let task = self.background.spawn(async move {
            let on_pulled = |pulled| {
                sender
                    .send(Input::Pulled(partition, own_filter.clone(), epoch, pulled))
                    .ok();
            };
            nats.pull(&name, &own_filter, asked, on_pulled).await;
        });
        let pull = PullLoop { epoch, requests, task };
        if let Some(former) = self.pulls.insert((partition, filter), pull) {
            former.task.abort();
        }
    }

    /// Hands the engine what the lanes have finished since the last time, at most every `checkpoint_interval`.
    fn checkpoint(&mut self) {
        let now = tokio::time::Instant::now();
        if now < self.checkpoint_at {
            return;
        }
        self.checkpoint_at = now + self.parts.settings.checkpoint_interval;
        self.parts.junction.checkpoint(self.clock.now());
        self.follow();
    }

    /// Looks for new keys for as long as the member lives.
    fn start_discovery(&mut self) {
        let (nats, sender) = (self.parts.nats.clone(), self.sender.clone());
        let interval = self.parts.settings.discovery_interval;
        self.background.spawn(async move {
            let mut known = Horizon::default();
            loop {
                tokio::time::sleep(interval).await;
                match nats.discover(known).await {
                    Ok(None) => {}
                    Ok(Some((horizon, filters))) => {
                        known = horizon;
                        let filters: Filters = filters;
                        sender.send(Input::Event(Event::Discovered(filters))).ok();
                    }
                    Err(fault) => tracing::debug!(%fault, "looking for new keys failed"),
                }
            }
        });
    }

    fn overrun(&self) {
        let running = self.runs.0.len();
        if running == 0 {
            // Partitions are still being closed, but no handler is left in them.
            return;
        }
        tracing::error!(
            member = %self.parts.junction.engine().member(),
            running,
            "handlers still run although the lease is over: they may overlap with those of the next owner"
        );
        if self.parts.settings.on_overrun == OnOverrun::Abort {
            std::process::abort();
        }
    }

    fn notify(&mut self, change: &Change) {
        let (member, group) = (self.parts.junction.engine().member(), &self.parts.nats.group);
        status::log(member, group, change, &mut self.troubles);
        if let Some(listener) = &self.parts.listener {
            listener.call(change);
        }
        self.status_at = tokio::time::Instant::now();
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Watch(scope) => self.start_watch(scope),
            Command::Notify(change) => self.notify(&change),
            Command::Overrun => self.overrun(),
            Command::Stop(stop) => self.stop = Some(stop),
            request => self.request(request),
        }
    }
}
