//! The invariants of a plan, each as a check of its own, and for each a wrong plan that its check must refuse.

use super::super::{least_moves, moves};
use super::*;
use proptest::prelude::*;

const NO_PINS: &BTreeMap<Partition, MemberId> = &BTreeMap::new();

fn id(number: usize) -> MemberId {
    MemberId::new(format!("m-{number}")).unwrap()
}

fn live(numbers: impl IntoIterator<Item = usize>) -> Vec<LiveMember> {
    numbers.into_iter().map(|number| LiveMember::new(id(number))).collect()
}

fn weighted(weights: &[u16]) -> Vec<LiveMember> {
    weights
        .iter()
        .enumerate()
        .map(|(number, &weight)| LiveMember { id: id(number), weight })
        .collect()
}

fn input<'a>(
    seed: u64,
    partitions: u64,
    previous: &'a [Option<MemberId>],
    members: &'a [LiveMember],
    pins: &'a BTreeMap<Partition, MemberId>,
) -> PlanInput<'a> {
    let (virtual_nodes, partitions) = (NonZeroU16::new(8).unwrap(), Partitions::new(partitions).unwrap());
    PlanInput {
        seed,
        virtual_nodes,
        partitions,
        previous,
        members,
        pins,
    }
}

/// A plan with the given owners, to plant faults.
fn forged(members: &[LiveMember], owners: &[Option<usize>]) -> Plan {
    let (members, _) = members_and_weights(members);
    let owners = owners
        .iter()
        .map(|owner| owner.map(|number| members.iter().position(|member| *member == id(number)).unwrap() as u32))
        .collect();
    Plan { members, owners }
}

fn load(plan: &Plan, member: &MemberId) -> usize {
    plan.partitions_of(member).count()
}

// The checks.

macro_rules! failed {
    ($($text:tt)*) => {
        TestCaseError::fail(format!($($text)*))
    };
}

fn complete(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    if plan.owners().len() != usize::from(input.partitions.get()) {
        return Err(TestCaseError::fail("another number of partitions"));
    }
    match plan.owners().position(|owner| owner.is_none()) {
        Some(partition) if !input.members.is_empty() => Err(failed!("partition {partition} has no owner")),
        _ => Ok(()),
    }
}

/// For members of different ids.
fn balanced(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    let drained = input.members.iter().all(|member| member.weight == 0);
    let weight = |member: &LiveMember| if drained { 1 } else { usize::from(member.weight) };
    let total: usize = input.members.iter().map(weight).sum();
    for member in input.members {
        let product = usize::from(input.partitions.get()) * weight(member);
        let found = load(plan, &member.id);
        if found != product / total && found != product.div_ceil(total) {
            return Err(failed!(
                "{} has {found} partitions, its share is {product}/{total}",
                member.id
            ));
        }
    }
    Ok(())
}

fn moves_least(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    let found = moves(input.previous.iter().map(Option::as_ref), plan.owners());
    let least = least_moves(input.previous, input.members, input.partitions);
    if found == least {
        Ok(())
    } else {
        Err(failed!("{found} partitions move, {least} would do"))
    }
}

fn pins_honoured(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    for (partition, member) in input.pins {
        let counts = input.partitions.contains(*partition) && input.members.iter().any(|live| live.id == *member);
        if counts && plan.owner(*partition) != Some(member) {
            return Err(failed!("partition {partition} is pinned to {member}"));
        }
    }
    Ok(())
}

/// Loads may differ by more than one only where pins force it: who has more than another needs all it has for its pins.
fn balanced_but_for_pins(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    for more in plan.members() {
        let pinned = input
            .pins
            .iter()
            .filter(|(p, member)| input.partitions.contains(**p) && *member == more)
            .count();
        for less in plan.members() {
            if load(plan, more) > load(plan, less) + 1 && load(plan, more) > pinned {
                return Err(failed!("{more} has more than {less} without need"));
            }
        }
    }
    Ok(())
}

