//! The names and numbers of the protocol, one type each, so that none can be taken for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest encoded group name or member id, in bytes. It keeps every consumer name below the server's limit of 255.
pub const MAX_NAME_LEN: usize = 128;

/// Why a group name or a member id was refused. Nothing was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no characters.
    #[error("{what} is empty; give it at least one character")]
    Empty {
        /// Which name: `"group name"` or `"member id"`.
        what: &'static str,
    },
    /// The name, once encoded for NATS, is longer than [`MAX_NAME_LEN`].
    #[error(
        "{what} {name:?} is {found} bytes long once encoded for NATS, at most {MAX_NAME_LEN} are possible; shorten it \
         (a character other than A-Z, a-z, 0-9 and '-' takes 3 bytes per byte)"
    )]
    TooLong {
        /// Which name.
        what: &'static str,
        /// The name as given.
        name: String,
        /// Its length once encoded, in bytes.
        found: usize,
    },
}

/// Encodes `raw` into characters that are safe in a KV key and in a consumer name: `A-Z a-z 0-9 -` stay, every other byte
/// becomes `=` and two upper-case hexadecimal digits. Distinct inputs have distinct encodings.
///
/// ```
/// assert_eq!(jetring::ids::encode("pod-7"), "pod-7");
/// assert_eq!(jetring::ids::encode("a.b_c"), "a=2Eb=5Fc");
/// ```
pub fn encode(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for byte in raw.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("={byte:02X}"));
        }
    }
    out
}

/// Reverses [`encode`]. `None` for anything that `encode` cannot have produced.
///
/// ```
/// assert_eq!(jetring::ids::decode("a=2Eb").as_deref(), Some("a.b"));
/// assert_eq!(jetring::ids::decode("a=2e"), None);
/// ```
pub fn decode(encoded: &str) -> Option<String> {
    let mut out = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'=' => {
                let digits = [bytes.next()?, bytes.next()?];
                let text = std::str::from_utf8(&digits).ok()?;
                out.push(u8::from_str_radix(text, 16).ok()?);
            }
            other => out.push(other),
        }
    }
    let raw = String::from_utf8(out).ok()?;
    // One encoding per name: what would encode differently is not ours.
    (encode(&raw) == encoded).then_some(raw)
}

fn check(what: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    let found = encode(name).len();
    if found > MAX_NAME_LEN {
        return Err(NameError::TooLong {
            what,
            name: name.to_owned(),
            found,
        });
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps a name.
            ///
            /// # Errors
            /// [`NameError`] when it is empty or too long once encoded.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let name = name.into();
                check($what, &name)?;
                Ok(Self(name))
            }

            /// The name as given.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The name as it stands in KV keys and consumer names.
            pub fn encoded(&self) -> String {
                encode(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(s: &str) -> Result<Self, NameError> {
                Self::new(s)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(s: String) -> Result<Self, NameError> {
                Self::new(s)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;
            fn try_from(s: &str) -> Result<Self, NameError> {
                Self::new(s)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

name_type!(
    /// The name of a group: the members that share the work of one stream. Any text that fits, see [`MAX_NAME_LEN`].
    GroupName,
    "group name"
);

name_type!(
    /// The stable name of one running instance, for example a pod name. Any text that fits, see [`MAX_NAME_LEN`].
    MemberId,
    "member id"
);

/// One life of a member: new at every start and at every rejoin after fencing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub String);

impl Incarnation {
    /// The `count`th life in the process whose lives bear `seed`.
    pub(crate) fn new(seed: &str, count: u32) -> Self {
        Self(format!("{seed}-{count}"))
    }

    fn parts(&self) -> Option<(&str, u32)> {
        let (seed, count) = self.0.rsplit_once('-')?;
        Some((seed, count.parse().ok()?))
    }

    /// Whether both are lives of one process.
    ///
    /// ```
    /// use jetring::ids::Incarnation;
    ///
    /// let [first, second, other] = ["x7-1", "x7-2", "y8-1"].map(|text| Incarnation(text.to_owned()));
    /// assert!(first.is_same_process(&second));
    /// assert!(!first.is_same_process(&other));
    /// ```
    pub fn is_same_process(&self, other: &Self) -> bool {
        match (self.parts(), other.parts()) {
            (Some((seed, _)), Some((other, _))) => seed == other,
            _ => false,
        }
    }

    /// Whether this is a later life of the process that lived as `other`: that life has then ended without its process.
    pub fn outlives(&self, other: &Self) -> bool {
        let count = |incarnation: &Self| incarnation.parts().map(|(_, count)| count);
        self.is_same_process(other) && count(self) > count(other)
    }

    /// Whether the process had a life before this one.
    pub(crate) fn is_rejoin(&self) -> bool {
        self.parts().is_some_and(|(_, count)| count > 1)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type!(
    /// The unit of ownership, `0..P`: every key hashes to exactly one partition.
    Partition(u16)
);
number_type!(
    /// The version of the assignment. It grows by one with every plan that changes something.
    Generation(u64)
);
number_type!(
    /// A KV revision: the stream sequence of the write, unique in the bucket and growing.
    Revision(u64)
);
number_type!(
    /// The number of a tenure. It only grows for a partition, so that a database can refuse a write that bears a lower one.
    FencingToken(u64)
);

/// With group, partition and filter it names one JetStream consumer, and is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// The tenure.
    pub token: FencingToken,
    /// How often the filter's consumer was re-opened in this tenure.
    pub reopen: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.token, self.reopen)
    }
}
