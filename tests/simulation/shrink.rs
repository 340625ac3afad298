//! From a course that fails to the shortest one that can be found and still fails the same way.

use crate::course::{Course, Step};
use crate::world::World;

/// So many courses are tried at most.
const TRIES: usize = 600;

/// What kind of violation it is, whatever the numbers in it.
fn kind(violation: &str) -> String {
    let letters = violation.chars().filter(|c| c.is_ascii_alphabetic());
    letters.take(10).collect()
}

struct Shrinker {
    best: Course,
    violation: String,
    tries: usize,
}

impl Shrinker {
    /// Takes a course for the best one if it still fails the same way.
    fn offer(&mut self, course: Course) -> bool {
        if self.tries >= TRIES || course == self.best {
            return false;
        }
        self.tries += 1;
        match World::new(course.clone()).run() {
            Err(violation) if kind(&violation) == kind(&self.violation) => {
                (self.best, self.violation) = (course, violation);
                true
            }
            _ => false,
        }
    }

    /// Drops steps: half of them at first, then less and less at a time.
    fn drop_steps(&mut self) -> bool {
        let mut any = false;
        let mut size = self.best.steps.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < self.best.steps.len() {
                let mut course = self.best.clone();
                let end = (at + size).min(course.steps.len());
                course.steps.drain(at..end);
                if self.offer(course) {
                    any = true;
                } else {
                    at += size;
                }
            }
            if size == 1 || self.tries >= TRIES {
                return any;
            }
            size = size.div_ceil(2);
        }
    }

    /// Leaves out whatever makes a course special, and makes it smaller.
    fn simplify(&mut self) -> bool {
        let changes: [fn(&mut Course); 9] = [
            |course| course.noise = false,
            |course| course.failures = 0,
            |course| (course.attempts, course.rejects) = (0, 0),
            |course| course.batches = None,
            |course| course.by_key = false,
            |course| course.weights.iter_mut().for_each(|weight| *weight = 1),
            |course| course.partitions = (course.partitions - 1).max(1),
            drop_member,
            |course| course.calm_at = course.steps.iter().map(|(at, _)| at + 1_000).max().unwrap_or(0),
        ];
        let mut any = false;
        for change in changes {
            let mut course = self.best.clone();
            change(&mut course);
            any |= self.offer(course);
        }
        any
    }
}

fn drop_member(course: &mut Course) {
    if course.weights.len() < 2 {
        return;
    }
    course.weights.pop();
    let left = course.weights.len();
    course
        .steps
        .retain(|(_, step)| slot(step).is_none_or(|slot| slot < left));
    course.in_the_end.retain(|slot| *slot < left);
    if course.in_the_end.is_empty() {
        course.in_the_end.push(0);
    }
}

/// Whom a step is about.
fn slot(step: &Step) -> Option<usize> {
    match step {
        Step::Start(slot)
        | Step::Crash { slot, .. }
        | Step::Freeze { slot, .. }
        | Step::Cut { slot, .. }
        | Step::Reconnect(slot)
        | Step::Stall { slot, .. }
        | Step::Leave { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// The shortest course that could be found, and what it violates.
pub(crate) fn shrink(course: Course, violation: String) -> (Course, String) {
    let mut shrinker = Shrinker {
        best: course,
        violation,
        tries: 0,
    };
    while shrinker.drop_steps() | shrinker.simplify() {}
    (shrinker.best, shrinker.violation)
}

#[test]
fn what_has_nothing_to_do_with_a_violation_is_left_out() {
    let mut course = Course::random(0);
    course.plant = Some(crate::planted::Plant::AckedAtOnce);
    let violation = World::new(course.clone()).run().err().unwrap();
    let (short, shortest) = shrink(course.clone(), violation.clone());
    assert_eq!(kind(&shortest), kind(&violation));
    assert!(World::new(short.clone()).run().is_err());
    assert!(course.steps.len() > 60);
    // A message has to be there; a member comes in the end by itself.
    assert_eq!(short.steps.len(), 1, "{short:?}");
    assert_eq!((short.weights.len(), short.partitions, short.noise), (1, 1, false));
}
