//! The version of a nats-server, as far as tests need it: three numbers that compare.

use std::fmt;
use std::str::FromStr;

use super::ServerError;

/// The oldest nats-server the crate supports.
pub const OLDEST_SUPPORTED: ServerVersion = ServerVersion::new(2, 10, 0);

/// The version of a nats-server. What follows the three numbers (`-RC.1`, `-beta.2`) is ignored.
///
/// ```
/// use jetring::testing::ServerVersion;
///
/// let version: ServerVersion = "2.12.0-RC.1".parse()?;
/// assert!(version >= ServerVersion::new(2, 11, 4));
/// # Ok::<(), jetring::testing::ServerError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ServerVersion {
    /// The first number.
    pub major: u64,
    /// The second number.
    pub minor: u64,
    /// The third number.
    pub patch: u64,
}

impl ServerVersion {
    /// A version from its numbers.
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self { major, minor, patch }
    }

    /// Finds the version in what `nats-server --version` prints, `nats-server: v2.15.1`.
    pub(super) fn from_output(output: &str) -> Option<Self> {
        let line = output.lines().find(|line| line.contains("nats-server"))?;
        let word = line.split_whitespace().next_back()?;
        word.trim_start_matches('v').parse().ok()
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for ServerVersion {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let bad = || ServerError::BadVersion { given: text.to_owned() };
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut parts = numbers.split('.').map(|part| part.parse::<u64>().map_err(|_| bad()));
        let mut next = || parts.next().ok_or_else(bad)?;
        let version = Self::new(next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_servers_print() {
        let read = |text| ServerVersion::from_output(text);
        assert_eq!(read("nats-server: v2.15.1\n"), Some(ServerVersion::new(2, 15, 1)));
        assert_eq!(read("nats-server: v2.12.0-RC.1"), Some(ServerVersion::new(2, 12, 0)));
        assert_eq!(read("a notice\nnats-server: v2.9.0"), Some(ServerVersion::new(2, 9, 0)));
        assert_eq!(read("bash 5.2.15"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn refuses_what_is_no_version() {
        for text in ["", "2", "2.10", "2.10.x", "v2.10.1", "2.10.1.1", "-"] {
            assert!(text.parse::<ServerVersion>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn compares_by_number() {
        assert!(ServerVersion::new(2, 9, 25) < OLDEST_SUPPORTED);
        assert!(ServerVersion::new(2, 10, 0) >= OLDEST_SUPPORTED);
    }
}
