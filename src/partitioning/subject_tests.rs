//! What a pattern accepts and finds, and generators of patterns and subjects for the strategies' tests.

use super::*;
use proptest::prelude::*;

fn pattern(text: &str) -> SubjectPattern {
    SubjectPattern::parse(text).unwrap()
}

/// Which subjects a NATS filter catches, from NATS's own definition.
pub(in super::super) fn catches(filter: &str, subject: &str) -> bool {
    let (filter, subject): (Vec<&str>, Vec<&str>) = (filter.split('.').collect(), subject.split('.').collect());
    match filter.split_last() {
        Some((&">", before)) => {
            subject.len() > before.len() && before.iter().zip(&subject).all(|(f, s)| *f == "*" || f == s)
        }
        _ => filter.len() == subject.len() && filter.iter().zip(&subject).all(|(f, s)| *f == "*" || f == s),
    }
}

#[test]
fn refused_patterns() {
    let refused = |text: &str| SubjectPattern::parse(text).unwrap_err();
    let owned = str::to_owned;
    assert_eq!(refused(""), PatternError::Empty);
    assert_eq!(
        refused("a..*"),
        PatternError::EmptyToken {
            pattern: owned("a..*"),
            position: 2
        }
    );
    assert_eq!(
        refused(".*"),
        PatternError::EmptyToken {
            pattern: owned(".*"),
            position: 1
        }
    );
    assert_eq!(
        refused("a.*."),
        PatternError::EmptyToken {
            pattern: owned("a.*."),
            position: 3
        }
    );
    assert_eq!(
        refused("a b.*"),
        PatternError::BadCharacter {
            pattern: owned("a b.*"),
            found: ' '
        }
    );
    assert_eq!(
        refused("a\0.*"),
        PatternError::BadCharacter {
            pattern: owned("a\0.*"),
            found: '\0'
        }
    );
    let inside = |text: &str, token: &str| PatternError::WildcardInsideToken {
        pattern: owned(text),
        token: owned(token),
    };
    assert_eq!(refused("a*.*"), inside("a*.*", "a*"));
    assert_eq!(refused("a.*.b>"), inside("a.*.b>", "b>"));
    assert_eq!(refused("a.**"), inside("a.**", "**"));
    assert_eq!(
        refused("a.>.*"),
        PatternError::TailNotLast {
            pattern: owned("a.>.*")
        }
    );
    assert_eq!(
        refused("a.*.>.>"),
        PatternError::TailNotLast {
            pattern: owned("a.*.>.>")
        }
    );
    for text in ["a", "a.b", "a.>", ">"] {
        assert_eq!(refused(text), PatternError::NoWildcard { pattern: owned(text) });
    }
    assert_eq!(
        refused("$JS.*"),
        PatternError::Reserved {
            pattern: owned("$JS.*")
        }
    );
    let function = |text: &str, token: &str| PatternError::MappingFunction {
        pattern: owned(text),
        token: owned(token),
    };
    assert_eq!(refused("a.$1.*"), function("a.$1.*", "$1"));
    assert_eq!(refused("a.{{x}}.*"), function("a.{{x}}.*", "{{x}}"));
}

#[test]
fn refused_key_tokens() {
    let refused = |numbers: &[usize]| pattern("a.*.b.*").with_key_tokens(numbers).unwrap_err();
    let text = || "a.*.b.*".to_owned();
    assert_eq!(
        refused(&[]),
        PatternError::NoKeyTokens {
            pattern: text(),
            wildcards: 2
        }
    );
    for found in [0, 3] {
        assert_eq!(
            refused(&[1, found]),
            PatternError::KeyTokenOutOfRange {
                pattern: text(),
                found,
                wildcards: 2
            }
        );
    }
    assert_eq!(
        refused(&[1, 1]),
        PatternError::KeyTokensNotAscending {
            pattern: text(),
            before: 1,
            found: 1
        }
    );
    assert_eq!(
        refused(&[2, 1]),
        PatternError::KeyTokensNotAscending {
            pattern: text(),
            before: 2,
            found: 1
        }
    );
}

#[test]
fn every_error_says_what_to_do() {
    for text in ["", "a..*", "a *", "a*", "a.>.*", "a", "$SYS.*", "a.$1.*"] {
        let message = SubjectPattern::parse(text).unwrap_err().to_string();
        assert!(message.contains(';') || message.contains(','), "{message}");
        assert!(text.is_empty() || message.contains(&format!("{text:?}")), "{message}");
    }
}

#[test]
fn keys_of_subjects() {
    for (text, subject, key) in [
        ("some_topic.*", "some_topic.42", Some("42")),
        ("some_topic.*", "some_topic.größe", Some("größe")),
        ("some_topic.*", "some_topic.a*", Some("a*")),
        ("some_topic.*", "some_topic.\u{1}", Some("\u{1}")),
        ("some_topic.*", "some_topic", None),
        ("some_topic.*", "some_topic.", None),
        ("some_topic.*", "some_topic.1.2", None),
        ("some_topic.*", "some_topic.*", None),
        ("some_topic.*", "some_topic.>", None),
        ("some_topic.*", "other_topic.1", None),
        ("*", "a", Some("a")),
        ("*", "", None),
        ("orders.*.*", "orders.eu.42", Some("eu.42")),
        ("a.*.b.*", "a.1.b.2", Some("1.2")),
        ("a.*.b.*.*.c.*", "a.1.b.2.3.c.4", Some("1.2.3.4")),
        ("a.*.b.*", "a.1.c.2", None),
        ("orders.*.>", "orders.1.x", Some("1")),
        ("orders.*.>", "orders.1.x.y", Some("1")),
        ("orders.*.>", "orders.1", None),
        ("orders.*.>", "orders.1.", None),
        ("orders.*.>", "orders.1.x..y", None),
        ("orders.*.>", "orders.1.x.>", None),
    ] {
        assert_eq!(pattern(text).key_of(subject).as_deref(), key, "{text} {subject}");
        assert_eq!(pattern(text).matches(subject), key.is_some());
    }
}

