//! What can be wrong with a subject pattern, and what to do about it.

/// Why a subject pattern or a choice of key tokens was refused. Nothing was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern has no characters.
    #[error(
        "the subject pattern is empty; name the subjects with a '*' where the key stands, such as \"some_topic.*\""
    )]
    Empty,
    /// A token has no characters: the pattern begins or ends with a dot, or has two in a row.
    #[error("subject pattern {pattern:?} has nothing in token {position}; remove the dot that is too much")]
    EmptyToken {
        /// The pattern as given.
        pattern: String,
        /// Which token, counted from 1.
        position: usize,
    },
    /// White space or a control character, which NATS cannot carry in a subject, or which nobody means.
    #[error(
        "subject pattern {pattern:?} has the character {found:?}; subjects hold no white space and no control characters"
    )]
    BadCharacter {
        /// The pattern as given.
        pattern: String,
        /// The first such character.
        found: char,
    },
    /// `*` or `>` beside other characters. NATS would take it literally.
    #[error(
        "subject pattern {pattern:?} has a wildcard inside token {token:?}; a '*' or '>' must be a token by itself, part of a \
         token cannot be matched"
    )]
    WildcardInsideToken {
        /// The pattern as given.
        pattern: String,
        /// The token.
        token: String,
    },
    /// `>` is followed by more tokens.
    #[error("subject pattern {pattern:?} goes on behind '>', which stands for all the rest; end there or use '*'")]
    TailNotLast {
        /// The pattern as given.
        pattern: String,
    },
    /// There is no `*`, so nothing tells one key from another.
    #[error("subject pattern {pattern:?} has no '*', so there is no key; put a '*' where the key stands")]
    NoWildcard {
        /// The pattern as given.
        pattern: String,
    },
    /// Subjects that begin with `$` are the server's own.
    #[error("subject pattern {pattern:?} begins with '$', which NATS keeps for itself; use another subject")]
    Reserved {
        /// The pattern as given.
        pattern: String,
    },
    /// A literal token that a server would read as a mapping function in a subject transform.
    #[error(
        "subject pattern {pattern:?} has the token {token:?}, which a server reads as a mapping function in a subject \
         transform; use another token"
    )]
    MappingFunction {
        /// The pattern as given.
        pattern: String,
        /// The token.
        token: String,
    },
    /// The choice of key tokens is empty.
    #[error(
        "no key tokens were chosen for subject pattern {pattern:?}; choose from its '*', counted from 1 to {wildcards}"
    )]
    NoKeyTokens {
        /// The pattern as given.
        pattern: String,
        /// How many `*` it has.
        wildcards: usize,
    },
    /// A chosen key token is not one of the pattern's `*`.
    #[error(
        "key token {found} of subject pattern {pattern:?} does not exist; its '*' are counted from 1 to {wildcards}"
    )]
    KeyTokenOutOfRange {
        /// The pattern as given.
        pattern: String,
        /// The number as given.
        found: usize,
        /// How many `*` it has.
        wildcards: usize,
    },
    /// Key tokens are not in ascending order, or one is named twice. One key must have one spelling.
    #[error(
        "key token {found} of subject pattern {pattern:?} comes behind {before}; name each once and in ascending order"
    )]
    KeyTokensNotAscending {
        /// The pattern as given.
        pattern: String,
        /// The number before.
        before: usize,
        /// The number that is not higher.
        found: usize,
    },
}
