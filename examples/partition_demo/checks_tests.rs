//! Each fault is planted, and has to be found; what is allowed must not be taken for one.

use super::*;
use crate::history::Outcome;

/// A finished handling of the key `k`.
fn done(member: usize, token: u64, number: u64, start: u64, end: u64) -> Handling {
    Handling {
        member,
        key: "k".into(),
        number,
        partition: 0,
        token,
        start,
        end,
        outcome: Outcome::Finished,
    }
}

fn cut(handling: Handling) -> Handling {
    Handling {
        outcome: Outcome::Unfinished,
        ..handling
    }
}

fn check_key(last: u64, handlings: &[Handling]) -> Findings {
    check(&BTreeMap::from([("k".to_owned(), last)]), handlings, None)
}

/// Published, handled, lost, repeated, out of order, overlaps, overlaps by the frozen process.
fn numbers(findings: &Findings) -> [u64; 7] {
    [
        findings.published,
        findings.handled,
        findings.lost,
        findings.repeated,
        findings.out_of_order,
        findings.overlaps,
        findings.overlaps_by_frozen,
    ]
}

#[test]
fn a_clean_handover_has_no_fault() {
    let handlings = [done(1, 10, 1, 0, 5), done(1, 10, 2, 5, 9), done(2, 11, 3, 9, 12)];
    let findings = check_key(3, &handlings);
    assert_eq!(numbers(&findings), [3, 3, 0, 0, 0, 0, 0]);
    assert!(findings.described.is_empty());
}