/// Everything that moved or was given out went to the first member in the order of the *whole* ring that had room.
fn placed_in_ring_order(input: &PlanInput<'_>, plan: &Plan) -> Result<(), TestCaseError> {
    let ring = Ring::new(input.seed, input.virtual_nodes, plan.members());
    let before = |p: Partition| input.previous.get(usize::from(p.0)).and_then(Option::as_ref);
    let stayed = |p: &Partition| before(*p) == plan.owner(*p);
    let mut room: HashMap<&MemberId, usize> = plan
        .members()
        .iter()
        .map(|m| (m, plan.partitions_of(m).filter(|p| !stayed(p)).count()))
        .collect();
    for partition in input.partitions.iter().filter(|p| !stayed(p)) {
        let wanted = ring.successors(partition).find(|member| room[member] > 0);
        if plan.owner(partition) != wanted {
            return Err(failed!(
                "partition {partition} went to {:?} instead of {wanted:?}",
                plan.owner(partition)
            ));
        }
        *room.get_mut(wanted.unwrap()).unwrap() -= 1;
    }
    Ok(())
}

/// What moved, moved away from somebody who is gone or to the joiner.
fn bystanders_keep(input: &PlanInput<'_>, plan: &Plan, joiner: Option<&MemberId>) -> Result<(), TestCaseError> {
    for (partition, (before, after)) in input.previous.iter().zip(plan.owners()).enumerate() {
        let was_live = plan.members().iter().any(|member| Some(member) == before.as_ref());
        if was_live && before.as_ref() != after && after != joiner {
            return Err(failed!("partition {partition} moved from {before:?} to {after:?}"));
        }
    }
    Ok(())
}

/// Everything that holds for any input without pins.
fn sound(input: &PlanInput<'_>) -> Result<Plan, TestCaseError> {
    let plan = plan(input);
    complete(input, &plan)?;
    balanced(input, &plan)?;
    moves_least(input, &plan)?;
    placed_in_ring_order(input, &plan)?;
    Ok(plan)
}

// The planted faults.

#[test]
fn each_check_refuses_its_fault() {
    let members = live(0..2);
    let previous: Vec<Option<MemberId>> = [0, 0, 1, 1].map(|number| Some(id(number))).to_vec();
    let pins = BTreeMap::from([(Partition(0), id(0))]);
    let input = input(0, 4, &previous, &members, &pins);
    let forge = |owners: [usize; 4]| forged(&members, &owners.map(Some));
    let right = forge([0, 0, 1, 1]);
    for check in [
        complete,
        balanced,
        moves_least,
        pins_honoured,
        balanced_but_for_pins,
        placed_in_ring_order,
    ] {
        check(&input, &right).unwrap();
    }
    assert!(complete(&input, &forged(&members, &[Some(0), Some(0), Some(1)])).is_err());
    assert!(complete(&input, &forged(&members, &[Some(0), Some(0), Some(1), None])).is_err());
    assert!(balanced(&input, &forge([0, 0, 0, 1])).is_err());
    assert!(balanced_but_for_pins(&input, &forge([0, 0, 0, 1])).is_err());
    assert!(moves_least(&input, &forge([0, 1, 0, 1])).is_err());
    assert!(pins_honoured(&input, &forge([1, 0, 1, 0])).is_err());
    assert!(bystanders_keep(&input, &forge([0, 1, 0, 1]), None).is_err());
    let empty = PlanInput {
        previous: &[],
        pins: NO_PINS,
        ..input
    };
    let plan = plan(&empty);
    placed_in_ring_order(&empty, &plan).unwrap();
    let swapped: Vec<Option<u32>> = plan.owners.iter().map(|owner| owner.map(|index| 1 - index)).collect();
    assert!(
        placed_in_ring_order(
            &empty,
            &Plan {
                owners: swapped,
                ..plan
            }
        )
        .is_err()
    );
}

#[test]
fn drained_weight_breaks_balance_if_it_is_served() {
    let members = weighted(&[1, 0]);
    let input = input(0, 2, &[], &members, NO_PINS);
    assert!(balanced(&input, &forged(&members, &[Some(0), Some(1)])).is_err());
    balanced(&input, &forged(&members, &[Some(0), Some(0)])).unwrap();
}

// Examples.

