//! Random histories of two members.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::world::{Ending, Step, World, small_settings};
use crate::lanes::{BatchScope, BatchSettings, Settings};

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        6 => Just(Ending::Success),
        3 => Just(Ending::Retry),
        1 => Just(Ending::Reject),
        1 => Just(Ending::Cancelled),
    ]
}

/// Steps of a world that works: messages are stored, delivered and handled.
fn work() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u8>(), 0..3u8, 1..8u8).prop_map(|(place, key, messages)| Step::Store { place, key, messages }),
        4 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Serve { place, messages }),
        4 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Arrive { place, messages }),
        4 => any::<u8>().prop_map(|member| Step::Dispatch { member }),
        5 => (any::<u8>(), any::<u8>(), ending())
            .prop_map(|(which, finished, outcome)| Step::End { which, finished, outcome }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, stored)| Step::Letter { which, stored }),
        3 => any::<u8>().prop_map(|which| Step::Read { which }),
        1 => (0..20_000u16).prop_map(|millis| Step::Tick { millis }),
        1 => any::<u8>().prop_map(|member| Step::Inspect { member }),
        1 => any::<u8>().prop_map(|partition| Step::Checkpoint { partition }),
        3 => any::<u8>().prop_map(|which| Step::Record { which }),
    ]
}

/// Two keys of one partition that fail more often than not, so that much is spilled.
fn trouble() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![2 => Just(Ending::Success), 3 => Just(Ending::Retry)];
    prop_oneof![
        2 => (0..2u8, 1..8u8).prop_map(|(key, messages)| Step::Store { place: 3, key, messages }),
        3 => (1..9u8).prop_map(|messages| Step::Serve { place: 3, messages }),
        3 => (1..9u8).prop_map(|messages| Step::Arrive { place: 3, messages }),
        4 => any::<u8>().prop_map(|member| Step::Dispatch { member }),
        4 => (any::<u8>(), any::<u8>(), ending)
            .prop_map(|(which, finished, outcome)| Step::End { which, finished, outcome }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, stored)| Step::Letter { which, stored }),
        2 => any::<u8>().prop_map(|which| Step::Read { which }),
        2 => any::<u8>().prop_map(|which| Step::Record { which }),
        2 => (0..1000u16).prop_map(|millis| Step::Tick { millis }),
        1 => any::<u8>().prop_map(|which| Step::Purge { which }),
    ]
}

/// Steps of a network that loses and repeats.
fn network() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::<u8>().prop_map(|place| Step::Lose { place }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(place, which)| Step::Redeliver { place, which }),
        1 => any::<u8>().prop_map(|place| Step::PullExpires { place }),
        1 => any::<u8>().prop_map(|member| Step::Reconnect { member }),
        1 => any::<u8>().prop_map(|place| Step::Reopen { place }),
        4 => any::<u8>().prop_map(|which| Step::Purge { which }),
        1 => any::<u8>().prop_map(|place| Step::Stick { place }),
        1 => any::<bool>().prop_map(|lost| Step::LoseAcks { lost }),
    ]
}

fn scope() -> impl Strategy<Value = BatchScope> {
    prop_oneof![Just(BatchScope::Key), Just(BatchScope::Partition)]
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

/// Few handlers end, and members die often, with whatever they run.
fn deadly() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => work(),
        8 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Serve { place, messages }),
        8 => (any::<u8>(), 1..6u8).prop_map(|(place, messages)| Step::Arrive { place, messages }),
        12 => any::<u8>().prop_map(|member| Step::Dispatch { member }),
        12 => any::<u8>().prop_map(|which| Step::Record { which }),
        1 => network(),
        1 => stop(),
        1 => fence(),
        4 => any::<u8>().prop_map(|member| Step::Crash { member }),
    ]
}

/// Deliveries and acks are lost, and the watchdog looks often.
fn silent() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => work(),
        6 => any::<u8>().prop_map(|place| Step::Lose { place }),
        1 => any::<bool>().prop_map(|lost| Step::LoseAcks { lost }),
        6 => (0..2000u16).prop_map(|millis| Step::Tick { millis }),
        12 => any::<u8>().prop_map(|member| Step::Inspect { member }),
    ]
}

fn play(steps: &[Step], work_queue: bool) -> World {
    play_with(steps, work_queue, small_settings())
}