#[test]
fn a_key_of_one_piece_is_borrowed() {
    assert!(matches!(
        pattern("orders.*.*").key_of("orders.eu.42"),
        Some(Cow::Borrowed("eu.42"))
    ));
    assert!(matches!(pattern("a.*.b.*").key_of("a.1.b.2"), Some(Cow::Owned(_))));
}

#[test]
fn filters_for_keys() {
    let first = pattern("a.*.b.*").with_key_tokens(&[1]).unwrap();
    assert_eq!(first.filter_for_key("x").as_deref(), Some("a.x.b.*"));
    let tail = pattern("orders.*.>");
    assert_eq!(tail.filter_for_key("7").as_deref(), Some("orders.7.>"));
    for key in ["", "1.2", "*", ">", "a b", "1.", "a\n"] {
        assert_eq!(tail.filter_for_key(key), None, "{key:?}");
    }
}

#[test]
fn keys_of_filters() {
    let first = pattern("a.*.b.*").with_key_tokens(&[1]).unwrap();
    assert_eq!(first.key_of_filter("a.x.b.*").as_deref(), Some("x"));
    for other in ["a.x.b.y", "a.*.b.*", "a.x.b.>", "a.x.b", "a.x.b.*.c"] {
        assert_eq!(first.key_of_filter(other), None, "{other}");
    }
    assert_eq!(pattern("orders.*.>").key_of_filter("orders.7.>").as_deref(), Some("7"));
    assert_eq!(pattern("orders.*.>").key_of_filter("orders.7.x"), None);
}

fn any_token() -> impl proptest::strategy::Strategy<Value = String> {
    "[a-c0-9*>{}$_-]{1,3}|ß".prop_filter("not a wildcard", |token| token != "*" && token != ">")
}

/// A pattern with any key tokens, and tokens for two subjects of it.
pub(in super::super) fn any_pattern() -> impl proptest::strategy::Strategy<Value = (SubjectPattern, String, String)> {
    let place = proptest::option::of("[a-c]{1,2}");
    (proptest::collection::vec(place, 1..6), any::<bool>(), any::<u8>())
        .prop_filter_map("needs a key", |(places, tail, chosen)| {
            let text: Vec<&str> = places.iter().map(|place| place.as_deref().unwrap_or("*")).collect();
            let text = text.join(".") + if tail { ".>" } else { "" };
            let parsed = SubjectPattern::parse(&text).ok()?;
            let numbers: Vec<usize> = (1..=parsed.wildcards()).filter(|n| chosen & (1 << n) != 0).collect();
            parsed.with_key_tokens(&numbers).ok()
        })
        .prop_flat_map(|pattern| {
            let fill = |pattern: SubjectPattern| {
                let places = pattern.tokens.len();
                (
                    proptest::collection::vec(any_token(), places),
                    proptest::collection::vec(any_token(), 1..3),
                )
                    .prop_map(move |(fill, rest)| {
                        let mut tokens: Vec<String> = pattern
                            .tokens
                            .iter()
                            .zip(fill)
                            .map(|(token, any)| match token {
                                Token::Literal(text) => text.clone(),
                                Token::Wildcard(_) => any,
                            })
                            .collect();
                        if pattern.tail {
                            tokens.extend(rest);
                        }
                        tokens.join(".")
                    })
            };
            (Just(pattern.clone()), fill(pattern.clone()), fill(pattern))
        })
}

proptest! {
    #[test]
    fn a_keys_filter_catches_its_subjects_and_no_other_keys((pattern, one, two) in any_pattern()) {
        let key = pattern.key_of(&one).unwrap();
        let other = pattern.key_of(&two).unwrap();
        let filter = pattern.filter_for_key(&key).unwrap();
        prop_assert!(catches(&filter, &one));
        prop_assert_eq!(catches(&filter, &two), key == other);
        prop_assert_eq!(pattern.key_of_filter(&filter), Some(key));
    }

    #[test]
    fn a_key_is_found_exactly_where_nats_finds_a_match((pattern, ..) in any_pattern(), subject in "[ab]{1,2}(\\.[a-c]{1,2}){0,6}") {
        prop_assert_eq!(pattern.matches(&subject), catches(pattern.as_str(), &subject));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*|[a*>.$ ]{0,8}") {
        if let Ok(pattern) = SubjectPattern::parse(&text) {
            prop_assert_eq!(pattern.as_str(), &text);
            let _ = pattern.key_of(&text);
        }
    }
}

/// The planted fault: the oracle of these tests is not content with anything.
#[test]
fn the_oracle_tells_filters_apart() {
    assert!(catches("a.*.>", "a.b.c"));
    assert!(!catches("a.*.>", "a.b"));
    assert!(!catches("a.*", "a.b.c"));
    assert!(!catches("a.x", "a.y"));
}
