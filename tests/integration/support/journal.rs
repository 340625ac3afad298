//! What handlers did, in one order over all members and processes.
//!
//! Every line is appended to one file by a single write, so the order of lines is an order of time that needs no clock: a handler
//! is between its two lines for as long as it runs.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::check::Published;

/// One start of a member: its id, and a number that no other start has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) id: String,
    pub(crate) number: u32,
}

/// How a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Done,
    Failed,
    /// It was dropped: cancelled, or it panicked.
    Dropped,
}

/// The start of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) run: u64,
    pub(crate) key: String,
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    pub(crate) partition: u16,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) body: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    Started(Start),
    Ended {
        run: u64,
        end: End,
    },
    /// A change that the member told its listener, as text.
    Changed(String),
    /// The process of the member has ended without a word: whatever ran in it does not run any more.
    Died,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) life: Life,
    pub(crate) what: What,
}

/// The file, open for appending and for reading what is new.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    read: Mutex<ReadSoFar>,
}

#[derive(Debug)]
struct ReadSoFar {
    file: File,
    rest: Vec<u8>,
    lines: Vec<Line>,
    running: HashMap<(Life, u64), u64>,
    done: BTreeSet<u64>,
}

impl ReadSoFar {
    /// Reads what was written since.
    fn catch_up(&mut self) {
        self.file.read_to_end(&mut self.rest).unwrap();
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else {
            return;
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        for text in whole.split(|&byte| byte == b'\n').filter(|text| !text.is_empty()) {
            // What cannot be read is half a line of a process that was killed; its handler's end is in `Died`.
            let Ok(line) = serde_json::from_slice::<Line>(text) else {
                continue;
            };
            match &line.what {
                What::Started(start) => {
                    self.running.insert((line.life.clone(), start.run), start.sequence);
                }
                What::Ended { run, end } => {
                    let sequence = self.running.remove(&(line.life.clone(), *run));
                    self.done.extend(sequence.filter(|_| *end == End::Done));
                }
                What::Changed(_) | What::Died => {}
            }
            self.lines.push(line);
        }
    }
}

impl Journal {
    /// Opens the journal at `path`; the first one makes it.
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let read = ReadSoFar {
            file: File::open(path).unwrap(),
            rest: Vec::new(),
            lines: Vec::new(),
            running: HashMap::new(),
            done: BTreeSet::new(),
        };
        Self {
            path: path.to_owned(),
            file,
            read: Mutex::new(read),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, life: &Life, what: What) {
        let line = Line {
            life: life.clone(),
            what,
        };
        // It also begins with a line end: a process that was killed in the middle of a write leaves half a line before it.
        let text = format!("\n{}\n", serde_json::to_string(&line).unwrap());
        (&self.file).write_all(text.as_bytes()).unwrap();
    }

    /// Looks at everything so far.
    fn with<T>(&self, look: impl FnOnce(&ReadSoFar) -> T) -> T {
        let mut read = self.read.lock().unwrap();
        read.catch_up();
        look(&read)
    }

    /// Everything so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.with(|read| read.lines.clone())
    }

    /// Whether a handler has succeeded for the message.
    pub(crate) fn is_done(&self, sequence: u64) -> bool {
        self.with(|read| read.done.contains(&sequence))
    }

    /// Those of the messages that no handler has succeeded for.
    pub(crate) fn missing(&self, published: &[Published]) -> Vec<Published> {
        self.with(|read| {
            let missing = published
                .iter()
                .filter(|message| !read.done.contains(&message.sequence));
            missing.cloned().collect()
        })
    }

    /// The starts so far, with who started them.
    pub(crate) fn starts(&self) -> Vec<(Life, Start)> {
        let lines = self.lines().into_iter();
        lines
            .filter_map(|line| match line.what {
                What::Started(start) => Some((line.life, start)),
                _ => None,
            })
            .collect()
    }

    /// What a member told its listener, in order.
    pub(crate) fn changes(&self, id: &str) -> Vec<String> {
        let lines = self.lines().into_iter().filter(|line| line.life.id == id);
        lines
            .filter_map(|line| match line.what {
                What::Changed(text) => Some(text),
                _ => None,
            })
            .collect()
    }
}