/// The same with batches of up to three.
fn play_batches(steps: &[Step], work_queue: bool, scope: BatchScope) -> World {
    let mut settings = small_settings();
    settings.batch = BatchSettings {
        scope,
        max_messages: NonZeroUsize::new(3).unwrap(),
        max_wait: Duration::from_millis(300),
    };
    play_with(steps, work_queue, settings)
}

fn play_with(steps: &[Step], work_queue: bool, settings: Settings) -> World {
    let mut world = World::new(work_queue, settings);
    for step in steps {
        world.step(step);
        assert_eq!(world.check.faults, [""; 0], "after {step:?}");
    }
    world.settle();
    assert_eq!(world.check.faults, [""; 0], "{:#?}", world.statuses());
    for (last, floor) in world.ends() {
        assert!(
            floor >= last,
            "everything up to {last} is finished, the floor is {floor}"
        );
    }
    world
}

fn steps(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step, 0..600)
}

/// Long histories, so few of them; the environment can ask for more.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    config.cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config.cases,
        None => 32,
    };
    config.max_shrink_iters = 20_000;
    config
}

proptest! {
    #![proptest_config(config())]

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
    fn s42_order_and_room_hold_with_spilled_messages(
        steps in steps(prop_oneof![40 => trouble(), 2 => network(), 1 => stop(), 1 => failure()]),
        work_queue: bool,
    ) {
        play(&steps, work_queue);
    }

    #[test]
    fn what_no_delivery_shows_is_mended_and_nothing_repeats(
        steps in steps(silent()),
        work_queue: bool,
    ) {
        prop_assert_eq!(play(&steps, work_queue).check.repeats, 0);
    }

    #[test]
    fn batches_keep_the_order_and_repeat_nothing(
        steps in steps(prop_oneof![12 => work(), 1 => network(), 1 => stop()]),
        work_queue: bool,
        scope in scope(),
    ) {
        prop_assert_eq!(play_batches(&steps, work_queue, scope).check.repeats, 0);
    }

    #[test]
    fn batches_of_keys_that_wait_keep_the_order_and_the_room(
        steps in steps(prop_oneof![40 => trouble(), 2 => network(), 1 => stop(), 1 => failure()]),
        work_queue: bool,
        scope in scope(),
    ) {
        play_batches(&steps, work_queue, scope);
    }

    #[test]
    fn crashes_and_lost_ownership_lose_nothing_and_keep_the_order(
        steps in steps(prop_oneof![60 => work(), 3 => network(), 1 => stop(), 1 => failure()]),
        work_queue: bool,
    ) {
        play(&steps, work_queue);
    }
}

proptest! {
    #![proptest_config(config())]

    /// The small world checks at every start what the records say, see `check_care`.
    #[test]
    fn what_may_have_killed_is_recorded_first_and_a_suspect_runs_alone(
        steps in steps(deadly()),
        work_queue: bool,
    ) {
        play(&steps, work_queue);
    }

    #[test]
    fn batches_are_recorded_as_a_whole_and_a_suspect_is_in_none(
        steps in steps(deadly()),
        work_queue: bool,
        scope in scope(),
    ) {
        play_batches(&steps, work_queue, scope);
    }
}

/// Histories that never spill anything would say nothing about spilling.
#[test]
fn the_histories_reach_everything_there_is() {
    let mut runner = TestRunner::deterministic();
    let everything = steps(prop_oneof![60 => work(), 6 => network(), 1 => stop(), 1 => failure()]);
    let (spilling, deadly, silent) = (steps(trouble()), steps(deadly()), steps(silent()));
    let mut asked = BTreeMap::new();
    for _ in 0..60 {
        let everything = everything.new_tree(&mut runner).unwrap().current();
        let spilling = spilling.new_tree(&mut runner).unwrap().current();
        let deadly = deadly.new_tree(&mut runner).unwrap().current();
        let silent = silent.new_tree(&mut runner).unwrap().current();
        for (kind, times) in [everything, spilling, deadly, silent]
            .iter()
            .flat_map(|steps| play(steps, false).asked)
        {
            *asked.entry(kind).or_insert(0) += times;
        }
    }
    let rare: Vec<_> = asked.iter().filter(|(_, times)| **times < 5).collect();
    assert!(asked.len() == 21 && rare.is_empty(), "{asked:?}");
}
