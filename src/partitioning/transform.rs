//! The subject transform by which a server puts the partition into the subject, and whether the one that is found is it.

use std::fmt;

use super::subject::Token;
use super::{Partitions, SubjectPattern};

/// What a server does to the subjects of messages: those that match `source` are stored under what `destination` makes of
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SubjectTransform {
    /// The subjects it applies to.
    pub source: String,
    /// The new subject, with the server's mapping functions in it.
    pub destination: String,
}

/// The transform of a stream is not the one the group needs. Nothing was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformMismatch {
    /// There is none.
    #[error("there is no subject transform, needed is {needed}; set it before the first message is stored")]
    Missing {
        /// What the group needs.
        needed: SubjectTransform,
    },
    /// It partitions as needed, but into another number of partitions.
    #[error(
        "the subject transform makes {found} partitions, the group has {needed}; create the group with {found} partitions, or \
         use another stream; how a stream gets the transform {transform} is told in `jetring::docs::protocol` under Repartitioning"
    )]
    OtherPartitions {
        /// The number that the server's transform bears.
        found: u64,
        /// The number of the group.
        needed: Partitions,
        /// The transform that would make it.
        transform: SubjectTransform,
    },
    /// It is another one.
    #[error(
        "the subject transform is {found}, needed is {needed}; use another stream, or change this one if it is empty"
    )]
    Other {
        /// What the server has.
        found: SubjectTransform,
        /// What the group needs.
        needed: SubjectTransform,
    },
}

impl fmt::Display for SubjectTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} -> {:?}", self.source, self.destination)
    }
}

impl SubjectTransform {
    /// The transform that puts the partition of the key right behind the literal tokens that `pattern` begins with.
    ///
    /// ```
    /// use jetring::partitioning::{Partitions, SubjectPattern, SubjectTransform};
    ///
    /// let pattern = SubjectPattern::parse("some_topic.*")?;
    /// let transform = SubjectTransform::partitioning(&pattern, Partitions::DEFAULT);
    /// assert_eq!(transform.source, "some_topic.*");
    /// assert_eq!(transform.destination, "some_topic.{{partition(32,1)}}.{{wildcard(1)}}");
    /// # Ok::<(), jetring::partitioning::PatternError>(())
    /// ```
    pub fn partitioning(pattern: &SubjectPattern, partitions: Partitions) -> Self {
        let numbers: String = pattern.key_tokens().iter().map(|number| format!(",{number}")).collect();
        let function = format!("{{{{partition({partitions}{numbers})}}}}");
        let mut tokens: Vec<String> = pattern
            .tokens()
            .iter()
            .map(|token| match token {
                Token::Literal(text) => text.clone(),
                Token::Wildcard(number) => format!("{{{{wildcard({number})}}}}"),
            })
            .collect();
        tokens.insert(pattern.literal_tokens().count(), function);
        if pattern.has_tail() {
            tokens.push(">".to_owned());
        }
        Self {
            source: pattern.as_str().to_owned(),
            destination: tokens.join("."),
        }
    }

    /// Checks that the transform a server reports does what the partitioning of `pattern` needs.
    ///
    /// Spellings that mean the same to a server count as equal: spaces and capitals as in `{{ Partition(32, 1) }}`, and `$1`
    /// for `{{wildcard(1)}}`.
    ///
    /// # Errors
    /// [`TransformMismatch`], naming what was found and what is needed.
    pub fn check_partitioning(
        found: Option<&SubjectTransform>,
        pattern: &SubjectPattern,
        partitions: Partitions,
    ) -> Result<(), TransformMismatch> {
        let needed = Self::partitioning(pattern, partitions);
        let Some(found) = found else {
            return Err(TransformMismatch::Missing { needed });
        };
        let found_tokens: Vec<Piece> = found.destination.split('.').map(Piece::read).collect();
        let needed_tokens: Vec<Piece> = needed.destination.split('.').map(Piece::read).collect();
        if found.source == needed.source && found_tokens == needed_tokens {
            return Ok(());
        }
        if found.source == needed.source
            && let Some(number) = other_number(&found_tokens, &needed_tokens)
        {
            return Err(TransformMismatch::OtherPartitions {
                found: number,
                needed: partitions,
                transform: needed,
            });
        }
        Err(TransformMismatch::Other {
            found: found.clone(),
            needed,
        })
    }
}

/// The number of partitions found, if that is the only thing that differs.
fn other_number(found: &[Piece], needed: &[Piece]) -> Option<u64> {
    let mut number = None;
    for pair in found.iter().zip(needed) {
        match pair {
            (one, other) if one == other => {}
            (Piece::Function(name, found), Piece::Function(other, needed))
                if name == "partition" && name == other && found.get(1..) == needed.get(1..) =>
            {
                number = found.first().and_then(|text| text.parse().ok());
            }
            _ => return None,
        }
    }
    number.filter(|_| found.len() == needed.len())
}

