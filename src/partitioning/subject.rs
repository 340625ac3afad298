//! The pattern of a group's subjects, and the key in each of them.
//!
//! A key is one or more of the tokens that a `*` stands for. It is written as those tokens joined by dots: their number is
//! fixed and a token holds no dot, so no two keys are written alike.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::PatternError;

/// The subjects of a group, such as `some_topic.*`, and which of their tokens are the key.
///
/// `*` stands for one token, a `>` at the end for one or more. All `*` are the key unless
/// [`with_key_tokens`](SubjectPattern::with_key_tokens) chooses some of them.
///
/// ```
/// use jetring::partitioning::SubjectPattern;
///
/// let pattern = SubjectPattern::parse("orders.*.*")?;
/// assert_eq!(pattern.key_of("orders.eu.42").as_deref(), Some("eu.42"));
///
/// let by_customer = pattern.with_key_tokens(&[2])?;
/// assert_eq!(by_customer.key_of("orders.eu.42").as_deref(), Some("42"));
/// assert_eq!(by_customer.filter_for_key("42").as_deref(), Some("orders.*.42"));
/// # Ok::<(), jetring::partitioning::PatternError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SubjectPattern {
    text: String,
    tokens: Vec<Token>,
    /// Whether a `>` follows the tokens.
    tail: bool,
    /// Numbers of wildcards from 1, ascending, not empty.
    key_tokens: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Literal(String),
    /// The number of the wildcard, counted from 1.
    Wildcard(usize),
}

/// How the places that are not the key are matched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    /// A subject of a message: a wildcard stands for a token.
    Subject,
    /// A filter for one key: a wildcard stands for itself.
    Filter,
}

impl SubjectPattern {
    /// Checks and reads a pattern. All of its `*` are the key.
    ///
    /// # Errors
    /// [`PatternError`] when NATS could not use it as a filter, when it holds no key, or when it is reserved.
    pub fn parse(pattern: &str) -> Result<Self, PatternError> {
        let text = pattern.to_owned();
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if let Some(found) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(PatternError::BadCharacter { pattern: text, found });
        }
        if text.starts_with('$') {
            return Err(PatternError::Reserved { pattern: text });
        }
        let (mut tokens, mut tail, mut wildcards) = (Vec::new(), false, 0);
        for (position, token) in (1..).zip(pattern.split('.')) {
            match token {
                "" => {
                    return Err(PatternError::EmptyToken {
                        pattern: text,
                        position,
                    });
                }
                _ if tail => return Err(PatternError::TailNotLast { pattern: text }),
                ">" => tail = true,
                "*" => {
                    wildcards += 1;
                    tokens.push(Token::Wildcard(wildcards));
                }
                _ if token.contains(['*', '>']) => {
                    return Err(PatternError::WildcardInsideToken {
                        pattern: text,
                        token: token.to_owned(),
                    });
                }
                _ if is_mapping_function(token) => {
                    return Err(PatternError::MappingFunction {
                        pattern: text,
                        token: token.to_owned(),
                    });
                }
                _ => tokens.push(Token::Literal(token.to_owned())),
            }
        }
        if wildcards == 0 {
            return Err(PatternError::NoWildcard { pattern: text });
        }
        Ok(Self {
            text,
            tokens,
            tail,
            key_tokens: (1..=wildcards).collect(),
        })
    }

    /// Chooses which `*` are the key: their numbers, counted from 1, in ascending order.
    ///
    /// # Errors
    /// [`PatternError`] when none is chosen, one does not exist, or one is out of order or named twice.
    pub fn with_key_tokens(mut self, numbers: &[usize]) -> Result<Self, PatternError> {
        let wildcards = self.wildcards();
        if numbers.is_empty() {
            return Err(PatternError::NoKeyTokens {
                pattern: self.text,
                wildcards,
            });
        }
        if let Some(&found) = numbers.iter().find(|&&number| number == 0 || number > wildcards) {
            return Err(PatternError::KeyTokenOutOfRange {
                pattern: self.text,
                found,
                wildcards,
            });
        }
        if let Some(pair) = numbers.windows(2).find(|pair| pair[1] <= pair[0]) {
            let (before, found) = (pair[0], pair[1]);
            return Err(PatternError::KeyTokensNotAscending {
                pattern: self.text,
                before,
                found,
            });
        }
        self.key_tokens = numbers.to_vec();
        Ok(self)
    }

    /// The pattern as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The numbers of the `*` that are the key, counted from 1, ascending.
    pub fn key_tokens(&self) -> &[usize] {
        &self.key_tokens
    }

    /// Whether a subject of a message fits the pattern.
    pub fn matches(&self, subject: &str) -> bool {
        self.key_of(subject).is_some()
    }

    /// The key in a subject of a message. `None` if the subject does not fit the pattern.
    ///
    /// A subject that itself holds a `*` or `>` as a token never fits: a filter for it would catch other keys too.
    pub fn key_of<'a>(&self, subject: &'a str) -> Option<Cow<'a, str>> {
        self.key_in(subject, Match::Subject)
    }

    /// The filter that catches exactly the subjects with this key. `None` if no subject can have it: it has another number
    /// of tokens than the pattern's keys, or a token that is empty, a wildcard, or holds white space.
    pub fn filter_for_key(&self, key: &str) -> Option<String> {
        let mut parts = key.split('.');
        let mut filter = String::with_capacity(self.text.len() + key.len());
        for token in &self.tokens {
            if !filter.is_empty() {
                filter.push('.');
            }
            match token {
                Token::Literal(text) => filter.push_str(text),
                Token::Wildcard(number) if self.is_key(*number) => {
                    filter.push_str(parts.next().filter(|part| is_plain(part))?);
                }
                Token::Wildcard(_) => filter.push('*'),
            }
        }
        if self.tail {
            filter.push_str(".>");
        }
        parts.next().is_none().then_some(filter)
    }

    /// The key of a filter made by [`filter_for_key`](SubjectPattern::filter_for_key). `None` for any other filter.
    pub fn key_of_filter<'a>(&self, filter: &'a str) -> Option<Cow<'a, str>> {
        self.key_in(filter, Match::Filter)
    }

    /// The literal tokens that the pattern begins with.
    pub(super) fn literal_tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map_while(|token| match token {
            Token::Literal(text) => Some(text.as_str()),
            Token::Wildcard(_) => None,
        })
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn has_tail(&self) -> bool {
        self.tail
    }

    fn wildcards(&self) -> usize {
        self.tokens
            .iter()
            .filter(|token| matches!(token, Token::Wildcard(_)))
            .count()
    }

    fn is_key(&self, wildcard: usize) -> bool {
        self.key_tokens.binary_search(&wildcard).is_ok()
    }

    fn key_in<'a>(&self, subject: &'a str, mode: Match) -> Option<Cow<'a, str>> {
        let mut key = KeyText::new(subject);
        let mut at = 0;
        let mut parts = subject.split('.');
        for token in &self.tokens {
            let part = parts.next()?;
            let fits = match token {
                Token::Literal(text) => part == text,
                Token::Wildcard(number) if self.is_key(*number) => {
                    key.push(at, part);
                    is_plain(part)
                }
                Token::Wildcard(_) if mode == Match::Filter => part == "*",
                Token::Wildcard(_) => is_plain(part),
            };
            if !fits {
                return None;
            }
            at += part.len() + 1;
        }
        let rest = subject.get(at..);
        let end_fits = match (self.tail, mode) {
            (false, _) => rest.is_none(),
            (true, Match::Filter) => rest == Some(">"),
            (true, Match::Subject) => rest.is_some_and(|rest| rest.split('.').all(is_plain)),
        };
        end_fits.then(|| key.finish())
    }
}

