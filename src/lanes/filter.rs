//! The name under which one consumer's messages are counted.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The filter subject of one consumer. A partition has one of them, or several with the `Token` strategy.
///
/// Positions are kept per filter: a floor shared by two would skip the backlog of the one that is found later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Filter(Arc<str>);

impl Filter {
    /// Wraps a filter subject.
    pub fn new(subject: impl Into<Arc<str>>) -> Self {
        Self(subject.into())
    }

    /// The subject.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Filter {
    fn from(subject: String) -> Self {
        Self(subject.into())
    }
}

impl From<&str> for Filter {
    fn from(subject: &str) -> Self {
        Self(subject.into())
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.0.as_ref().to_owned()
    }
}