#[test]
fn nobody_live_leaves_everything_without_an_owner() {
    let plan = plan(&input(0, 3, &[Some(id(0))], &[], NO_PINS));
    assert_eq!(plan.owner_indices(), [None; 3]);
    assert_eq!(plan.owner(Partition(0)), None);
}

#[test]
fn when_all_are_drained_all_count_alike() {
    let members = weighted(&[0, 0]);
    let plan = sound(&input(0, 4, &[], &members, NO_PINS)).unwrap();
    assert_eq!(load(&plan, &id(0)), 2);
}

#[test]
fn a_drained_member_gives_up_even_what_is_pinned() {
    let members = weighted(&[1, 0]);
    let pins = BTreeMap::from([(Partition(1), id(1))]);
    let previous = vec![Some(id(1)); 4];
    let plan = plan(&input(0, 4, &previous, &members, &pins));
    assert_eq!(load(&plan, &id(1)), 0);
}

#[test]
fn a_member_named_twice_counts_once_with_its_highest_weight() {
    let twice = [
        LiveMember { id: id(0), weight: 0 },
        LiveMember { id: id(0), weight: 3 },
        LiveMember::new(id(1)),
    ];
    let once = weighted(&[3, 1]);
    assert_eq!(
        plan(&input(0, 32, &[], &twice, NO_PINS)),
        plan(&input(0, 32, &[], &once, NO_PINS))
    );
}

/// Computed by another program from the rules, so that no version plans otherwise unnoticed.
#[test]
fn golden_plan() {
    let members = live(0..3);
    let first = plan(&input(0, 12, &[], &members, NO_PINS));
    let owners = |plan: &Plan| {
        plan.owners()
            .map(|owner| owner.unwrap().as_str().replace("m-", ""))
            .collect::<String>()
    };
    assert_eq!(owners(&first), "020021101212");
    let (previous, joined) = (first.to_previous(), live(0..4));
    let second = plan(&input(0, 12, &previous, &joined, NO_PINS));
    assert_eq!(owners(&second), "023021301312");
    let (previous, left) = (second.to_previous(), live(1..4));
    let third = plan(&input(0, 12, &previous, &left, NO_PINS));
    assert_eq!(owners(&third), "323121321312");
}

/// Why surplus is chosen by the ring: by chance a member that comes back would get an eighth of what it had.
#[test]
fn a_member_that_comes_back_gets_back_most_of_what_it_had() {
    let members = live(0..8);
    let (mut had, mut back) = (0, 0);
    for gone in 0..8 {
        let first = plan(&input(1, 512, &[], &members, NO_PINS));
        let rest = live((0..8).filter(|number| *number != gone));
        let away = plan(&input(1, 512, &first.to_previous(), &rest, NO_PINS));
        let again = plan(&input(1, 512, &away.to_previous(), &members, NO_PINS));
        had += load(&first, &id(gone));
        back += first
            .partitions_of(&id(gone))
            .filter(|p| again.owner(*p) == Some(&id(gone)))
            .count();
    }
    assert!(back * 2 > had, "{back} of {had}");
}

// Properties.

/// Owners of any kind: live, dead, none; more or fewer than there are partitions.
fn any_history(members: usize) -> impl proptest::strategy::Strategy<Value = Vec<Option<MemberId>>> {
    proptest::collection::vec(proptest::option::of((0..members + 3).prop_map(id)), 0..80)
}

