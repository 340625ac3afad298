//! One member's lanes with short helpers: the consumer sequence is counted here, times are in milliseconds.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::ids::{Epoch, FencingToken, Partition};
use crate::lanes::{
    Action, Attempt, BatchSettings, Delivered, Ended, Filter, Found, Gap, Lanes, Marks, Outcome, ReadId, Reopening,
    Retry, Run, RunId, Settings,
};
use crate::time::Time;

pub(super) const P: Partition = Partition(3);

pub(super) fn settings() -> Settings {
    let number = |n| NonZeroUsize::new(n).unwrap();
    Settings {
        concurrency: number(4),
        max_held: number(100),
        max_held_total: number(1000),
        max_bytes: number(1 << 20),
        max_bytes_total: number(1 << 24),
        lane_depth: number(10),
        max_parked: number(1000),
        max_ranges: number(1000),
        // Most tests are about bounds and look at full pulls; what idle filters ask for has tests of its own.
        idle_pull: number(100_000),
        several_filters: false,
        ack_wait: Some(Duration::from_secs(30)),
        inspect_interval: None,
        ack_check_interval: Duration::from_secs(20),
        retry: Retry {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(1),
            max_attempts: None,
        },
        max_kills: NonZeroU32::new(3).unwrap(),
        dead_letter_killers: false,
        batch: BatchSettings::SINGLE,
    }
}

pub(super) fn with_max_attempts(attempts: u32) -> Settings {
    let mut settings = settings();
    settings.retry.max_attempts = NonZeroU32::new(attempts);
    settings
}