/// One token of a destination, without what does not matter to a server.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// Name and arguments.
    Function(String, Vec<String>),
}

impl Piece {
    fn read(token: &str) -> Self {
        Self::read_function(token).unwrap_or_else(|| Self::Literal(token.to_owned()))
    }

    fn read_function(token: &str) -> Option<Self> {
        if let Some(number) = token.strip_prefix('$') {
            let number: u64 = number.parse().ok()?;
            return Some(Self::Function("wildcard".to_owned(), vec![number.to_string()]));
        }
        let call = token.strip_prefix("{{")?.strip_suffix("}}")?.trim();
        let (name, arguments) = call.strip_suffix(')')?.split_once('(')?;
        let name = match name.trim() {
            "partition" | "Partition" => "partition",
            "wildcard" | "Wildcard" => "wildcard",
            _ => return None,
        };
        Some(Self::Function(
            name.to_owned(),
            arguments.split(',').map(|text| text.trim().to_owned()).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> SubjectPattern {
        SubjectPattern::parse(text).unwrap()
    }

    fn transform(source: &str, destination: &str) -> SubjectTransform {
        SubjectTransform {
            source: source.to_owned(),
            destination: destination.to_owned(),
        }
    }

    #[test]
    fn the_partition_stands_behind_the_literal_prefix() {
        let two = pattern("a.*.b.*");
        let second = two.clone().with_key_tokens(&[2]).unwrap();
        for (pattern, destination) in [
            (
                pattern("some_topic.*"),
                "some_topic.{{partition(32,1)}}.{{wildcard(1)}}",
            ),
            (two, "a.{{partition(32,1,2)}}.{{wildcard(1)}}.b.{{wildcard(2)}}"),
            (second, "a.{{partition(32,2)}}.{{wildcard(1)}}.b.{{wildcard(2)}}"),
            (pattern("x.y.*.>"), "x.y.{{partition(32,1)}}.{{wildcard(1)}}.>"),
            (pattern("*.orders"), "{{partition(32,1)}}.{{wildcard(1)}}.orders"),
        ] {
            let found = SubjectTransform::partitioning(&pattern, Partitions::DEFAULT);
            assert_eq!(found, transform(pattern.as_str(), destination));
        }
    }

    #[test]
    fn other_spellings_of_the_same_fit() {
        let pattern = pattern("a.*.b.*");
        for destination in [
            "a.{{partition(32,1,2)}}.{{wildcard(1)}}.b.{{wildcard(2)}}",
            "a.{{ Partition( 32, 1 ,2 ) }}.{{Wildcard(1)}}.b.{{ wildcard ( 2 ) }}",
            "a.{{partition(32,1,2)}}.$1.b.$2",
        ] {
            let found = transform("a.*.b.*", destination);
            let checked = SubjectTransform::check_partitioning(Some(&found), &pattern, Partitions::DEFAULT);
            assert_eq!(checked, Ok(()), "{destination}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let pattern = pattern("a.*.*");
        let check = |found: Option<&SubjectTransform>| {
            SubjectTransform::check_partitioning(found, &pattern, Partitions::DEFAULT).unwrap_err()
        };
        let needed = SubjectTransform::partitioning(&pattern, Partitions::DEFAULT);
        assert_eq!(check(None), TransformMismatch::Missing { needed: needed.clone() });
        let other_number = transform("a.*.*", "a.{{partition(16,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}");
        let wanted = TransformMismatch::OtherPartitions {
            found: 16,
            needed: Partitions::DEFAULT,
            transform: needed.clone(),
        };
        assert_eq!(check(Some(&other_number)), wanted);
        for (source, destination) in [
            ("a.>", "a.{{partition(32,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}"),
            ("a.*.*", "a.{{partition(32,2,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"),
            ("a.*.*", "a.{{partition(32)}}.{{wildcard(1)}}.{{wildcard(2)}}"),
            ("a.*.*", "a.{{partition(16,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"),
            ("a.*.*", "a.{{partition(32,1,2)}}.{{wildcard(2)}}.{{wildcard(1)}}"),
            ("a.*.*", "a.{{partition(16,1,2)}}.{{wildcard(1)}}"),
            ("a.*.*", "b.{{partition(32,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}"),
            ("a.*.*", ""),
        ] {
            let found = transform(source, destination);
            let wanted = TransformMismatch::Other {
                found: found.clone(),
                needed: needed.clone(),
            };
            assert_eq!(check(Some(&found)), wanted, "{source} {destination}");
        }
    }

    #[test]
    fn the_message_holds_both() {
        let found = transform("b.*", "b.$1");
        let error =
            SubjectTransform::check_partitioning(Some(&found), &pattern("a.*"), Partitions::DEFAULT).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("b.$1") && message.contains("a.{{partition(32,1)}}.{{wildcard(1)}}"),
            "{message}"
        );
    }
}
