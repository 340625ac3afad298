//! Every decoder against text that nobody meant for it: it is read as what was written, or refused, and never a panic.
//!
//! Subject patterns and the headers of dead letters have such tests beside their code.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

use std::collections::{BTreeMap, BTreeSet};

use jetring::ids::{
    Epoch, FencingToken, Generation, GroupName, Incarnation, MAX_NAME_LEN, MemberId, Partition, Revision, decode,
    encode,
};
use jetring::lanes::{Death, Filter, Mark, Marks, Range};
use jetring::names::ConsumerName;
use jetring::partitioning::{InsertedPartition, Partitions, SubjectPattern};
use jetring::records::{
    self, AssignmentRecord, ClaimRecord, ClaimState, ConfigRecord, KeyKind, Keys, MemberRecord, MemberState,
    ProgressRecord, RecordError, Share,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

// ---- names ------------------------------------------------------------------------------------------------------------

/// Text of all kinds, often with characters that mean something to NATS.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{1,12}", "[a-z.*>=_ \u{0}äß-]{1,12}", "[0-9A-F=]{1,12}"]
}

fn any_id() -> impl Strategy<Value = MemberId> {
    any_text().prop_map(|text| MemberId::new(text).unwrap())
}

proptest! {
    #[test]
    fn an_encoded_name_is_safe_and_comes_back(text in "\\PC*|[a-z.*>=_ \u{0}äß-]*") {
        let encoded = encode(&text);
        prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-=".contains(&byte)));
        prop_assert_eq!(decode(&encoded), Some(text));
    }

    #[test]
    fn what_is_decoded_has_one_spelling(text in "[a-z]{0,2}=[0-9A-Fa-f]{2}[a-z.]{0,2}|[0-9A-Fa-f=.-]{0,12}|\\PC{0,12}") {
        if let Some(raw) = decode(&text) {
            prop_assert_eq!(encode(&raw), text);
        }
    }

    #[test]
    fn a_name_is_taken_or_refused_by_its_encoded_length(text in "\\PC{0,120}") {
        let fits = !text.is_empty() && encode(&text).len() <= MAX_NAME_LEN;
        prop_assert_eq!(GroupName::new(text.clone()).is_ok(), fits);
        prop_assert_eq!(MemberId::new(text).is_ok(), fits);
    }

    #[test]
    fn a_consumer_name_comes_back(group in any_text(), partition: u16, token: u64, reopen: u32, filter in "[a-z.*>]{1,30}") {
        let filter = Filter::new(filter);
        let epoch = Epoch { token: FencingToken(token), reopen };
        let name = ConsumerName::new(&GroupName::new(group).unwrap(), Partition(partition), &filter, epoch);
        prop_assert!(name.serves(&filter));
        prop_assert_eq!(ConsumerName::parse(&name.to_string()), Some(name));
    }

    #[test]
    fn what_is_read_as_a_consumer_name_has_one_spelling(
        text in "[a-z]{1,3}_\\+?[0-9]{1,2}_[0-9]{1,2}_[0-9]{1,2}_0{15}[0-9a-fA-F]|[a-z=_0-9]{0,30}|\\PC{0,40}",
    ) {
        if let Some(name) = ConsumerName::parse(&text) {
            prop_assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn a_key_of_the_bucket_comes_back(group in any_text(), id in any_id(), partition: u16) {
        let keys = Keys::new(&GroupName::new(group).unwrap());
        let partition = Partition(partition);
        for (key, kind) in [
            (keys.config(), KeyKind::Config),
            (keys.assignment(), KeyKind::Assignment),
            (keys.member(&id), KeyKind::Member(id)),
            (keys.claim(partition), KeyKind::Claim(partition)),
            (keys.progress(partition), KeyKind::Progress(partition)),
        ] {
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-=.".contains(&byte)), "{}", key);
            prop_assert_eq!(keys.kind(&key), Some(kind));
        }
    }

    #[test]
    fn what_is_read_as_a_key_has_one_spelling(
        rest in "(claims|progress)\\.\\+?[0-9]{1,3}|(config|assignment|members)(\\.[a=2Ee-]{0,5}){0,2}|\\PC{0,20}",
    ) {
        let keys = Keys::new(&GroupName::new("g").unwrap());
        let key = format!("g.{rest}");
        let spelled = keys.kind(&key).map(|kind| match kind {
            KeyKind::Config => keys.config(),
            KeyKind::Assignment => keys.assignment(),
            KeyKind::Member(id) => keys.member(&id),
            KeyKind::Claim(partition) => keys.claim(partition),
            KeyKind::Progress(partition) => keys.progress(partition),
        });
        prop_assert!(spelled.is_none_or(|spelled| spelled == key), "{}", key);
    }

    #[test]
    fn a_stored_subject_is_read_as_what_is_stored_for_its_original(
        subject in "t\\.\\+?0?[0-3](\\.[ab]){2}|t\\.[0-3](\\.[ab*>]{0,2}){1,3}|\\PC{0,20}",
        partitions in 1_u64..4,
    ) {
        let inserted = InsertedPartition::new(
            SubjectPattern::parse("t.*.>").unwrap(),
            Partitions::new(partitions).unwrap(),
        );
        if let Some(resolved) = inserted.resolve(&subject) {
            prop_assert_eq!(inserted.stored_subject(&resolved.subject), Some(subject));
        }
    }
}

// ---- records ----------------------------------------------------------------------------------------------------------

fn any_incarnation() -> impl Strategy<Value = Incarnation> {
    prop_oneof!["[a-z]{3}-[0-9]{1,2}", any_text()].prop_map(Incarnation)
}

fn any_config() -> impl Strategy<Value = ConfigRecord> {
    let texts = (any_text(), any_text(), any_text());
    let numbers = (
        any::<u16>(),
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<u16>(),
        any::<u64>(),
    );
    (texts, numbers, vec(any::<usize>(), 0..4)).prop_map(|(texts, numbers, key_tokens)| ConfigRecord {
        strategy: texts.0,
        partitions: numbers.0,
        subject: texts.1,
        key_tokens,
        stream: texts.2,
        stream_created: numbers.1,
        start_sequence: numbers.2,
        ring_seed: numbers.3,
        virtual_nodes: numbers.4,
        session_timeout_ms: numbers.5,
    })
}

fn any_member() -> impl Strategy<Value = MemberRecord> {
    let state = prop_oneof![
        Just(MemberState::Active),
        Just(MemberState::Leaving),
        Just(MemberState::Dead)
    ];
    let rest = (option::of(any::<u64>()), any::<u16>(), state, "\\PC{0,9}", "\\PC{0,9}");
    (any_incarnation(), any::<u64>(), rest).prop_map(
        |(incarnation, beat, (joined, weight, state, address, version))| MemberRecord {
            incarnation,
            beat,
            joined: joined.map(Revision),
            weight,
            state,
            address,
            version,
        },
    )
}

fn any_assignment() -> impl Strategy<Value = AssignmentRecord> {
    let share = (any_id(), any::<u16>()).prop_map(|(id, weight)| Share { id, weight });
    (any::<u64>(), vec(share, 0..4), vec(0..6_u16, 0..9)).prop_map(|(generation, members, owners)| AssignmentRecord {
        generation: Generation(generation),
        members,
        owners,
    })
}

fn any_claim() -> impl Strategy<Value = ClaimRecord> {
    let state = prop_oneof![Just(ClaimState::Held), Just(ClaimState::Released)];
    (any_id(), any_incarnation(), any::<u64>(), state, any::<u64>()).prop_map(
        |(owner, incarnation, generation, state, token)| ClaimRecord {
            owner,
            incarnation,
            generation: Generation(generation),
            state,
            token: FencingToken(token),
        },
    )
}

/// Numbers that collide, and the ends of what there is.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..30, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// Any marks, sensible or not.
fn any_marks() -> impl Strategy<Value = Marks> {
    let mark = (any_number(), any_number()).prop_map(|(sequence, time)| Mark { sequence, time });
    let range = (any_number(), any_number(), any_number()).prop_map(|(low, high, time)| Range { low, high, time });
    let death = (any_incarnation(), any::<bool>()).prop_map(|(incarnation, alone)| Death { incarnation, alone });
    let rest = (
        btree_map(any_number(), any::<u32>(), 0..4),
        btree_set(any_number(), 0..4),
        any::<bool>(),
        btree_map(any_number(), vec(death, 0..3), 0..3),
    );
    (mark, vec(range, 0..5), rest).prop_map(|(floor, ranges, (attempts, started, alone, deaths))| Marks {
        floor,
        ranges,
        attempts,
        started,
        alone,
        deaths,
    })
}

fn any_progress() -> impl Strategy<Value = ProgressRecord> {
    let filters = btree_map("[a-z.*>]{1,9}".prop_map(Filter::new), any_marks(), 0..3);
    (any::<u64>(), filters).prop_map(|(token, filters)| ProgressRecord {
        token: FencingToken(token),
        filters,
    })
}

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(record: &T) {
    let read = records::decode::<T>("k", &records::encode(record));
    assert_eq!(read.as_ref(), Ok(record));
}

/// The text of a record with something done to it, as every type of record.
fn is_read_or_refused(text: &[u8]) {
    let _ = records::decode::<ConfigRecord>("k", text);
    let _ = records::decode::<MemberRecord>("k", text);
    let _ = records::decode::<ClaimRecord>("k", text);
    if let Ok(record) = records::decode::<AssignmentRecord>("k", text) {
        let _ = record.owner(Partition(3));
    }
    if let Ok(record) = records::decode::<ProgressRecord>("k", text) {
        for mut marks in record.filters.into_values() {
            marks.normalize();
        }
    }
}

proptest! {
    #[test]
    fn records_come_back(
        config in any_config(), member in any_member(), assignment in any_assignment(), claim in any_claim(),
        progress in any_progress(),
    ) {
        comes_back(&config);
        comes_back(&member);
        comes_back(&assignment);
        comes_back(&claim);
        comes_back(&progress);
    }

    #[test]
    fn a_record_of_a_later_version_is_named_whatever_it_holds(
        version in 2..=u64::MAX, name in "x[a-z]{0,6}", value in any_text(), claim in any_claim(),
    ) {
        let mut later = serde_json::to_value(&claim).unwrap();
        later["v"] = version.into();
        later[name] = value.into();
        let text = later.to_string();
        let newer = RecordError::Newer { key: "g.claims.1".to_owned(), found: version };
        prop_assert_eq!(records::decode::<ClaimRecord>("g.claims.1", text.as_bytes()), Err(newer.clone()));
        // Also as a record of which it has no field at all.
        prop_assert_eq!(records::decode::<ConfigRecord>("g.claims.1", text.as_bytes()), Err(newer));
    }

    #[test]
    fn a_field_that_is_not_known_is_passed_over(name in "x[a-z]{1,6}", value in any_text(), member in any_member()) {
        let mut with_more: serde_json::Value = serde_json::from_slice(&records::encode(&member)).unwrap();
        with_more[name] = value.into();
        let read = records::decode::<MemberRecord>("k", with_more.to_string().as_bytes());
        prop_assert_eq!(read, Ok(member));
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..60)) {
        is_read_or_refused(&bytes);
    }

    #[test]
    fn a_damaged_record_is_refused_or_read(
        progress in any_progress(), member in any_member(), at: prop::sample::Index, byte: u8, kind in 0..3,
    ) {
        for mut text in [records::encode(&progress), records::encode(&member)] {
            let place = at.index(text.len());
            match kind {
                0 => text[place] = byte,
                1 => text.truncate(place),
                _ => text.insert(place, byte),
            }
            is_read_or_refused(&text);
        }
    }

    #[test]
    fn marks_that_make_no_sense_are_put_in_order_and_lose_nothing(
        mut marks in any_marks(), other in any_marks(), last in any_number(), sequence in any_number(),
    ) {
        let before = marks.clone();
        marks.normalize();
        let ends = marks.ranges.windows(2).all(|pair| pair[0].high < pair[1].low);
        prop_assert!(ends && marks.ranges.iter().all(|range| range.low <= range.high && range.low > marks.floor.sequence));
        // What was finished is finished.
        prop_assert!(!before.is_finished(sequence, 0) || marks.is_finished(sequence, 0));
        let finished = marks.clone();
        marks.union(&other);
        prop_assert!(!finished.is_finished(sequence, 0) || marks.is_finished(sequence, 0));
        marks.blame(&Incarnation("i-1".to_owned()));
        marks.absolve(|incarnation| incarnation.0 == "i-1");
        marks.truncate(last);
        prop_assert!(marks.highest() <= last);
        prop_assert!(sequence <= last || !marks.is_finished(sequence, 0));
    }
}

/// Records as the first version wrote them, with the fields that may be missing left out. They are read for ever.
#[test]
fn records_of_the_first_version_are_read() {
    let config = br#"{"v":1,"strategy":"transformed","partitions":32,"subject":"orders.*","key_tokens":[1],"stream":"ORDERS",
        "stream_created":1700000000000000000,"start_sequence":1,"ring_seed":0,"virtual_nodes":160,"session_timeout_ms":4000}"#;
    assert_eq!(records::decode::<ConfigRecord>("k", config).unwrap().partitions, 32);
    let member = br#"{"v":1,"incarnation":"x7-1","beat":1,"weight":1,"state":"active","version":"0.1.0"}"#;
    let member = records::decode::<MemberRecord>("k", member).unwrap();
    assert_eq!((member.joined, member.address.as_str()), (None, ""));
    let assignment = br#"{"v":1,"generation":3,"members":[{"id":"a","weight":1}],"owners":[0,0]}"#;
    let assignment = records::decode::<AssignmentRecord>("k", assignment).unwrap();
    assert_eq!(assignment.owner(Partition(1)).map(MemberId::as_str), Some("a"));
    assert_eq!(assignment.owner(Partition(2)), None);
    let claim = br#"{"v":1,"owner":"a","incarnation":"x7-1","generation":3,"state":"held","token":0}"#;
    assert_eq!(
        records::decode::<ClaimRecord>("k", claim).unwrap().state,
        ClaimState::Held
    );
    let progress = br#"{"v":1,"token":9,"filters":{"orders.3.>":{"floor":{"sequence":7,"time":8}}}}"#;
    let progress = records::decode::<ProgressRecord>("k", progress).unwrap();
    let marks = Marks::at(Mark { sequence: 7, time: 8 });
    assert_eq!(progress.filters, BTreeMap::from([(Filter::new("orders.3.>"), marks)]));
    let full = br#"{"v":1,"token":9,"filters":{"f":{"floor":{"sequence":7,"time":8},"ranges":[{"low":9,"high":9,"time":9}],
        "attempts":{"8":2},"started":[8],"alone":true,"deaths":{"8":[{"incarnation":"x7-1"},{"incarnation":"x8-1","alone":true}]}}}}"#;
    let full = records::decode::<ProgressRecord>("k", full).unwrap();
    let marks = &full.filters[&Filter::new("f")];
    assert_eq!((marks.started.clone(), marks.alone), (BTreeSet::from([8]), true));
    assert_eq!(marks.deaths[&8].len(), 2);
}

/// Numbers that are no version.
#[test]
fn a_record_without_a_version_that_ever_was_is_malformed() {
    for version in ["0", "-1", "1.5", "\"1\"", "null", "99999999999999999999"] {
        let text =
            format!(r#"{{"v":{version},"owner":"a","incarnation":"i","generation":1,"state":"held","token":0}}"#);
        let read = records::decode::<ClaimRecord>("k", text.as_bytes());
        assert!(
            matches!(read, Err(RecordError::Malformed { .. })),
            "{version}: {read:?}"
        );
    }
}
