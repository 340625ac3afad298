//! Each fault is planted, and has to be found; what is allowed must not be taken for one.

use super::super::history::Outcome;
use super::*;

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

/// The messages of the key `k`.
fn published(last: u64) -> BTreeMap<String, Published> {
    BTreeMap::from([("k".to_owned(), Published::up_to(last))])
}

fn check_key(last: u64, handlings: &[Handling]) -> Findings {
    check(&published(last), handlings, &[])
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
    assert_eq!(findings.unknown, 1);
    assert_eq!(
        findings.described,
        ["unknown: member-1 handled number 2 of k, which was not published"]
    );
    assert_eq!(check(&BTreeMap::new(), &[done(1, 10, 1, 0, 5)], &[]).unknown, 1);
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
    let both = ["k", "other"].map(|key| (key.to_owned(), Published::up_to(1)));
    let findings = check(&both.into(), &[done(1, 10, 1, 0, 5), other], &[]);
    assert_eq!((findings.overlaps, findings.two_owners), (0, 1));
    assert!(findings.described[0].starts_with("two owners: member-1 and member-2"));
}

/// The member 1 is frozen, and woken when it has long been given up.
const FROZEN: Frozen = Frozen {
    member: 1,
    from: 10,
    woken: 100,
    rejoined: 120,
};

#[test]
fn what_was_frozen_in_the_middle_is_counted_apart() {
    let (frozen, confirmed) = ([FROZEN], published(3));
    // Frozen while it handles number 2; the next owner handles 2 and 3; the old handler ends after it was woken.
    let mut handlings = vec![
        done(1, 10, 1, 0, 5),
        done(1, 10, 2, 9, 101),
        done(2, 11, 2, 50, 60),
        done(2, 11, 3, 60, 70),
    ];
    let findings = check(&confirmed, &handlings, &frozen);
    assert_eq!(numbers(&findings), [3, 3, 0, 1, 0, 0, 1]);
    // After it is back it is a member like any other.
    handlings.push(done(2, 12, 3, 150, 160));
    handlings.push(done(1, 13, 3, 155, 165));
    assert_eq!(check(&confirmed, &handlings, &frozen).overlaps, 1);
    // Another member is not excused by it.
    let others = [done(2, 11, 1, 50, 60), done(3, 12, 2, 55, 70)];
    assert_eq!(check(&confirmed, &others, &frozen).overlaps, 1);
}

#[test]
fn a_frozen_member_is_not_excused_if_its_token_is_not_the_lower_one() {
    let handlings = [done(1, 12, 1, 9, 101), done(2, 11, 1, 50, 60)];
    let findings = check(&published(1), &handlings, &[FROZEN]);
    assert_eq!((findings.overlaps, findings.overlaps_by_frozen), (1, 0));
    // Which is a stale token, too.
    assert_eq!(findings.stale_tokens, 1);
}

#[test]
fn a_purged_message_is_not_lost_and_no_other_is_excused_by_it() {
    let mut published = published(3);
    published.get_mut("k").unwrap().purged = BTreeSet::from([1, 2]);
    let findings = check(&published, &[done(1, 10, 1, 0, 5)], &[]);
    assert_eq!((findings.handled, findings.purged, findings.lost), (1, 1, 1));
    assert_eq!(findings.described, ["lost: number 3 of k"]);
    // Only a frozen handler may finish one of them after a later one.
    let handlings = [done(1, 10, 1, 9, 101), done(2, 11, 3, 50, 60)];
    assert_eq!(check(&published, &handlings, &[FROZEN]).out_of_order, 0);
    assert!(check(&published, &handlings, &[]).out_of_order > 0);
    let rest = [done(1, 10, 2, 0, 5), done(1, 10, 1, 5, 9), done(1, 10, 3, 9, 12)];
    assert_eq!(check(&published, &rest, &[]).out_of_order, 1);
}

#[test]
fn a_token_that_falls_is_found_also_between_different_keys() {
    let other = |handling| Handling {
        key: "other".into(),
        ..handling
    };
    let both = BTreeMap::from(["k", "other"].map(|key| (key.to_owned(), Published::up_to(1))));
    let falls = [done(2, 11, 1, 0, 5), other(done(1, 10, 1, 6, 9))];
    let findings = check(&both, &falls, &[]);
    assert_eq!((findings.stale_tokens, findings.out_of_order), (1, 0));
    assert_eq!(
        findings.described,
        ["stale token: member-1 began number 1 of other with 10, after 11 was seen in partition 0"]
    );
    let rises = [done(1, 10, 1, 0, 5), other(done(2, 11, 1, 6, 9))];
    assert_eq!(check(&both, &rises, &[]).stale_tokens, 0);
    // Two tenures never have the same one.
    let same = [done(1, 10, 1, 0, 5), other(done(2, 10, 1, 6, 9))];
    assert_eq!(check(&both, &same, &[]).two_owners, 1);
}

#[test]
fn a_member_that_wakes_begins_one_handler_per_thread_at_most() {
    let mut handlings = vec![done(2, 11, 1, 50, 60), done(2, 11, 2, 60, 70)];
    handlings.extend((0..THREADS as u64).map(|thread| cut(done(1, 10, 1, 101 + thread, 110))));
    let findings = check(&published(2), &handlings, &[FROZEN]);
    assert_eq!((findings.begun_by_frozen, findings.stale_tokens), (THREADS as u64, 0));
    handlings.push(cut(done(1, 10, 2, 108, 110)));
    assert_eq!(check(&published(2), &handlings, &[FROZEN]).stale_tokens, 1);
    // Once it has fenced itself it begins none.
    handlings.truncate(2);
    handlings.push(cut(done(1, 10, 2, 121, 122)));
    let findings = check(&published(2), &handlings, &[FROZEN]);
    assert_eq!((findings.begun_by_frozen, findings.stale_tokens), (0, 1));
}
