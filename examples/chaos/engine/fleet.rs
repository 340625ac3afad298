//! The member processes: starting them, what is done to them, and reading what they write down.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use jetring::testing::Process;

use crate::support::Fault;
use crate::support::clock;
use crate::support::history::{Frozen, Handling, handlings};
use crate::support::journal::{JournalReader, MemberChange, Record};

use super::Place;
use super::member::{GroupSpec, MemberSpec, Plant};

/// How long a member may take to leave when nothing disturbs it any more.
const LEAVE_DEADLINE: Duration = Duration::from_secs(60);

/// How long a process that was woken may take to see how late it is, on a busy machine.
const WAKING: Duration = Duration::from_secs(1);

/// A process, from its start to its end. A member that is started again is another one with the same id.
#[derive(Debug)]
struct Life {
    slot: usize,
    process: Process,
    reader: JournalReader,
    records: Vec<Record>,
    /// The partitions it says it serves.
    serving: BTreeSet<u16>,
    /// When it was known to be gone.
    ended_at: Option<u64>,
    /// It was asked to end.
    asked: bool,
    /// From when until when it was frozen.
    frozen: Vec<[u64; 2]>,
}

/// All processes there ever were. Dropping it kills those that run.
#[derive(Debug)]
pub(crate) struct Fleet {
    place: Place,
    group: GroupSpec,
    seed: u64,
    plant: Plant,
    lives: Vec<Life>,
    /// Messages that a handler has finished.
    finished: BTreeSet<u64>,
    /// The sequences of the handlers that run, by life and run.
    running: HashMap<(usize, u64), u64>,
    /// What no member should have done, in words.
    complaints: Vec<String>,
}

impl Fleet {
    /// No member yet.
    pub(crate) fn new(place: Place, group: GroupSpec, seed: u64, plant: Plant) -> Self {
        Self {
            place,
            group,
            seed,
            plant,
            lives: Vec::new(),
            finished: BTreeSet::new(),
            running: HashMap::new(),
            complaints: Vec::new(),
        }
    }

    /// The process that runs in a slot.
    fn alive(&mut self, slot: usize) -> Option<&mut Life> {
        let alive = |life: &&mut Life| life.slot == slot && life.ended_at.is_none();
        self.lives.iter_mut().find(alive)
    }

    /// Starts the member of a slot. One that still takes its time to leave is killed, as supervisors do.
    pub(crate) fn start(&mut self, slot: usize, urls: Vec<String>) -> Result<(), Fault> {
        self.kill(slot)?;
        let number = self.lives.len();
        let file = |ending: &str| {
            self.place
                .folder
                .join(format!("member-{slot}-process-{number}.{ending}"))
        };
        let reader = JournalReader::create(&file("jsonl"))?;
        let spec = MemberSpec {
            id: format!("member-{slot}"),
            urls,
            group: self.group.clone(),
            journal: file("jsonl"),
            seed: self.seed,
            plant: self.plant,
        };
        let process = (self.place.launch)(&serde_json::to_string(&spec)?)?
            .stdout(Stdio::null())
            .stderr(File::create(file("log"))?)
            .spawn()?;
        self.lives.push(Life {
            slot,
            process,
            reader,
            records: Vec::new(),
            serving: BTreeSet::new(),
            ended_at: None,
            asked: false,
            frozen: Vec::new(),
        });
        Ok(())
    }

    /// Asks the member of a slot to leave.
    pub(crate) fn leave(&mut self, slot: usize) -> Result<(), Fault> {
        if let Some(life) = self.alive(slot) {
            life.asked = true;
            life.process.terminate()?;
        }
        Ok(())
    }

    /// Kills the member of a slot, if one runs.
    pub(crate) fn kill(&mut self, slot: usize) -> Result<(), Fault> {
        if let Some(life) = self.alive(slot) {
            life.process.kill()?;
            life.ended_at = Some(clock::now());
            life.serving.clear();
        }
        Ok(())
    }

    /// Freezes the member of a slot.
    pub(crate) fn freeze(&mut self, slot: usize) -> Result<(), Fault> {
        if let Some(life) = self.alive(slot) {
            let from = clock::now();
            life.process.freeze()?;
            life.frozen.push([from, u64::MAX]);
        }
        Ok(())
    }

