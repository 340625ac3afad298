//! The simulated KV bucket, untyped: revisions, compare-and-set, tombstones, removal. Compared with the real one in `conformance`.

use std::collections::BTreeMap;

/// Why a write had no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The key is at another revision.
    Conflict,
    /// There is no bucket.
    Missing,
}

/// A bucket with history 1. `created` is `None` while it is deleted.
#[derive(Debug, Clone)]
pub(crate) struct Kv<V> {
    pub(crate) created: Option<u64>,
    revision: u64,
    /// The value, `None` for a tombstone, and the revision of its write.
    entries: BTreeMap<String, (Option<V>, u64)>,
    /// The keys that were written, in order, with what a watch shows of them.
    changes: Vec<(String, Option<V>, u64)>,
}

impl<V> Default for Kv<V> {
    fn default() -> Self {
        Self {
            created: None,
            revision: 0,
            entries: BTreeMap::new(),
            changes: Vec::new(),
        }
    }
}

impl<V: Clone> Kv<V> {
    /// Creates it if it is not there. Gives its creation time.
    pub(crate) fn create(&mut self, date: u64) -> u64 {
        *self.created.get_or_insert(date)
    }

    pub(crate) fn delete(&mut self) {
        *self = Self::default();
    }

    /// The value of a key and the revision of its last write, which may have been a deletion; 0 if it is not there at all.
    pub(crate) fn read(&self, key: &str) -> (Option<V>, u64) {
        self.entries.get(key).cloned().unwrap_or((None, 0))
    }

    /// Every key that begins with `prefix`, deletions included.
    pub(crate) fn list(&self, prefix: &str) -> Vec<(String, Option<V>, u64)> {
        let of_prefix = self.entries.range(prefix.to_owned()..);
        of_prefix
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, (value, revision))| (key.clone(), value.clone(), *revision))
            .collect()
    }

    /// Compare-and-set; `None` leaves a tombstone.
    pub(crate) fn write(&mut self, key: &str, value: Option<V>, expected: u64) -> Result<u64, Refused> {
        if self.created.is_none() {
            return Err(Refused::Missing);
        }
        if self.read(key).1 != expected {
            return Err(Refused::Conflict);
        }
        self.revision += 1;
        self.entries.insert(key.to_owned(), (value.clone(), self.revision));
        self.changes.push((key.to_owned(), value, self.revision));
        Ok(self.revision)
    }

    /// Removes a key with its tombstone, up to and with a revision. A watch shows nothing of that.
    pub(crate) fn erase(&mut self, key: &str, up_to: u64) {
        if self.entries.get(key).is_some_and(|(_, revision)| *revision <= up_to) {
            self.entries.remove(key);
        }
    }

    /// What no watch has shown yet.
    pub(crate) fn changes(&mut self) -> Vec<(String, Option<V>, u64)> {
        std::mem::take(&mut self.changes)
    }
}
