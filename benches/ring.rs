//! What a plan costs: the ring alone, a plan without a history, and the plan after one more member has joined.
//!
//! A member plans inside its event loop, so a plan has to be short against a heartbeat.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark's own inputs are right, or it must not run"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU16;

use criterion::{Criterion, criterion_group, criterion_main};
use jetring::ids::{MemberId, Partition};
use jetring::partitioning::Partitions;
use jetring::ring::{LiveMember, PlanInput, Ring, plan};

const VIRTUAL_NODES: NonZeroU16 = NonZeroU16::new(64).unwrap();
const SIZES: [(u64, usize); 4] = [(32, 3), (256, 32), (1024, 100), (4096, 1000)];

fn members(count: usize) -> Vec<LiveMember> {
    (0..count)
        .map(|number| LiveMember::new(MemberId::new(format!("pod-{number}")).unwrap()))
        .collect()
}

fn input<'a>(
    partitions: u64,
    previous: &'a [Option<MemberId>],
    members: &'a [LiveMember],
    pins: &'a BTreeMap<Partition, MemberId>,
) -> PlanInput<'a> {
    let partitions = Partitions::new(partitions).unwrap();
    PlanInput {
        seed: 1,
        virtual_nodes: VIRTUAL_NODES,
        partitions,
        previous,
        members,
        pins,
    }
}

fn ring(criterion: &mut Criterion) {
    let no_pins = BTreeMap::new();
    for (partitions, count) in SIZES {
        let before = members(count);
        let after = members(count + 1);
        let first = plan(&input(partitions, &[], &before, &no_pins)).to_previous();
        let size = format!("{partitions} partitions, {count} members");

        criterion.bench_function(&format!("ring build: {size}"), |bencher| {
            bencher.iter(|| Ring::new(1, VIRTUAL_NODES, black_box(&before).iter().map(|member| &member.id)));
        });
        criterion.bench_function(&format!("plan from nothing: {size}"), |bencher| {
            bencher.iter(|| plan(black_box(&input(partitions, &[], &before, &no_pins))));
        });
        criterion.bench_function(&format!("plan after a join: {size}"), |bencher| {
            bencher.iter(|| plan(black_box(&input(partitions, &first, &after, &no_pins))));
        });
        criterion.bench_function(&format!("plan after a leave: {size}"), |bencher| {
            bencher.iter(|| plan(black_box(&input(partitions, &first, &before[1..], &no_pins))));
        });
    }
}

criterion_group!(benches, ring);
criterion_main!(benches);
