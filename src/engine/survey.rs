//! One listing of consumers and filters serves every partition that waits for one.
//!
//! A joiner wins many partitions at once; asking per partition would list the whole stream's consumers each time. Only a
//! listing that was asked for after a partition's request answers it.

use std::collections::BTreeSet;

use crate::ids::Partition;
use crate::time::Time;

use super::command::Command;
use super::context::{Context, Purpose};

/// Collects requests and asks once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct SurveyDesk {
    asked: Option<Asked>,
    waiting: BTreeSet<Partition>,
    routine: bool,
}

/// A listing under way, or just answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// When it was asked for: it says nothing about what happened later.
    pub(super) at: Time,
    /// The partitions that wait for it.
    pub(super) partitions: BTreeSet<Partition>,
    /// Whether it is also the periodic comparison of what runs with what should run.
    pub(super) routine: bool,
}

impl SurveyDesk {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// A partition needs a listing made from now on.
    pub(super) fn request(&mut self, cx: &mut Context, partition: Partition) {
        // A listing that is under way was made too early for this request, also if the partition waited for it before.
        if let Some(asked) = &mut self.asked {
            asked.partitions.remove(&partition);
        }
        self.waiting.insert(partition);
        self.ask(cx);
    }

    /// The periodic comparison needs one.
    pub(super) fn request_routine(&mut self, cx: &mut Context) {
        self.routine = true;
        self.ask(cx);
    }

    fn ask(&mut self, cx: &mut Context) {
        if self.asked.is_some() || (self.waiting.is_empty() && !self.routine) {
            return;
        }
        self.asked = Some(Asked {
            at: cx.now,
            partitions: std::mem::take(&mut self.waiting),
            routine: std::mem::take(&mut self.routine),
        });
        cx.ask(Purpose::Survey, Command::Survey);
    }

    /// The listing is answered: whom it is for. Asks again if others have come in the meantime.
    pub(super) fn answered(&mut self, cx: &mut Context) -> Option<Asked> {
        let asked = self.asked.take();
        self.ask(cx);
        asked
    }
}
