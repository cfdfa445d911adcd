//! The version of a libnccl and its three spellings: `2.27.7`, the banner in
//! the library and the integer that `ncclGetVersion` returns.

use std::fmt;
use std::str::FromStr;

/// A released NCCL version, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// 2 in every release that this tool knows.
    pub major: u32,
    /// The release train, such as 27.
    pub minor: u32,
    /// The patch release, such as 7.
    pub patch: u32,
}

impl NcclVersion {
    /// Makes a version from its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads the integer of `ncclGetVersion` (NCCL_VERSION_CODE in nccl.h):
    /// `22707` since 2.9, `2804` before that. `None` when it is not positive.
    pub fn from_code(code: i32) -> Option<Self> {
        let code = u32::try_from(code).ok().filter(|code| *code > 0)?;
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Some(Self::new(code / unit, code % unit / 100, code % 100))
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The text is not `MAJOR.MINOR.PATCH`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an NCCL version; write three numbers, such as 2.27.7")]
pub struct BadVersion(pub String);

impl FromStr for NcclVersion {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion(text.chars().take(64).collect());
        let mut numbers = text.split('.').map(number);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => {
                Ok(Self { major, minor, patch })
            }
            _ => Err(bad()),
        }
    }
}

/// One to five decimal digits; `u32::from_str` alone would also take `+2`.
fn number(text: &str) -> Option<u32> {
    let plain = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_spellings_agree() {
        let version = NcclVersion::new(2, 27, 7);
        assert_eq!("2.27.7".parse(), Ok(version));
        assert_eq!(NcclVersion::from_code(22707), Some(version));
        assert_eq!(version.to_string(), "2.27.7");
        assert_eq!(NcclVersion::from_code(2804), Some(NcclVersion::new(2, 8, 4)));
        assert_eq!(NcclVersion::from_code(-1), None);
    }

    #[test]
    fn versions_order_by_number_not_by_text() {
        assert!(NcclVersion::new(2, 9, 0) < NcclVersion::new(2, 18, 3));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "2", "2.27", "2.27.7.1", "+2.27.7", "2.27.x", "../../x", "2.27.7\n"] {
            assert!(text.parse::<NcclVersion>().is_err(), "{text:?}");
        }
    }
}
