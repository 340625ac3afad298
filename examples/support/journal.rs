//! The handlers' own records: one file per member, which outlives it.
//!
//! A record is one JSON line, written by one write before the work begins and by another after it has ended. What was written
//! belongs to the system and not to the member, so what a killed member did is known up to the kill.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use jetring::{Change, Delivery};
use serde::{Deserialize, Serialize};

use super::clock;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// A handler begins.
    Start(Start),
    /// A handler has ended.
    End(End),
    /// Something happened to the member.
    Member(MemberEvent),
}

/// The start of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// When.
    pub(crate) at: u64,
    /// The number of the handler in this process, which its end names.
    pub(crate) run: u64,
    /// The key of the message.
    pub(crate) key: String,
    /// The number of the message among its key's, or its stream sequence: whatever its publisher goes by.
    pub(crate) number: u64,
    /// Its sequence in the stream.
    pub(crate) sequence: u64,
    /// The partition of the key.
    pub(crate) partition: u16,
    /// The fencing token.
    pub(crate) token: u64,
    /// 1 for the first attempt.
    pub(crate) attempt: u32,
}

/// The end of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// When.
    pub(crate) at: u64,
    /// Which handler.
    pub(crate) run: u64,
    /// Whether its work is done; else it was cancelled.
    pub(crate) finished: bool,
}

/// Something that happened to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberEvent {
    /// When.
    pub(crate) at: u64,
    /// What.
    pub(crate) what: MemberChange,
}

/// The changes that are written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemberChange {
    /// It asks to enter the group for the first time.
    Joining,
    /// It has entered the group, at the start or again.
    Joined,
    /// It has cut itself off.
    Fenced {
        /// Why.
        reason: String,
    },
    /// It serves a partition from now on.
    Serving {
        /// The partition.
        partition: u16,
    },
    /// It does not serve a partition any more.
    Gone {
        /// The partition.
        partition: u16,
    },
    /// It has left the group.
    Left,
}

impl MemberChange {
    /// What is written down of a change; `None` for what is not.
    pub(crate) fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Joined { .. } => Some(Self::Joined),
            Change::Fenced { reason } => Some(Self::Fenced {
                reason: format!("{reason:?}"),
            }),
            Change::Serving { partition, .. } => Some(Self::Serving { partition: partition.0 }),
            Change::Released { partition } | Change::Lost { partition } => Some(Self::Gone { partition: partition.0 }),
            _ => None,
        }
    }
}

/// The writing side, in the member.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    runs: AtomicU64,
}

impl Journal {
    /// Opens a member's file, which whoever starts it has made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: OpenOptions::new().append(true).open(path)?,
            runs: AtomicU64::new(0),
        })
    }

    /// Writes down that a handler begins.
    pub(crate) fn start(&self, delivery: &Delivery, number: u64) -> io::Result<Running<'_>> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        self.write(&Record::Start(Start {
            at: clock::now(),
            run,
            key: delivery.key().to_owned(),
            number,
            sequence: delivery.stream_sequence(),
            partition: delivery.partition().0,
            token: delivery.fencing_token().0,
            attempt: delivery.attempt(),
        }))?;
        Ok(Running {
            journal: self,
            run,
            ended: false,
        })
    }

    /// Writes down what happened to the member.
    pub(crate) fn member(&self, what: MemberChange) -> io::Result<()> {
        let at = clock::now();
        self.write(&Record::Member(MemberEvent { at, what }))
    }

    /// One write per record: the system appends it as a whole, whichever thread it comes from.
    fn write(&self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        (&self.file).write_all(&line)
    }
}

/// A handler that runs. If it is dropped before it has finished, which is how a handler is cancelled, that is written down.
#[derive(Debug)]
#[must_use = "a handler that is not finished counts as cancelled"]
pub(crate) struct Running<'a> {
    journal: &'a Journal,
    run: u64,
    ended: bool,
}

impl Running<'_> {
    /// Writes down that the work is done.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.end(true)
    }

    fn end(&mut self, finished: bool) -> io::Result<()> {
        self.ended = true;
        self.journal.write(&Record::End(End {
            at: clock::now(),
            run: self.run,
            finished,
        }))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody can be told here. Without its end the handler counts as running on, which shows as an overlap.
            let _ = self.end(false);
        }
    }
}

/// The reading side, in the program that started the member.
#[derive(Debug)]
pub(crate) struct JournalReader {
    file: File,
    /// What was read of a line that is not complete yet. A killed member may leave one for ever.
    incomplete: Vec<u8>,
}

impl JournalReader {
    /// Makes a member's file. It must not exist, so that no run reads what another wrote.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(path)?;
        Ok(Self {
            file,
            incomplete: Vec::new(),
        })
    }

    /// What was written since the last call.
    pub(crate) fn read_new(&mut self) -> io::Result<Vec<Record>> {
        self.file.read_to_end(&mut self.incomplete)?;
        let complete = self
            .incomplete
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.incomplete.drain(..complete).collect();
        let lines = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_once_and_an_incomplete_line_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("member");
        let mut reader = JournalReader::create(&path).unwrap();
        let journal = Journal::open(&path).unwrap();
        journal.member(MemberChange::Joined).unwrap();
        drop(Running {
            journal: &journal,
            run: 7,
            ended: false,
        });
        let read = reader.read_new().unwrap();
        assert!(matches!(&read[0], Record::Member(event) if event.what == MemberChange::Joined));
        assert!(matches!(
            read[1],
            Record::End(End {
                run: 7,
                finished: false,
                ..
            })
        ));
        assert_eq!(read.len(), 2);

        (&journal.file).write_all(b"{\"end\":{\"at\":1,").unwrap();
        assert_eq!(reader.read_new().unwrap(), []);
        (&journal.file).write_all(b"\"run\":2,\"finished\":true}}\n").unwrap();
        let expected = Record::End(End {
            at: 1,
            run: 2,
            finished: true,
        });
        assert_eq!(reader.read_new().unwrap(), [expected]);

        (&journal.file).write_all(b"nonsense\n").unwrap();
        assert!(reader.read_new().is_err());
        assert!(JournalReader::create(&path).is_err());
    }
}
