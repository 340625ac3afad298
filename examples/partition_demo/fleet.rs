//! The member processes: starting them, what is done to them, and reading what they write down.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jetring::ids::MemberId;
use jetring::testing::Process;

use crate::Fault;
use crate::checks::name;
use crate::clock;
use crate::journal::{JournalReader, MemberChange, MemberEvent, Record};
use crate::member::{GroupSpec, MemberSpec};

/// How long a member may take to leave before it is killed.
const LEAVE_DEADLINE: Duration = Duration::from_secs(15);

/// How things stand with a member, as far as the demo caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs.
    Running,
    /// It was asked to leave.
    Leaving,
    /// It was killed.
    Killed,
    /// It is frozen.
    Frozen,
}

/// One member process and its records.
#[derive(Debug)]
pub(crate) struct Life {
    /// Its number, from 1.
    pub(crate) number: usize,
    /// Its id in the group.
    pub(crate) id: MemberId,
    /// How things stand.
    pub(crate) state: State,
    /// What it wrote down so far.
    pub(crate) records: Vec<Record>,
    /// When its process was known to be gone.
    pub(crate) ended_at: Option<u64>,
    /// The partitions it says it serves.
    pub(crate) serving: BTreeSet<u16>,
    /// How many handlers finished.
    pub(crate) finished: u64,
    process: Process,
    reader: JournalReader,
}

impl Life {
    /// Takes in what was written since the last call and returns what happened to the member.
    fn read(&mut self) -> Result<Vec<MemberEvent>, Fault> {
        let new = self
            .reader
            .read_new()
            .map_err(|error| format!("the records of {}: {error}", self.id))?;
        let mut events = Vec::new();
        for record in &new {
            match record {
                Record::Start(_) => {}
                Record::End(end) => self.finished += u64::from(end.finished),
                Record::Member(event) => {
                    self.note(&event.what);
                    events.push(event.clone());
                }
            }
        }
        self.records.extend(new);
        Ok(events)
    }

    fn note(&mut self, change: &MemberChange) {
        match change {
            MemberChange::Serving { partition } => {
                self.serving.insert(*partition);
            }
            MemberChange::Gone { partition } => {
                self.serving.remove(partition);
            }
            MemberChange::Joined | MemberChange::Fenced { .. } | MemberChange::Left => self.serving.clear(),
            MemberChange::Joining => {}
        }
    }

    /// When it entered the group after `at`.
    pub(crate) fn joined_after(&self, at: u64) -> Option<u64> {
        let events = self.records.iter().filter_map(|record| match record {
            Record::Member(event) if event.what == MemberChange::Joined => Some(event.at),
            _ => None,
        });
        events.into_iter().find(|&joined| joined > at)
    }
}

/// All member processes of the run, in the order of their start. Dropping it kills those that run.
#[derive(Debug)]
pub(crate) struct Fleet {
    spec: GroupSpec,
    folder: PathBuf,
    seed: u64,
    lives: Vec<Life>,
}

impl Fleet {
    /// No member yet. Their records go into `folder`.
    pub(crate) fn new(spec: GroupSpec, folder: &Path, seed: u64) -> Self {
        Self {
            spec,
            folder: folder.to_owned(),
            seed,
            lives: Vec::new(),
        }
    }

    /// All members there ever were.
    pub(crate) fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// The member of a number.
    pub(crate) fn life(&self, number: usize) -> Option<&Life> {
        self.lives.get(number.checked_sub(1)?)
    }

    fn life_mut(&mut self, number: usize) -> Result<&mut Life, Fault> {
        let life = number.checked_sub(1).and_then(|index| self.lives.get_mut(index));
        life.ok_or_else(|| format!("there is no {}", name(number)).into())
    }

    /// The members that take part, or will soon.
    pub(crate) fn live(&self) -> Vec<MemberId> {
        let running = self.lives.iter().filter(|life| life.state == State::Running);
        running.map(|life| life.id.clone()).collect()
    }

    /// Starts the next member.
    pub(crate) fn start(&mut self) -> Result<usize, Fault> {
        let number = self.lives.len() + 1;
        let id = MemberId::new(name(number))?;
        let journal = self.folder.join(format!("{id}.jsonl"));
        let reader = JournalReader::create(&journal).map_err(|error| format!("{}: {error}", journal.display()))?;
        let spec = MemberSpec {
            id: id.to_string(),
            group: self.spec.clone(),
            journal,
            seed: self.seed,
        };
        let process = Process::current_exe()?
            .arg("--run-member")
            .arg(serde_json::to_string(&spec)?)
            .stdout(Stdio::null())
            .spawn()?;
        self.lives.push(Life {
            number,
            id,
            state: State::Running,
            records: Vec::new(),
            ended_at: None,
            serving: BTreeSet::new(),
            finished: 0,
            process,
            reader,
        });
        Ok(number)
    }

    /// Asks a member to leave.
    pub(crate) fn ask_to_leave(&mut self, number: usize) -> Result<(), Fault> {
        let life = self.life_mut(number)?;
        life.state = State::Leaving;
        Ok(life.process.terminate()?)
    }

    /// Kills a member with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) -> Result<(), Fault> {
        let life = self.life_mut(number)?;
        life.state = State::Killed;
        life.process.kill()?;
        life.ended_at = Some(clock::now());
        life.serving.clear();
        Ok(())
    }

    /// Freezes a member with SIGSTOP.
    pub(crate) fn freeze(&mut self, number: usize) -> Result<(), Fault> {
        let life = self.life_mut(number)?;
        life.state = State::Frozen;
        Ok(life.process.freeze()?)
    }

    /// Lets a frozen member go on.
    pub(crate) fn wake(&mut self, number: usize) -> Result<(), Fault> {
        let life = self.life_mut(number)?;
        life.state = State::Running;
        Ok(life.process.thaw()?)
    }

    /// Takes in what the members wrote since the last call, and returns what happened to them. A member that ended without
    /// being told to is an error.
    pub(crate) fn read(&mut self) -> Result<Vec<(usize, MemberEvent)>, Fault> {
        let mut events = Vec::new();
        for life in &mut self.lives {
            if life.ended_at.is_none()
                && let Some(status) = life.process.try_wait()?
            {
                life.ended_at = Some(clock::now());
                if life.state != State::Leaving || !status.success() {
                    return Err(format!("{} ended by itself with {status}", life.id).into());
                }
            }
            let new = life.read()?;
            events.extend(new.into_iter().map(|event| (life.number, event)));
        }
        Ok(events)
    }

    /// Has all members leave, and reads their last records. One that does not leave in time is killed.
    pub(crate) async fn end(&mut self) -> Result<(), Fault> {
        for life in self.lives.iter_mut().filter(|life| life.ended_at.is_none()) {
            life.state = State::Leaving;
            life.process.terminate()?;
        }
        for life in self.lives.iter_mut().filter(|life| life.ended_at.is_none()) {
            if life.process.wait(LEAVE_DEADLINE).await.is_err() {
                eprintln!("{} did not leave within {LEAVE_DEADLINE:?} and is killed", life.id);
                life.process.kill()?;
            }
            life.ended_at = Some(clock::now());
        }
        for life in &mut self.lives {
            life.read()?;
        }
        Ok(())
    }
}