pub(super) fn at(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

pub(super) fn epoch(token: u64, reopen: u32) -> Epoch {
    Epoch {
        token: FencingToken(token),
        reopen,
    }
}

pub(super) fn filter() -> Filter {
    Filter::from("orders.3.>")
}

pub(super) fn retry(error: &str) -> Outcome {
    Outcome::Retry {
        after: None,
        error: error.to_owned(),
    }
}

/// A delivery whose time is ten times its sequence, as the stream of these tests stores them.
pub(super) fn delivered(consumer_sequence: u64, sequence: u64, key: &str) -> Delivered<u64> {
    Delivered {
        stream_sequence: sequence,
        read_sequence: sequence,
        consumer_sequence,
        time: sequence * 10,
        key: key.into(),
        reply: format!("{consumer_sequence}:{sequence}").into(),
        bytes: 10,
        message: sequence,
    }
}

/// Lanes with one partition and one filter open, unless told otherwise.
pub(super) struct Bench {
    pub(super) lanes: Lanes<u64>,
    pub(super) now: Time,
    pub(super) epoch: Epoch,
    consumer_sequence: u64,
    /// Actions not asked for yet.
    pub(super) seen: Vec<Action<u64>>,
    runs: BTreeMap<u64, RunId>,
}

impl Bench {
    pub(super) fn new(settings: Settings) -> Self {
        Self::with_marks(settings, Marks::default())
    }

    pub(super) fn with_marks(settings: Settings, marks: Marks) -> Self {
        let mut bench = Self {
            lanes: Lanes::new(settings, 7),
            now: at(0),
            epoch: epoch(1, 0),
            consumer_sequence: 0,
            seen: Vec::new(),
            runs: BTreeMap::new(),
        };
        bench.lanes.open(P, filter(), bench.epoch, marks);
        bench
    }

    /// Delivers in consumer sequence.
    pub(super) fn deliver(&mut self, sequence: u64, key: &str) {
        self.consumer_sequence += 1;
        self.deliver_as(delivered(self.consumer_sequence, sequence, key));
    }

    pub(super) fn deliver_as(&mut self, delivered: Delivered<u64>) {
        self.consumer_sequence = delivered.consumer_sequence;
        self.lanes.deliver(self.now, P, &filter(), self.epoch, delivered);
    }

    /// A delivery before this one was lost.
    pub(super) fn lose_one(&mut self) {
        self.consumer_sequence += 1;
    }

    pub(super) fn reopen(&mut self) {
        self.epoch.reopen += 1;
        self.consumer_sequence = 0;
        self.lanes.reopen(P, &filter(), self.epoch);
    }

    pub(super) fn advance(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.lanes.wake(self.now);
    }

    /// Dispatches and gives the attempts that started.
    pub(super) fn start(&mut self) -> Vec<Attempt<u64>> {
        self.start_runs().into_iter().flat_map(|run| run.attempts).collect()
    }

    /// Dispatches and gives the sequences of each batch that started.
    pub(super) fn batches(&mut self) -> Vec<Vec<u64>> {
        let sequences = |run: &Run<u64>| run.attempts.iter().map(|attempt| attempt.stream_sequence).collect();
        self.start_runs().iter().map(sequences).collect()
    }

    /// Dispatches and gives the runs that started.
    pub(super) fn start_runs(&mut self) -> Vec<Run<u64>> {
        self.lanes.dispatch();
        let runs = self.take(|action| match action {
            Action::Run(run) => Some(run.clone()),
            _ => None,
        });
        for run in &runs {
            let sequences = run.attempts.iter().map(|attempt| attempt.stream_sequence);
            self.runs.extend(sequences.map(|sequence| (sequence, run.run)));
        }
        runs
    }

    /// Dispatches and gives the sequences that started.
    pub(super) fn started(&mut self) -> Vec<u64> {
        self.start().iter().map(|run| run.stream_sequence).collect()
    }

    pub(super) fn run_of(&self, sequence: u64) -> RunId {
        self.runs[&sequence]
    }

    /// Ends the run that a message is in.
    pub(super) fn end(&mut self, sequence: u64, outcome: impl Into<Ended>) {
        self.lanes.ended(self.now, self.runs[&sequence], outcome);
    }

    /// Everything that is ready runs and succeeds, until nothing is ready any more; in the order it ran.
    pub(super) fn run_all(&mut self) -> Vec<u64> {
        let mut ran = Vec::new();
        loop {
            let started = self.started();
            if started.is_empty() {
                return ran;
            }
            for sequence in started {
                ran.push(sequence);
                self.end(sequence, Outcome::Success);
            }
        }
    }

    /// Takes the actions that `pick` wants; the others stay to be asked for.
    pub(super) fn take<T>(&mut self, pick: impl Fn(&Action<u64>) -> Option<T>) -> Vec<T> {
        self.seen.extend(self.lanes.actions());
        let mut picked = Vec::new();
        self.seen.retain(|action| match pick(action) {
            Some(value) => {
                picked.push(value);
                false
            }
            None => true,
        });
        picked
    }

    pub(super) fn acks(&mut self) -> Vec<String> {
        self.take(|action| match action {
            Action::Ack { reply } => Some(reply.to_string()),
            _ => None,
        })
    }

    pub(super) fn terminated(&mut self) -> Vec<String> {
        self.take(|action| match action {
            Action::Terminate { reply } => Some(reply.to_string()),
            _ => None,
        })
    }

    pub(super) fn kept(&mut self) -> Vec<String> {
        self.take(|action| match action {
            Action::InProgress { reply } => Some(reply.to_string()),
            _ => None,
        })
    }

    pub(super) fn pulls(&mut self) -> Vec<usize> {
        self.take(|action| match action {
            Action::Pull { messages, .. } => Some(*messages),
            _ => None,
        })
    }

    /// The sequences to be read, with the names of the reads.
    pub(super) fn reads(&mut self) -> Vec<(u64, ReadId)> {
        self.take(|action| match action {
            Action::Read { read, sequence, .. } => Some((*sequence, *read)),
            _ => None,
        })
    }

    /// Answers every read as the stream of these tests would; the sequences that were read.
    pub(super) fn answer_reads(&mut self) -> Vec<u64> {
        let reads = self.reads();
        for &(sequence, read) in &reads {
            let found = Found::Message {
                time: sequence * 10,
                message: sequence,
            };
            self.lanes.read(read, found);
        }
        reads.into_iter().map(|(sequence, _)| sequence).collect()
    }

    pub(super) fn held(&self) -> usize {
        self.lanes.status().held.messages
    }

    pub(super) fn spilled(&self) -> usize {
        self.lanes.partition_status(P).map_or(0, |status| status.spilled)
    }

    pub(super) fn gaps(&mut self) -> Vec<Gap> {
        let reason = |reason| match reason {
            Reopening::Gap(gap) => gap,
            other => panic!("{other:?}"),
        };
        self.reopenings().into_iter().map(reason).collect()
    }

    pub(super) fn reopenings(&mut self) -> Vec<Reopening> {
        self.take(|action| match action {
            Action::Reopen { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    /// How often the server was asked about the consumer.
    pub(super) fn inspections(&mut self) -> usize {
        let inspections = self.take(|action| matches!(action, Action::Inspect { .. }).then_some(()));
        inspections.len()
    }

    pub(super) fn cancelled(&mut self) -> Vec<RunId> {
        self.take(|action| match action {
            Action::Cancel { run } => Some(*run),
            _ => None,
        })
    }

    pub(super) fn drained(&mut self) -> Vec<Marks> {
        self.take(|action| match action {
            Action::Drained { marks, .. } => Some(marks[&filter()].clone()),
            _ => None,
        })
    }

    pub(super) fn ended(&mut self) -> Vec<FencingToken> {
        self.take(|action| match action {
            Action::Ended { token, .. } => Some(*token),
            _ => None,
        })
    }

    /// The partitions whose record is asked for.
    pub(super) fn records(&mut self) -> Vec<Partition> {
        self.take(|action| match action {
            Action::Record { partition } => Some(*partition),
            _ => None,
        })
    }

    /// The record of the partition is written as it is now.
    pub(super) fn recorded(&mut self) -> Marks {
        let changes = self.lanes.changes(P);
        self.lanes.recorded(P, self.epoch.token, changes);
        self.marks()
    }

    pub(super) fn marks(&self) -> Marks {
        self.lanes.progress(P)[&filter()].clone()
    }

    pub(super) fn floor(&self) -> u64 {
        self.marks().floor.sequence
    }
}