proptest! {
    #[test]
    fn a_join_moves_exactly_the_joiners_share(seed: u64, partitions in 1_u64..300, members in 1_usize..20) {
        let before = live(0..members);
        let first = sound(&input(seed, partitions, &[], &before, NO_PINS))?;
        let (previous, after) = (first.to_previous(), live(0..=members));
        let join = input(seed, partitions, &previous, &after, NO_PINS);
        let second = sound(&join)?;
        prop_assert_eq!(moves(first.owners(), second.owners()), partitions as usize / (members + 1));
        bystanders_keep(&join, &second, Some(&id(members)))?;
        prop_assert_eq!(load(&second, &id(members)), partitions as usize / (members + 1));
    }

    #[test]
    fn a_leave_moves_exactly_what_the_leaver_had(
        seed: u64, partitions in 1_u64..300, members in 2_usize..20, leaver in 0_usize..20,
    ) {
        let (leaver, before) = (leaver % members, live(0..members));
        let first = sound(&input(seed, partitions, &[], &before, NO_PINS))?;
        let (previous, after) = (first.to_previous(), live((0..members).filter(|number| *number != leaver)));
        let leave = input(seed, partitions, &previous, &after, NO_PINS);
        let second = sound(&leave)?;
        prop_assert_eq!(moves(first.owners(), second.owners()), load(&first, &id(leaver)));
        bystanders_keep(&leave, &second, None)?;
    }

    #[test]
    fn after_many_joins_and_leaves_each_one_still_moves_the_least(
        seed: u64, partitions in 1_u64..100, steps in proptest::collection::vec(0_usize..10, 1..30),
    ) {
        let mut present = std::collections::BTreeSet::from([0]);
        let mut previous = Vec::new();
        for step in steps {
            // Whoever is there leaves, whoever is not joins; somebody is always there.
            if !present.remove(&step) || present.is_empty() {
                present.insert(step);
            }
            let members = live(present.iter().copied());
            let step = input(seed, partitions, &previous, &members, NO_PINS);
            let next = sound(&step)?;
            previous = next.to_previous();
        }
    }

    #[test]
    fn any_history_and_any_weights_give_a_sound_plan(
        seed: u64, partitions in 1_u64..100, previous in any_history(8),
        weights in proptest::collection::vec(0_u16..5, 1..8),
    ) {
        let members = weighted(&weights);
        let next = sound(&input(seed, partitions, &previous, &members, NO_PINS))?;
        // And a second look changes nothing.
        let owners = next.to_previous();
        prop_assert_eq!(plan(&input(seed, partitions, &owners, &members, NO_PINS)), next);
    }

    #[test]
    fn without_a_history_it_is_the_plain_ring_with_bounded_loads(
        seed: u64, partitions in 1_u64..200, count in 1_usize..20,
    ) {
        let members = live(0..count);
        let input = input(seed, partitions, &[], &members, NO_PINS);
        let found = sound(&input)?;
        // The one more goes to the first by id.
        let ring = Ring::new(seed, input.virtual_nodes, found.members());
        let (share, rest) = (partitions as usize / count, partitions as usize % count);
        let mut room: HashMap<&MemberId, usize> =
            (0..).zip(found.members()).map(|(place, m)| (m, share + usize::from(place < rest))).collect();
        for partition in input.partitions.iter() {
            let first = ring.successors(partition).find(|member| room[member] > 0).unwrap();
            *room.get_mut(first).unwrap() -= 1;
            prop_assert_eq!(found.owner(partition), Some(first));
        }
    }

    #[test]
    fn the_order_of_the_members_does_not_matter(
        seed: u64, partitions in 1_u64..100, previous in any_history(8),
        (members, shuffled) in proptest::collection::vec(0_u16..5, 1..8)
            .prop_flat_map(|weights| (Just(weighted(&weights)), Just(weighted(&weights)).prop_shuffle())),
    ) {
        let one = plan(&input(seed, partitions, &previous, &members, NO_PINS));
        prop_assert_eq!(one, plan(&input(seed, partitions, &previous, &shuffled, NO_PINS)));
    }

    #[test]
    fn pins_are_honoured_and_only_they_unbalance(
        seed: u64, partitions in 1_u64..60, previous in any_history(6), count in 1_usize..6,
        pins in proptest::collection::btree_map((0_u16..70).prop_map(Partition), (0_usize..8).prop_map(id), 0..40),
    ) {
        let members = live(0..count);
        let input = input(seed, partitions, &previous, &members, &pins);
        let found = plan(&input);
        complete(&input, &found)?;
        pins_honoured(&input, &found)?;
        balanced_but_for_pins(&input, &found)?;
        // Who is within its quota keeps everything that is not pinned elsewhere.
        let owners = found.to_previous();
        prop_assert_eq!(plan(&PlanInput { previous: &owners, ..input }), found);
    }
}
