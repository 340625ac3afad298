//! How much is pulled.

use std::num::NonZeroUsize;

use super::bench::{Bench, P, delivered, epoch, filter, settings};
use crate::ids::Partition;
use crate::lanes::{Action, Delivered, Filter, Lanes, Marks, Outcome, PullEnd, Settings};
use crate::time::Time;

fn bounds(partition: usize, member: usize) -> Settings {
    let mut settings = settings();
    settings.max_held = NonZeroUsize::new(partition).unwrap();
    settings.max_held_total = NonZeroUsize::new(member).unwrap();
    settings
}

fn unused(messages: usize) -> PullEnd {
    PullEnd {
        messages,
        ..PullEnd::default()
    }
}

/// The partition and size of each pull.
fn pulls(lanes: &mut Lanes<u64>) -> Vec<(u16, usize)> {
    let pull = |action| match action {
        Action::Pull {
            partition, messages, ..
        } => Some((partition.0, messages)),
        _ => None,
    };
    lanes.actions().filter_map(pull).collect()
}

fn open(lanes: &mut Lanes<u64>, partition: u16, filter: &str) {
    lanes.open(Partition(partition), filter.into(), epoch(1, 0), Marks::default());
}

#[test]
fn asks_for_its_room_and_again_when_a_quarter_is_free() {
    let mut bench = Bench::new(bounds(100, 1000));
    assert_eq!(bench.pulls(), [100]);
    for sequence in 1..=100 {
        bench.deliver(sequence, &format!("{}", sequence % 10));
    }
    assert_eq!(bench.pulls(), [0; 0], "the room is full");
    let mut finished = 0;
    while bench.pulls().is_empty() {
        let sequence = bench.started()[0];
        bench.end(sequence, Outcome::Success);
        finished += 1;
    }
    assert_eq!(finished, 25);
}

#[test]
fn what_a_pull_did_not_deliver_can_be_asked_for_again() {
    let mut bench = Bench::new(bounds(100, 1000));
    assert_eq!(bench.pulls(), [100]);
    bench.deliver(1, "a");
    bench.lanes.pull_ended(P, &filter(), epoch(1, 0), unused(99));
    assert_eq!(bench.pulls(), [99]);
    bench.lanes.pull_ended(P, &filter(), epoch(0, 0), unused(99));
    assert_eq!(bench.pulls(), [0; 0], "a pull of another epoch");
    bench.lanes.pulls_lost(P, &filter(), epoch(1, 0));
    assert_eq!(bench.pulls(), [99]);
    assert_eq!(bench.lanes.status().outstanding.messages, 99);
}

#[test]
fn a_gap_ends_what_was_asked_for() {
    let mut bench = Bench::new(bounds(100, 1000));
    bench.pulls();
    bench.lose_one();
    bench.deliver(2, "a");
    assert_eq!(bench.pulls(), [0; 0], "a consumer that is over is not asked");
    assert_eq!(bench.lanes.status().outstanding.messages, 0);
    bench.reopen();
    assert_eq!(bench.pulls(), [100]);
}

#[test]
fn a_partition_opened_later_finds_room() {
    let mut lanes = Lanes::new(bounds(100, 100), 1);
    open(&mut lanes, 1, "a");
    assert_eq!(pulls(&mut lanes), [(1, 50)]);
    open(&mut lanes, 2, "a");
    assert_eq!(pulls(&mut lanes), [(2, 25)]);
    open(&mut lanes, 3, "a");
    assert_eq!(pulls(&mut lanes), [(3, 13)]);
}

#[test]
fn filters_of_one_partition_share_its_room() {
    let mut settings = bounds(100, 1000);
    settings.several_filters = true;
    let mut lanes = Lanes::new(settings, 1);
    for filter in ["a", "b", "c", "d"] {
        open(&mut lanes, 1, filter);
    }
    let asked: Vec<_> = pulls(&mut lanes).into_iter().map(|(_, messages)| messages).collect();
    assert_eq!(asked, [25, 25, 25, 13]);
}

#[test]
fn those_who_wait_for_room_get_it_in_turn() {
    let mut lanes = Lanes::new(bounds(8, 8), 1);
    open(&mut lanes, 1, "a");
    assert_eq!(pulls(&mut lanes), [(1, 4)]);
    let one: Filter = "a".into();
    for sequence in 1..=4 {
        let delivered = delivered(sequence, sequence, "k");
        lanes.deliver(Time::ZERO, Partition(1), &one, epoch(1, 0), delivered);
    }
    for partition in 2..=9 {
        open(&mut lanes, partition, "a");
    }
    assert_eq!(pulls(&mut lanes), [(2, 1), (3, 1), (4, 1), (5, 1)]);
    // The others wait; what is given back makes room for the next of them.
    for partition in 2..=3 {
        lanes.pull_ended(Partition(partition), &one, epoch(1, 0), unused(1));
        lanes.stop(Partition(partition));
    }
    assert_eq!(pulls(&mut lanes), [(6, 1), (7, 1)]);
}

#[test]
fn closing_gives_the_room_to_the_others() {
    let mut lanes = Lanes::new(bounds(100, 100), 1);
    open(&mut lanes, 1, "a");
    open(&mut lanes, 2, "a");
    assert_eq!(pulls(&mut lanes), [(1, 50), (2, 25)]);
    lanes.close(Partition(1));
    assert_eq!(pulls(&mut lanes), [(2, 38)]);
}

