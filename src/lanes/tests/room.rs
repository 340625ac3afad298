//! How much is pulled.

use std::num::NonZeroUsize;

use super::bench::{Bench, P, delivered, epoch, filter, settings};
use crate::ids::Partition;
use crate::lanes::{Action, Filter, Lanes, Marks, Outcome, Settings};
use crate::time::Time;

fn bounds(partition: usize, member: usize) -> Settings {
    let mut settings = settings();
    settings.max_held = NonZeroUsize::new(partition).unwrap();
    settings.max_held_total = NonZeroUsize::new(member).unwrap();
    settings
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
    lanes.open(
        Time::ZERO,
        Partition(partition),
        filter.into(),
        epoch(1, 0),
        Marks::default(),
    );
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
    bench.lanes.pull_ended(P, &filter(), epoch(1, 0), 99);
    assert_eq!(bench.pulls(), [99]);
    bench.lanes.pull_ended(P, &filter(), epoch(0, 0), 99);
    assert_eq!(bench.pulls(), [0; 0], "a pull of another epoch");
    bench.lanes.pulls_lost(P, &filter(), epoch(1, 0));
    assert_eq!(bench.pulls(), [99]);
    assert_eq!(bench.lanes.status().outstanding, 99);
}

#[test]
fn a_gap_ends_what_was_asked_for() {
    let mut bench = Bench::new(bounds(100, 1000));
    bench.pulls();
    bench.lose_one();
    bench.deliver(2, "a");
    assert_eq!(bench.pulls(), [0; 0], "a consumer that is over is not asked");
    assert_eq!(bench.lanes.status().outstanding, 0);
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
        lanes.pull_ended(Partition(partition), &one, epoch(1, 0), 1);
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
