//! Random histories of two members.

use proptest::prelude::*;

use super::world::{Ending, Step, World, small_settings};

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        6 => Just(Ending::Success),
        2 => Just(Ending::Retry),
        1 => Just(Ending::Reject),
        1 => Just(Ending::Cancelled),
    ]
}

/// Steps of a world that works: messages are stored, delivered and handled.
fn work() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), 0..4u8).prop_map(|(place, key)| Step::Store { place, key }),
        4 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Serve { place, messages }),
        4 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Arrive { place, messages }),
        4 => any::<u8>().prop_map(|member| Step::Dispatch { member }),
        5 => (any::<u8>(), ending()).prop_map(|(which, outcome)| Step::End { which, outcome }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, stored)| Step::Letter { which, stored }),
        1 => (0..20_000u16).prop_map(|millis| Step::Tick { millis }),
        1 => any::<u8>().prop_map(|partition| Step::Checkpoint { partition }),
    ]
}

/// Steps of a network that loses and repeats.
fn network() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u8>().prop_map(|place| Step::Lose { place }),
        (any::<u8>(), any::<u8>()).prop_map(|(place, which)| Step::Redeliver { place, which }),
        any::<u8>().prop_map(|place| Step::PullExpires { place }),
        any::<u8>().prop_map(|member| Step::Reconnect { member }),
        any::<u8>().prop_map(|place| Step::Reopen { place }),
    ]
}

fn stop() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u8>().prop_map(|partition| Step::Stop { partition }),
        1 => any::<u8>().prop_map(|partition| Step::Cancel { partition }),
    ]
}

fn fence() -> impl Strategy<Value = Step> {
    (any::<u8>(), any::<u8>()).prop_map(|(partition, to)| Step::Fence { partition, to })
}

fn failure() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => fence(),
        1 => any::<u8>().prop_map(|member| Step::Crash { member }),
    ]
}

fn play(steps: &[Step], work_queue: bool) -> World {
    let mut world = World::new(work_queue, small_settings());
    for step in steps {
        world.step(step);
        assert_eq!(world.check.faults, [""; 0], "after {step:?}");
    }
    world.settle();
    assert_eq!(world.check.faults, [""; 0]);
    for (last, floor) in world.ends() {
        assert!(
            floor >= last,
            "everything up to {last} is finished, the floor is {floor}"
        );
    }
    world
}

fn steps(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn s01_order_holds_and_nothing_repeats_over_a_bad_network(
        steps in steps(prop_oneof![8 => work(), 1 => network()]),
        work_queue: bool,
    ) {
        prop_assert_eq!(play(&steps, work_queue).check.repeats, 0);
    }

    #[test]
    fn s09_graceful_handovers_repeat_nothing(
        steps in steps(prop_oneof![12 => work(), 1 => network(), 1 => stop()]),
        work_queue: bool,
    ) {
        prop_assert_eq!(play(&steps, work_queue).check.repeats, 0);
    }

    #[test]
    fn s17_a_partition_that_comes_back_never_has_two_handlers_for_a_key(
        steps in steps(prop_oneof![12 => work(), 1 => fence()]),
        work_queue: bool,
    ) {
        play(&steps, work_queue);
    }

    #[test]
    fn crashes_and_lost_ownership_lose_nothing_and_keep_the_order(
        steps in steps(prop_oneof![20 => work(), 2 => network(), 1 => stop(), 1 => failure()]),
        work_queue: bool,
    ) {
        play(&steps, work_queue);
    }
}
