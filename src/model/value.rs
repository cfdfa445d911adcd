//! What one view shows of one variable, and how that is written in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Why a view of a process could not be read, as one lower-case sentence for a
/// person, without a full stop: `"process_vm_readv: permission denied"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Unreadable {
    /// Makes the reason from anything that prints.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// The value of a variable in one view: exec block, live environ, or what
/// NCCL's own `getenv` was answered.
///
/// JSON: a string, `null` for absent, `{"bytes": base64}` for a value that is
/// not UTF-8, `{"unreadable": why}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The raw bytes after `NAME=`.
    Value(Vec<u8>),
    /// The view was read and has no such variable.
    Absent,
    /// The view could not be read, so nothing is known.
    Unreadable(Unreadable),
}

impl Seen {
    /// The value, when there is one.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Value(bytes) => Some(bytes),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// True when the view was read, whatever it holds.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unreadable(_))
    }
}

/// What NCCL parsed and cached for one variable (view N).
///
/// JSON: `{"value": n}`, `"not_read"`, `"no_such_parameter"`, `"not_cached"`
/// or `{"unreadable": why}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Latched {
    /// The cached integer. A value equal to the default does not prove that
    /// the variable was unset.
    Value(i64),
    /// The parameter exists and its cache still holds "never read".
    NotRead,
    /// This libnccl knows no such name.
    NoSuchParameter,
    /// Known to this libnccl, but read as a string each time: no cache exists.
    NotCached,
    /// The cache could not be read, or no libnccl is loaded.
    Unreadable(Unreadable),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Tagged {
    Bytes(String),
    Value(i64),
    Unreadable(String),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Text(String),
    Tagged(Tagged),
}

impl Serialize for Seen {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => to.serialize_none(),
            Self::Unreadable(why) => Tagged::Unreadable(why.0.clone()).serialize(to),
            Self::Value(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => to.serialize_str(text),
                Err(_) => Tagged::Bytes(STANDARD.encode(bytes)).serialize(to),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Option::<Wire>::deserialize(from)? {
            None => Ok(Self::Absent),
            Some(Wire::Text(text)) => Ok(Self::Value(text.into_bytes())),
            Some(Wire::Tagged(Tagged::Bytes(text))) => {
                STANDARD.decode(text).map(Self::Value).map_err(D::Error::custom)
            }
            Some(Wire::Tagged(Tagged::Unreadable(why))) => Ok(Self::Unreadable(Unreadable(why))),
            Some(Wire::Tagged(Tagged::Value(_))) => {
                Err(D::Error::custom("an environment value is never an integer"))
            }
        }
    }
}

impl Serialize for Latched {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(n) => Tagged::Value(*n).serialize(to),
            Self::NotRead => to.serialize_str("not_read"),
            Self::NoSuchParameter => to.serialize_str("no_such_parameter"),
            Self::NotCached => to.serialize_str("not_cached"),
            Self::Unreadable(why) => Tagged::Unreadable(why.0.clone()).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Latched {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Wire::deserialize(from)? {
            Wire::Tagged(Tagged::Value(n)) => Ok(Self::Value(n)),
            Wire::Tagged(Tagged::Unreadable(why)) => Ok(Self::Unreadable(Unreadable(why))),
            Wire::Text(word) if word == "not_read" => Ok(Self::NotRead),
            Wire::Text(word) if word == "no_such_parameter" => Ok(Self::NoSuchParameter),
            Wire::Text(word) if word == "not_cached" => Ok(Self::NotCached),
            Wire::Text(_) | Wire::Tagged(Tagged::Bytes(_)) => {
                Err(D::Error::custom("not a latched value"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json<T: Serialize>(value: &T) -> String {
        serde_json::to_string(value).expect("plain data always serialises")
    }

    #[test]
    fn seen_has_one_json_form_for_each_state() {
        assert_eq!(json(&Seen::Value(b"Ring".to_vec())), r#""Ring""#);
        assert_eq!(json(&Seen::Absent), "null");
        assert_eq!(json(&Seen::Value(vec![0xff])), r#"{"bytes":"/w=="}"#);
        assert_eq!(
            json(&Seen::Unreadable(Unreadable::new("zombie"))),
            r#"{"unreadable":"zombie"}"#
        );
    }

    #[test]
    fn latched_has_one_json_form_for_each_state() {
        assert_eq!(json(&Latched::Value(-2)), r#"{"value":-2}"#);
        assert_eq!(json(&Latched::NotRead), r#""not_read""#);
        assert_eq!(json(&Latched::NoSuchParameter), r#""no_such_parameter""#);
        assert_eq!(json(&Latched::NotCached), r#""not_cached""#);
    }

    proptest! {
        #[test]
        fn seen_survives_json(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let seen = Seen::Value(bytes);
            let back: Seen = serde_json::from_str(&json(&seen)).expect("own output");
            prop_assert_eq!(back, seen);
        }

        #[test]
        fn latched_survives_json(n in any::<i64>()) {
            let back: Latched = serde_json::from_str(&json(&Latched::Value(n))).expect("own output");
            prop_assert_eq!(back, Latched::Value(n));
        }
    }
}
