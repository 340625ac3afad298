//! What a dead letter tells of its origin, and what is read back of it.

use async_nats::header::HeaderName;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn origin() -> Origin {
    Origin {
        subject: "orders.7".into(),
        stream: "ORDERS".into(),
        sequence: 41,
        key: "7".into(),
        group: "billing".into(),
        member: "pod-1".into(),
        partition: 3,
        token: 99,
        attempts: 5,
        published: 1,
        failed: 2,
        error: "first line\r\nsecond: \u{7} line".into(),
    }
}

fn message() -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("Trace", "abc");
    headers.append("Trace", "def");
    headers.insert("Nats-Msg-Id", "mine");
    headers.insert("Nats-Rollup", "all");
    Message {
        subject: "orders.7".into(),
        payload: Bytes::from_static(b"payload"),
        headers,
        stray: false,
    }
}

fn stored(detail: Detail) -> StreamMessage {
    StreamMessage {
        subject: "dead.orders.7".into(),
        sequence: 5,
        headers: headers(&origin(), &message(), detail),
        payload: Bytes::from_static(b"payload"),
        time: std::time::SystemTime::UNIX_EPOCH.into(),
    }
}

#[test]
fn a_dead_letter_tells_its_origin_and_keeps_its_own_headers() {
    let letter = read("dead", &stored(Detail::Full)).unwrap();
    let error = "first line  second:   line".to_owned();
    assert_eq!(letter.origin, Origin { error, ..origin() });
    assert_eq!(letter.sequence, 5);
    let traces: Vec<&str> = letter.headers.get_all("Trace").map(HeaderValue::as_str).collect();
    assert_eq!(traces, ["abc", "def"]);
}

#[test]
fn headers_that_the_server_acts_on_are_kept_but_do_not_act_again() {
    let headers = headers(&origin(), &message(), Detail::Full);
    assert!(headers.get("Nats-Rollup").is_none());
    assert_eq!(headers.get("Jetring-Kept-Nats-Rollup").unwrap().as_str(), "all");
    assert_eq!(
        headers.get("Nats-Msg-Id").unwrap().as_str(),
        "jetring:billing:ORDERS:41:1"
    );
}

#[test]
fn less_detail_is_smaller_and_can_still_be_replayed() {
    let size = |detail| {
        let headers = headers(&origin(), &message(), detail);
        headers
            .iter()
            .map(|(name, values)| AsRef::<str>::as_ref(name).len() + values.len())
            .sum::<usize>()
    };
    assert!(size(Detail::Least) < size(Detail::Short) && size(Detail::Short) < size(Detail::Full));
    let letter = read("dead", &stored(Detail::Least)).unwrap();
    assert_eq!(
        (letter.origin.subject.as_str(), letter.origin.sequence),
        ("orders.7", 41)
    );
    assert!(letter.headers.get("Trace").is_some());
}

#[test]
fn what_is_no_dead_letter_is_not_read_as_one() {
    let mut foreign = stored(Detail::Full);
    foreign.subject = "other.orders.7".into();
    assert!(read("dead", &foreign).is_none());
    let mut plain = stored(Detail::Full);
    plain.headers = HeaderMap::new();
    assert!(read("dead", &plain).is_none());
}

#[test]
fn a_long_error_is_cut_at_a_character() {
    assert_eq!(line("äöü", 3).as_str(), "ä");
    assert_eq!(line("abc", 3).as_str(), "abc");
}

/// What a header can hold of a text.
fn held(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

proptest! {
    #[test]
    fn an_origin_comes_back(
        texts in vec(".{0,20}", 4), numbers in vec(any::<u64>(), 6), key in "\\PC{0,9}", short: bool,
    ) {
        let origin = Origin {
            subject: "orders.7".to_owned(),
            stream: "ORDERS".to_owned(),
            sequence: numbers[0],
            key,
            group: texts[0].clone(),
            member: texts[1].clone(),
            partition: numbers[1],
            token: numbers[2],
            attempts: numbers[3],
            published: numbers[4],
            failed: numbers[5],
            error: texts[2].clone(),
        };
        let detail = if short { Detail::Short } else { Detail::Full };
        let stored = StreamMessage { headers: headers(&origin, &message(), detail), ..stored(Detail::Full) };
        let read = read("dead", &stored).unwrap().origin;
        let held = Origin {
            group: held(&origin.group),
            member: held(&origin.member),
            error: held(&origin.error),
            ..origin
        };
        prop_assert_eq!(read, held);
    }

    #[test]
    fn any_headers_are_read_or_refused(
        subject in "(dead|other)(\\.[a-z]{0,3}){0,3}|\\PC{0,9}",
        names in vec("Jetring-(Stream|Sequence|Key|Partition|Attempts|Kept-X)|Nats-[A-Z]{1,3}|[A-Za-z]{1,5}", 0..8),
        values in vec("[0-9]{0,25}|-1|\\PC{0,9}", 8),
    ) {
        let mut found = HeaderMap::new();
        for (name, value) in names.iter().zip(&values) {
            if let Ok(name) = name.parse::<HeaderName>() {
                found.append(name, line(value, usize::MAX));
            }
        }
        let message = StreamMessage { subject: subject.clone().into(), headers: found, ..stored(Detail::Full) };
        if let Some(letter) = read("dead", &message) {
            prop_assert_eq!(format!("dead.{}", letter.origin.subject), subject);
            let others = |name: &str| name.starts_with(header::PREFIX) || name.starts_with(SERVER_HEADERS);
            prop_assert!(letter.headers.iter().all(|(name, _)| !others(name.as_ref())));
        }
    }
}
