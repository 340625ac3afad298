//! Faults planted into the world: a check that finds none of them would prove nothing.

use jetring::engine::Command;
use jetring::records::AssignmentRecord;

use crate::course::{Batches, Course, Step};
use crate::world::World;

/// One fault of every member's driver, or of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The clock of one member is so slow that its lease outlives what others wait.
    ClockTooSlow,
    /// Checkpoints say more than is finished.
    ProgressAhead,
    /// Consumers start beyond the floor.
    PositionAhead,
    /// A failed handler counts as one that succeeded.
    FailureIsSuccess,
    /// A failed handler counts as one that rejected its message.
    FailureIsRejection,
    /// A handler counts as ended when it begins.
    EndedTooEarly,
    /// The messages of a batch are in the wrong order.
    BatchReversed,
    /// What is delivered is acked at once.
    AckedAtOnce,
    /// The re-open count is left out of consumer names.
    NameReused,
    /// The re-open count is left out of what is pulled from.
    EpochForgotten,
    /// Progress and listings do not show the tokens of a deleted bucket, and the new bucket claims to be older.
    TokensForgotten,
    /// A new consumer's predecessors are deleted before it is made.
    DeletedBeforeCreated,
    /// Deletions of consumers are answered and not done.
    DeletionsLost,
    /// All partitions are planned onto one member.
    PlanUneven,
    /// Every plan gives every partition to another member.
    PlanRotated,
    /// Acks do not reach the server.
    AcksLost,
    /// Nobody looks at consumers that deliver nothing.
    NoWatchdog,
    /// A message is stored where no filter finds it.
    MessagesAstray,
    /// A partition's consumer is never made.
    NeverOpened,
    /// The engine is not woken when it asks for it.
    NeverWoken,
    /// One that is to leave is gone at once.
    StopsAtOnce,
}

impl Plant {
    /// Spoils what a member asks for.
    pub(crate) fn spoil(self, command: &mut Command) {
        match (self, command) {
            (Self::ProgressAhead, Command::WriteProgress(_, _, record, _)) => {
                record.filters.values_mut().for_each(|marks| marks.floor.sequence += 20);
            }
            (Self::PositionAhead, Command::CreateConsumer(_, spec)) => spec.start += 5,
            (Self::NameReused, Command::CreateConsumer(_, spec)) => spec.name.epoch.reopen = 0,
            (Self::PlanUneven, Command::WriteAssignment(_, AssignmentRecord { owners, .. }, _)) => owners.fill(0),
            (Self::PlanRotated, Command::WriteAssignment(_, record, _)) => {
                let (count, generation) = (record.members.len() as u16, record.generation.0 as u16);
                let rotate = |owner: &mut u16| *owner = (*owner + generation) % count;
                record.owners.iter_mut().for_each(rotate);
            }
            _ => {}
        }
    }
}

/// One of the first seeds must end with a violation that says this. What else a fault leads to is found as well.
fn finds_in(plant: Plant, says: &str, change: impl Fn(&mut Course)) {
    let mut found = Vec::new();
    for seed in 0..30 {
        let mut course = Course::random(seed);
        course.plant = Some(plant);
        change(&mut course);
        if let Err(violation) = World::new(course).run() {
            if violation.contains(says) {
                return;
            }
            found.push(violation);
        }
    }
    panic!("{plant:?} was not found: {found:?}");
}

fn finds(plant: Plant, says: &str) {
    finds_in(plant, says, |_| {});
}

#[test]
fn a_member_that_outlives_its_lease_is_found() {
    finds(Plant::ClockTooSlow, "two owners");
}

#[test]
fn progress_ahead_of_what_is_handled_is_found() {
    finds(Plant::ProgressAhead, "is ahead");
}

#[test]
fn a_consumer_that_starts_too_late_is_found() {
    finds(Plant::PositionAhead, " skips ");
}

#[test]
fn a_failure_taken_for_a_success_is_found() {
    finds(Plant::FailureIsSuccess, "order:");
}

#[test]
fn a_message_given_up_too_early_is_found() {
    finds(Plant::FailureIsRejection, "is given up after");
}

#[test]
fn two_handlers_for_a_key_are_found() {
    finds(Plant::EndedTooEarly, "two handlers of key");
}

#[test]
fn a_batch_out_of_order_is_found() {
    finds_in(Plant::BatchReversed, "a batch out of order", |course| {
        course.batches = Some(Batches::OfKeys);
    });
}

#[test]
fn an_ack_before_the_handler_has_ended_is_found() {
    finds(Plant::AckedAtOnce, "is acked and was not handled");
}

#[test]
fn a_name_used_twice_is_found() {
    finds(Plant::NameReused, "is created a second time");
}

#[test]
fn an_epoch_used_twice_is_found() {
    finds(Plant::EpochForgotten, "is not above the former one");
}

#[test]
fn a_token_that_falls_is_found() {
    finds_in(Plant::TokensForgotten, "is not above", |course| {
        course.steps.push((10_000, Step::DeleteBucket));
    });
}

#[test]
fn a_stream_that_forgets_what_is_not_handled_is_found() {
    finds(Plant::DeletedBeforeCreated, "is gone and was not handled");
}

#[test]
fn consumers_that_are_left_behind_are_found() {
    finds(Plant::DeletionsLost, "has the consumers");
}

#[test]
fn an_uneven_plan_is_found() {
    finds(Plant::PlanUneven, "at rest: loads");
}

#[test]
fn a_plan_that_moves_too_much_is_found() {
    finds(Plant::PlanRotated, "a plan moves");
}

#[test]
fn lag_that_stays_is_found() {
    finds(Plant::AcksLost, "at rest: lag");
}

#[test]
fn a_consumer_that_stays_stuck_is_found() {
    finds_in(Plant::NoWatchdog, "at rest: not handled", |course| {
        let at = course.calm_at - 2;
        course.steps.push((at, Step::ChangeLeader { stuck: Some(1) }));
        course.steps.push((at + 1, Step::Publish(0)));
    });
}

#[test]
fn a_message_nobody_handles_is_found() {
    finds(Plant::MessagesAstray, "at rest: not handled");
}

#[test]
fn a_partition_nobody_serves_is_found() {
    finds(Plant::NeverOpened, "at rest: partition");
}

#[test]
fn a_deadline_that_is_not_met_is_found() {
    finds(Plant::NeverWoken, "spins");
}

#[test]
fn a_member_that_leaves_its_handlers_behind_is_found() {
    finds(Plant::StopsAtOnce, "handlers still run");
}