/// Collects key tokens, and copies them only if they do not stand side by side.
struct KeyText<'a> {
    subject: &'a str,
    /// The bytes of `subject` that are the key, while that is one piece.
    range: Option<std::ops::Range<usize>>,
    copied: String,
}

impl<'a> KeyText<'a> {
    fn new(subject: &'a str) -> Self {
        Self {
            subject,
            range: None,
            copied: String::new(),
        }
    }

    fn push(&mut self, at: usize, token: &str) {
        let end = at + token.len();
        match &mut self.range {
            _ if !self.copied.is_empty() => self.copied.extend([".", token]),
            None => self.range = Some(at..end),
            Some(range) if range.end + 1 == at => range.end = end,
            Some(range) => self.copied.extend([&self.subject[range.clone()], ".", token]),
        }
    }

    fn finish(self) -> Cow<'a, str> {
        match self.range {
            Some(range) if self.copied.is_empty() => Cow::Borrowed(&self.subject[range]),
            _ => Cow::Owned(self.copied),
        }
    }
}

/// Whether a token can stand in the subject of a message without being more than itself in a filter.
///
/// Only what NATS cannot carry is refused: a stored message whose key were refused would be handled by nobody.
fn is_plain(token: &str) -> bool {
    !matches!(token, "" | "*" | ">") && !token.contains([' ', '\t', '\r', '\n', '\u{c}'])
}

/// Whether a server would take a literal token for a function in the destination of a subject transform: `{{...}}`, or in
/// the old style `$1`.
fn is_mapping_function(token: &str) -> bool {
    let old_style = token
        .strip_prefix('$')
        .is_some_and(|number| number.parse::<i64>().is_ok());
    old_style || token.starts_with("{{")
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SubjectPattern {
    type Err = PatternError;
    fn from_str(pattern: &str) -> Result<Self, PatternError> {
        Self::parse(pattern)
    }
}

#[cfg(test)]
#[path = "subject_tests.rs"]
pub(super) mod tests;