    /// Lets the member of a slot go on.
    pub(crate) fn thaw(&mut self, slot: usize) -> Result<(), Fault> {
        if let Some(life) = self.alive(slot) {
            if let Some([_, until]) = life.frozen.last_mut() {
                *until = clock::now();
            }
            life.process.thaw()?;
        }
        Ok(())
    }

    /// Takes in what was written since the last call. A member that ended without being told to is complained about.
    pub(crate) fn read(&mut self) -> Result<(), Fault> {
        for (number, life) in self.lives.iter_mut().enumerate() {
            if life.ended_at.is_none()
                && let Some(status) = life.process.try_wait()?
            {
                life.ended_at = Some(clock::now());
                life.serving.clear();
                if !(life.asked && status.success()) {
                    let slot = life.slot;
                    self.complaints
                        .push(format!("member-{slot} (process {number}) ended with {status}"));
                }
            }
            let new = life.reader.read_new()?;
            for record in &new {
                match record {
                    Record::Start(start) => {
                        self.running.insert((number, start.run), start.number);
                    }
                    Record::End(end) => {
                        let ended = self.running.remove(&(number, end.run));
                        self.finished.extend(ended.filter(|_| end.finished));
                    }
                    Record::Member(event) if life.ended_at.is_none() => note(&mut life.serving, &event.what),
                    Record::Member(_) => {}
                }
            }
            life.records.extend(new);
        }
        Ok(())
    }

    /// Whether the members that run say they serve all of so many partitions.
    pub(crate) fn serves_all(&self, partitions: u16) -> bool {
        let serving: BTreeSet<u16> = self
            .lives
            .iter()
            .flat_map(|life| life.serving.iter().copied())
            .collect();
        serving.len() == usize::from(partitions)
    }

    /// The messages that a handler has finished.
    pub(crate) fn finished(&self) -> &BTreeSet<u64> {
        &self.finished
    }

    /// What no member should have done.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// How many processes there were.
    pub(crate) fn processes(&self) -> usize {
        self.lives.len()
    }

    /// Has all members leave, and reads their last records. One that does not leave in time is complained about, and killed.
    pub(crate) async fn end(&mut self) -> Result<(), Fault> {
        for life in self.lives.iter_mut().filter(|life| life.ended_at.is_none()) {
            life.asked = true;
            life.process.terminate()?;
        }
        for life in self.lives.iter_mut().filter(|life| life.ended_at.is_none()) {
            if life.process.wait(LEAVE_DEADLINE).await.is_err() {
                let slot = life.slot;
                self.complaints
                    .push(format!("member-{slot} did not leave within {LEAVE_DEADLINE:?}"));
                life.process.kill()?;
                life.ended_at = Some(clock::now());
            }
        }
        self.read()
    }

    /// What all handlers did; each process counts as a member of its own.
    pub(crate) fn handlings(&self) -> Vec<Handling> {
        let now = clock::now();
        let lives = self.lives.iter().enumerate();
        let all = lives.flat_map(|(number, life)| handlings(number, &life.records, life.ended_at.unwrap_or(now)));
        all.collect()
    }

    /// When which process was frozen, and until when that may have consequences.
    pub(crate) fn frozen(&self) -> Vec<Frozen> {
        let lives = self.lives.iter().enumerate();
        let all = lives.flat_map(|(member, life)| {
            let frozen = life.frozen.iter();
            frozen.map(move |&[from, woken]| Frozen {
                member,
                from,
                woken,
                rejoined: fenced_after(life, woken),
            })
        });
        all.collect()
    }
}

/// When a process fenced itself after it was woken at `woken`, which it does at once or has no reason to. One that has none
/// is a member like any other from then on.
fn fenced_after(life: &Life, woken: u64) -> u64 {
    let at_once = woken..woken.saturating_add(clock::nanos(WAKING));
    let fenced = life.records.iter().filter_map(|record| match record {
        Record::Member(event) if matches!(event.what, MemberChange::Fenced { .. }) => Some(event.at),
        _ => None,
    });
    fenced.into_iter().find(|at| at_once.contains(at)).unwrap_or(woken)
}

fn note(serving: &mut BTreeSet<u16>, change: &MemberChange) {
    match change {
        MemberChange::Serving { partition } => {
            serving.insert(*partition);
        }
        MemberChange::Gone { partition } => {
            serving.remove(partition);
        }
        MemberChange::Joined | MemberChange::Fenced { .. } | MemberChange::Left => serving.clear(),
        MemberChange::Joining => {}
    }
}