fn byte_bounds(partition: usize, member: usize) -> Settings {
    let mut settings = bounds(100, 1000);
    settings.max_bytes = NonZeroUsize::new(partition).unwrap();
    settings.max_bytes_total = NonZeroUsize::new(member).unwrap();
    settings
}

impl Bench {
    fn pulls_with_bytes(&mut self) -> Vec<(usize, Option<usize>)> {
        self.take(|action| match action {
            Action::Pull { messages, bytes, .. } => Some((*messages, *bytes)),
            _ => None,
        })
    }

    fn deliver_sized(&mut self, consumer_sequence: u64, bytes: usize) {
        self.deliver_as(Delivered {
            bytes,
            ..delivered(consumer_sequence, consumer_sequence, &format!("{consumer_sequence}"))
        });
    }

    fn pull_too_large(&mut self, messages: usize, bytes: usize) {
        let end = PullEnd {
            messages,
            bytes,
            too_large: true,
        };
        self.lanes.pull_ended(P, &filter(), epoch(1, 0), end);
    }
}

#[test]
fn a_pull_asks_for_some_times_the_average_of_bytes() {
    let mut bench = Bench::new(byte_bounds(16_000, 64_000));
    assert_eq!(
        bench.pulls_with_bytes(),
        [(100, Some(250))],
        "of nothing known a small part of the share"
    );
    bench.deliver_sized(1, 30);
    bench.lanes.pulls_lost(P, &filter(), epoch(1, 0));
    assert_eq!(bench.pulls_with_bytes(), [(99, Some(99 * 4 * 30))]);
    bench.lanes.pulls_lost(P, &filter(), epoch(1, 0));
    bench.pulls();
    bench.deliver_sized(2, 15_000);
    bench.lanes.pulls_lost(P, &filter(), epoch(1, 0));
    assert_eq!(bench.pulls_with_bytes(), [], "less than a sixteenth is free");
    bench.run_all();
    assert_eq!(bench.pulls_with_bytes(), [(100, Some(16_000))], "no more than is free");
}

#[test]
fn bytes_left_over_are_given_back_when_the_last_message_has_come() {
    let mut bench = Bench::new(byte_bounds(16_000, 64_000));
    bench.pulls();
    for sequence in 1..=99 {
        bench.deliver_sized(sequence, 1);
        bench.run_all();
    }
    // The first request, and one for every quarter that was free again.
    let asked = 250 + 3 * 250;
    let outstanding = bench.lanes.status().outstanding;
    assert_eq!((outstanding.messages, outstanding.bytes), (76, asked - 99));
    bench.lanes.pull_ended(P, &filter(), epoch(1, 0), unused(76));
    assert_eq!(bench.lanes.status().outstanding.bytes, 0);
}

#[test]
fn a_message_larger_than_the_request_is_asked_for_with_more_and_at_last_alone() {
    let mut bench = Bench::new(byte_bounds(16_000, 64_000));
    assert_eq!(bench.pulls_with_bytes(), [(100, Some(250))]);
    bench.pull_too_large(100, 250);
    assert_eq!(bench.pulls_with_bytes(), [(100, Some(500))]);
    bench.pull_too_large(100, 500);
    assert_eq!(bench.pulls_with_bytes(), [(100, Some(1000))]);
    bench.pull_too_large(100, 16_000);
    assert_eq!(bench.pulls_with_bytes(), [(1, None)]);
    bench.deliver_sized(1, 50_000);
    assert_eq!(bench.pulls_with_bytes(), [], "the room is more than full");
    bench.run_all();
    assert_eq!(bench.pulls_with_bytes(), [(100, Some(16_000))]);
}

fn idle(pull: usize) -> Settings {
    let mut settings = bounds(100, 1000);
    settings.idle_pull = NonZeroUsize::new(pull).unwrap();
    settings
}

#[test]
fn asks_for_little_while_nothing_comes_and_for_more_with_everything_that_does() {
    let mut bench = Bench::new(idle(8));
    assert_eq!(bench.pulls(), [8]);
    let mut asked = 8;
    let mut sequence = 0;
    for _ in 0..6 {
        for _ in 0..std::mem::take(&mut asked) {
            sequence += 1;
            bench.deliver(sequence, "key");
            let started = bench.started();
            started
                .iter()
                .for_each(|&sequence| bench.end(sequence, Outcome::Success));
            asked += bench.pulls().iter().sum::<usize>();
        }
    }
    assert!(asked > 50, "six rounds on, it asks for {asked}");
    let filter = filter();
    bench.lanes.pull_ended(P, &filter, epoch(1, 0), unused(1));
    bench.lanes.pulls_lost(P, &filter, epoch(1, 0));
    assert_eq!(bench.pulls(), [8], "a request that expired shows that nothing comes");
}

#[test]
fn hundreds_of_idle_filters_leave_room_for_a_new_one() {
    let mut settings = idle(8);
    settings.several_filters = true;
    settings.max_held_total = NonZeroUsize::new(8192).unwrap();
    let mut lanes: Lanes<u64> = Lanes::new(settings, 1);
    for number in 0..300 {
        open(&mut lanes, number % 32, &format!("t.{number}"));
        assert_eq!(pulls(&mut lanes).len(), 1, "filter {number} is asked for at once");
    }
}
