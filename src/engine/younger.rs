//! A stream that has lost messages: after a power failure or a restore it is younger than what is known to be finished, and
//! stores other messages under sequences that were used before. None of those may be taken for finished.
//!
//! Before a consumer starts behind what is finished, the stream is asked whether it still holds that; and what a routine listing
//! says of the stream's end is compared with what was finished before. What is delivered is compared by the lanes.

use crate::lanes::{Filter, Marks};

use super::command::Command;
use super::context::Context;
use super::partition::PartitionSlot;
use super::status::Change;

impl PartitionSlot {
    /// A routine listing is about to be asked for: what it says of the stream is compared with what was known before.
    pub(super) fn note_before_survey(&mut self) {
        let Some(tenure) = self.tenure() else { return };
        tenure.finished_before_survey = tenure.marks.values().map(Marks::highest).max().unwrap_or(0);
    }

    /// The stream has come back with less than was known to be finished: the lanes must forget what is beyond its end, or they
    /// would take its next messages for finished ones.
    pub(super) fn forget_beyond(&mut self, cx: &mut Context, last: u64) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        if tenure.finished_before_survey <= last {
            return;
        }
        for (filter, marks) in &mut tenure.marks {
            marks.truncate(last);
            if let Some(slot) = tenure.filters.get_mut(filter) {
                slot.end_at(last);
            }
        }
        cx.tell(Command::Truncate(partition, last));
    }

    /// From `first` on the stream holds other messages of the filter than those that are finished. Lanes that are open need not be
    /// told: they see it from the time of what is delivered.
    pub(super) fn forget_from(&mut self, cx: &mut Context, filter: &Filter, first: u64) {
        let partition = self.partition;
        let Some(tenure) = self.tenure() else { return };
        let last = first.saturating_sub(1);
        let (Some(marks), Some(slot)) = (tenure.marks.get_mut(filter), tenure.filters.get_mut(filter)) else {
            return;
        };
        slot.end_at(last);
        let detail = if slot.floor_is_from_acks() && marks.floor.sequence <= last {
            // Two servers' clocks may have told the time of the message and of its ack, so this is no proof, and what the record says
            // stays.
            format!(
                "what is stored of {filter} from sequence {first} on is newer than the last ack of the consumer before, and is \
                 delivered, even if that had acked it"
            )
        } else {
            marks.truncate(last);
            format!(
                "the stream has lost messages that were finished: from sequence {first} on it holds other ones of {filter}, \
                 which are delivered"
            )
        };
        cx.notify(Change::Trouble { partition, detail });
    }
}