#[test]
fn a_lost_message_is_found() {
    let findings = check_key(3, &[done(1, 10, 1, 0, 5), done(1, 10, 3, 5, 9)]);
    assert_eq!(numbers(&findings), [3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(findings.described, ["lost: number 2 of k"]);
    let unfinished = check_key(1, &[cut(done(1, 10, 1, 0, 5))]);
    assert_eq!(numbers(&unfinished), [1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(numbers(&check_key(2, &[])), [2, 0, 2, 0, 0, 0, 0]);
}

#[test]
fn a_message_whose_publish_was_not_confirmed_is_not_counted() {
    let findings = check_key(1, &[done(1, 10, 1, 0, 5), done(1, 10, 2, 5, 9)]);
    assert_eq!(numbers(&findings), [1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_swapped_pair_is_out_of_order() {
    let swapped = [done(1, 10, 1, 0, 1), done(1, 10, 3, 1, 2), done(1, 10, 2, 2, 3)];
    assert_eq!(numbers(&check_key(3, &swapped)), [3, 3, 0, 0, 1, 0, 0]);
    // Over a change of owner too.
    let skipped = [done(1, 10, 1, 0, 1), done(1, 10, 3, 1, 2), done(2, 11, 2, 2, 3)];
    assert_eq!(numbers(&check_key(3, &skipped)), [3, 3, 0, 0, 1, 0, 0]);
}

#[test]
fn a_redelivery_in_order_after_a_takeover_is_only_repeated() {
    let handlings = [
        done(1, 10, 1, 0, 1),
        done(1, 10, 2, 1, 2),
        cut(done(1, 10, 3, 2, 3)),
        done(2, 11, 1, 9, 10),
        done(2, 11, 2, 10, 11),
        done(2, 11, 3, 11, 12),
    ];
    let findings = check_key(3, &handlings);
    assert_eq!(numbers(&findings), [3, 3, 0, 2, 0, 0, 0]);
    assert_eq!(findings.repeated_at, [10, 11]);
}

#[test]
fn a_repeat_in_the_same_tenure_is_out_of_order() {
    let handlings = [done(1, 10, 1, 0, 1), done(1, 10, 2, 1, 2), done(1, 10, 1, 2, 3)];
    assert_eq!(numbers(&check_key(2, &handlings)), [2, 2, 0, 1, 1, 0, 0]);
    let twice = [done(1, 10, 1, 0, 1), done(1, 10, 1, 1, 2)];
    assert_eq!(numbers(&check_key(1, &twice)), [1, 1, 0, 1, 1, 0, 0]);
    // Another attempt at what has failed is what a retry is.
    let retried = [cut(done(1, 10, 1, 0, 1)), done(1, 10, 1, 1, 2)];
    assert_eq!(numbers(&check_key(1, &retried)), [1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_redelivery_out_of_order_is_out_of_order() {
    let handlings = [
        done(1, 10, 1, 0, 1),
        done(1, 10, 2, 1, 2),
        done(2, 11, 2, 9, 10),
        done(2, 11, 1, 10, 11),
    ];
    assert_eq!(numbers(&check_key(2, &handlings)), [2, 2, 0, 2, 1, 0, 0]);
}

#[test]
fn an_old_tenure_that_goes_on_is_out_of_order() {
    let handlings = [done(1, 10, 1, 0, 1), done(2, 11, 2, 2, 3), done(1, 10, 3, 4, 5)];
    assert_eq!(numbers(&check_key(3, &handlings)), [3, 3, 0, 0, 1, 0, 0]);
}

#[test]
fn two_handlers_at_once_in_one_member_are_out_of_order() {
    let handlings = [done(1, 10, 1, 0, 5), done(1, 10, 2, 4, 8)];
    assert_eq!(numbers(&check_key(2, &handlings)), [2, 2, 0, 0, 1, 0, 0]);
}

#[test]
fn two_members_at_once_overlap() {
    let handlings = [done(1, 10, 1, 0, 5), done(2, 11, 2, 4, 8)];
    let findings = check_key(2, &handlings);
    assert_eq!(numbers(&findings), [2, 2, 0, 0, 0, 1, 0]);
    assert_eq!(
        findings.described,
        ["overlap: member-1 handled number 1 of k while member-2 handled number 2"]
    );
    // One that does not end overlaps with everything after it.
    let endless = [cut(done(1, 10, 1, 0, 100)), done(2, 11, 1, 4, 8), done(2, 11, 2, 8, 9)];
    assert_eq!(check_key(2, &endless).overlaps, 2);
    // Touching is not overlapping, and other keys are other keys.
    assert_eq!(check_key(2, &[done(1, 10, 1, 0, 4), done(2, 11, 2, 4, 8)]).overlaps, 0);
    let other = Handling {
        key: "other".into(),
        ..done(2, 11, 1, 0, 5)
    };
    let both = BTreeMap::from([("k".to_owned(), 1), ("other".to_owned(), 1)]);
    assert_eq!(check(&both, &[done(1, 10, 1, 0, 5), other], None).overlaps, 0);
}

#[test]
fn what_was_frozen_in_the_middle_is_counted_apart() {
    let frozen = Some(Frozen {
        member: 1,
        from: 10,
        woken: 100,
        rejoined: 120,
    });
    let confirmed = BTreeMap::from([("k".to_owned(), 3)]);
    // Frozen while it handles number 2; the next owner handles 2 and 3; the old handler ends after it was woken.
    let mut handlings = vec![
        done(1, 10, 1, 0, 5),
        done(1, 10, 2, 9, 101),
        done(2, 11, 2, 50, 60),
        done(2, 11, 3, 60, 70),
    ];
    let findings = check(&confirmed, &handlings, frozen);
    assert_eq!(numbers(&findings), [3, 3, 0, 1, 0, 0, 1]);
    // After it is back it is a member like any other.
    handlings.push(done(2, 12, 3, 150, 160));
    handlings.push(done(1, 13, 3, 155, 165));
    assert_eq!(check(&confirmed, &handlings, frozen).overlaps, 1);
    // Another member is not excused by it.
    let others = [done(2, 11, 1, 50, 60), done(3, 12, 2, 55, 70)];
    assert_eq!(check(&confirmed, &others, frozen).overlaps, 1);
}
