//! Counts that are kept along, counted anew.

use crate::lanes::Lanes;
use crate::lanes::lane::State;
use crate::lanes::partition::Body;
use crate::lanes::room::Amount;
use crate::lanes::timers::Timer;

impl<M: Clone> Lanes<M> {
    /// Panics if a count kept along is not what it should be.
    pub(super) fn audit(&self) {
        let mut held_by_member = Amount::default();
        for tenure in self.tenures.values() {
            let (mut held, mut outstanding, mut spilled) = (Amount::default(), Amount::default(), 0);
            for id in tenure.filters.values() {
                self.audit_filter(*id);
                let filter = &self.filters[*id];
                held = held.plus(filter.load.held);
                outstanding = outstanding.plus(filter.load.outstanding);
                spilled += filter.spilled;
            }
            assert_eq!((tenure.load.held, tenure.load.outstanding), (held, outstanding));
            assert_eq!(tenure.spilled, spilled);
            held_by_member = held_by_member.plus(held);
        }
        assert_eq!(self.load.held, held_by_member);
        let due = self.lanes.values().filter(|lane| lane.due().is_some()).count();
        let of_lanes = self.timers.iter().filter(|(_, timer)| matches!(timer, Timer::Lane(_)));
        assert!(of_lanes.count() <= due, "timers of what is finished");
        for (id, filter) in &self.filters {
            let timers = self.timers.iter().filter(|(_, timer)| *timer == Timer::Keep(id));
            assert!(timers.map(|(at, _)| *at).eq(filter.keep_timer));
            assert_eq!(
                filter.keep_timer.is_none(),
                filter.entries.values().all(|entry| entry.keep_at.is_none())
            );
        }
        let burying = |lane: &&crate::lanes::lane::Lane| matches!(lane.state, State::Burying(_));
        let waiting_for_answer: usize = self.tenures.values().map(|tenure| tenure.burying).sum();
        assert_eq!(self.lanes.values().filter(burying).count(), waiting_for_answer);
    }

    fn audit_filter(&self, id: crate::lanes::partition::FilterId) {
        let filter = &self.filters[id];
        let (mut held, mut waiting, mut spilled) = (Amount::default(), Amount::default(), 0);
        let in_memory = filter
            .entries
            .values()
            .filter(|entry| !matches!(entry.body, Body::Spilled));
        let in_memory = in_memory.fold(Amount::default(), |sum, entry| sum.plus(Amount::one(entry.bytes)));
        for lane in filter.keys.values().map(|lane| &self.lanes[*lane]) {
            held = held.plus(lane.load);
            spilled += lane.spilled();
            if lane.is_waiting() {
                waiting = waiting.plus(lane.load);
            }
        }
        assert_eq!((held, in_memory), (filter.load.held, filter.load.held));
        assert_eq!((waiting, spilled), (filter.waiting, filter.spilled));
        let reading = filter
            .entries
            .values()
            .filter(|entry| matches!(entry.body, Body::Reading(_)))
            .count();
        assert_eq!(self.reads.values().filter(|(filter, _)| *filter == id).count(), reading);
        assert_eq!(filter.entries.len(), filter.floor.unfinished());
    }
}
