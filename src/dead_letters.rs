//! Messages that were given up: what is known of them, and what can be done with them.

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::error::Error;
use crate::nats::Nats;

/// The headers of a dead letter. All times are nanoseconds since the Unix epoch.
pub mod header {
    /// What all of them begin with.
    pub const PREFIX: &str = "Jetring-";
    /// The subject that the message was published to.
    pub const SUBJECT: &str = "Jetring-Subject";
    /// The stream it came from.
    pub const STREAM: &str = "Jetring-Stream";
    /// Its sequence there.
    pub const SEQUENCE: &str = "Jetring-Sequence";
    /// Its key.
    pub const KEY: &str = "Jetring-Key";
    /// The group that gave it up.
    pub const GROUP: &str = "Jetring-Group";
    /// The member that gave it up.
    pub const MEMBER: &str = "Jetring-Member";
    /// Its partition.
    pub const PARTITION: &str = "Jetring-Partition";
    /// The fencing token of the tenure in which it was given up.
    pub const TOKEN: &str = "Jetring-Fencing-Token";
    /// How many attempts failed.
    pub const ATTEMPTS: &str = "Jetring-Attempts";
    /// What the last one failed with; control characters are spaces, and it may be shortened.
    pub const ERROR: &str = "Jetring-Error";
    /// When it was published.
    pub const PUBLISHED: &str = "Jetring-Published";
    /// When it was given up.
    pub const FAILED: &str = "Jetring-Failed";
    /// In front of the name of an original header that the server had acted on.
    pub const KEPT: &str = "Jetring-Kept-";
    /// On a replayed message: the sequence that it had in its stream before.
    pub const REPLAYED: &str = "Jetring-Replayed";
}

/// Where a dead letter comes from and why it was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The subject that it was published to.
    pub subject: String,
    /// The stream it came from.
    pub stream: String,
    /// Its sequence there.
    pub sequence: u64,
    /// Its key.
    pub key: String,
    /// The group that gave it up; empty, as everything below may be, if the dead letter would not have fitted otherwise.
    pub group: String,
    /// The member that gave it up.
    pub member: String,
    /// Its partition.
    pub partition: u64,
    /// The fencing token of the tenure in which it was given up.
    pub token: u64,
    /// How many attempts failed.
    pub attempts: u64,
    /// When it was published, in nanoseconds since the Unix epoch.
    pub published: u64,
    /// When it was given up, in nanoseconds since the Unix epoch.
    pub failed: u64,
    /// What the last attempt failed with.
    pub error: String,
}

/// A message that was given up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its sequence in the stream of dead letters: its name in the calls below.
    pub sequence: u64,
    /// When it was stored, in nanoseconds since the Unix epoch.
    pub stored: u64,
    /// The original payload.
    pub payload: Bytes,
    /// The original headers, without those that the server had acted on.
    pub headers: HeaderMap,
    /// Where it comes from and why.
    pub origin: Origin,
}

/// The dead letters of a group. From [`Group::dead_letters`](crate::Group::dead_letters).
#[derive(Debug, Clone)]
pub struct DeadLetters {
    nats: Nats,
    stream: String,
    prefix: String,
}

impl DeadLetters {
    pub(crate) fn new(nats: Nats, stream: String, prefix: String) -> Self {
        Self { nats, stream, prefix }
    }

    /// Up to `limit` dead letters in the order in which they were stored, beginning at sequence `from` of their stream.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if the server does not answer.
    pub async fn list(&self, from: u64, limit: usize) -> Result<Vec<DeadLetter>, Error> {
        let mut letters: Vec<DeadLetter> = Vec::new();
        let mut next = from.max(1);
        while letters.len() < limit {
            let Some(letter) = self.nats.next_dead_letter(&self.prefix, &self.stream, next).await? else {
                break;
            };
            next = letter.sequence + 1;
            letters.push(letter);
        }
        Ok(letters)
    }

    /// One dead letter; `None` if there is none of this sequence.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if the server does not answer.
    pub async fn read(&self, sequence: u64) -> Result<Option<DeadLetter>, Error> {
        self.nats.read_dead_letter(&self.prefix, &self.stream, sequence).await
    }

    /// Publishes one dead letter to its original subject again and then deletes it. Returns whether it was there.
    ///
    /// It goes to the end of its key's messages, as anything published now does. If the call fails it can be repeated: within the
    /// stream's de-duplication window it is stored once.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if the server does not answer; the dead letter is then still there.
    pub async fn replay(&self, sequence: u64) -> Result<bool, Error> {
        let Some(letter) = self.read(sequence).await? else {
            return Ok(false);
        };
        self.nats.replay_dead_letter(&self.stream, &letter).await?;
        self.nats.delete_dead_letter(&self.stream, sequence).await
    }

    /// Replays all dead letters that are there now, or those of one key, one after the other in their original order. Returns how
    /// many.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if the server does not answer; what was not replayed is still there.
    pub async fn replay_all(&self, key: Option<&str>) -> Result<usize, Error> {
        let mut letters = self.list(1, usize::MAX).await?;
        letters.retain(|letter| key.is_none_or(|key| letter.origin.key == key));
        // A key's messages are given up in order, but replays and repeats can have mixed them.
        letters.sort_by_key(|letter| letter.origin.sequence);
        let mut replayed = 0;
        for letter in letters {
            self.nats.replay_dead_letter(&self.stream, &letter).await?;
            self.nats.delete_dead_letter(&self.stream, letter.sequence).await?;
            replayed += 1;
        }
        Ok(replayed)
    }

    /// Deletes one dead letter for good. Returns whether it was there.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if the server does not answer.
    pub async fn purge(&self, sequence: u64) -> Result<bool, Error> {
        match self.read(sequence).await? {
            Some(letter) => self.nats.delete_dead_letter(&self.stream, letter.sequence).await,
            None => Ok(false),
        }
    }
}
