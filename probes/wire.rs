//! The one format in which a driver and its probes speak: an ordered list of
//! `key=value` fields, each ended by a NUL byte. Values are raw bytes without
//! NUL (which an environment cannot hold either); keys may repeat.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An ordered list of fields. Used for a launch's specification file, for the
/// messages on the socket, and inside the text frames of a remote probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    /// Appends a field. A NUL in the value would split it in two, so the value
    /// ends there.
    pub fn push(&mut self, key: &str, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
        self.0.push((key.to_owned(), value[..end].to_vec()));
        self
    }

    /// All fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_slice()))
    }

    /// The first value of this key.
    pub fn first(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_slice())
    }

    /// The first value of this key when it is UTF-8.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.first(key).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// The first value of this key as a path, whatever its bytes.
    pub fn path(&self, key: &str) -> Option<&Path> {
        self.first(key).map(|bytes| Path::new(OsStr::from_bytes(bytes)))
    }

    /// All values of this key, in order.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_slice())
    }

    /// All `NAME=VALUE` assignments stored under this key, in order; entries
    /// without `=` are passed over.
    pub fn assignments<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.all(key).filter_map(split_assignment)
    }

    /// Appends `NAME=VALUE` under a key.
    pub fn push_assignment(&mut self, key: &str, name: &[u8], value: &[u8]) -> &mut Self {
        let mut both = name.to_vec();
        both.push(b'=');
        both.extend_from_slice(value);
        self.push(key, both)
    }

    /// Appends all fields of another list.
    pub fn extend(&mut self, other: &Self) -> &mut Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// The bytes that `decode` reads back.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in &self.0 {
            out.extend_from_slice(key.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value);
            out.push(0);
        }
        out
    }

    /// Reads fields from untrusted bytes: what has no `=` or no UTF-8 key is
    /// passed over.
    pub fn decode(bytes: &[u8]) -> Self {
        let fields = bytes.split(|&b| b == 0).filter_map(|field| {
            let (key, value) = split_assignment(field)?;
            Some((String::from_utf8(key.to_vec()).ok()?, value.to_vec()))
        });
        Self(fields.collect())
    }
}

/// Splits at the first `=`; `None` without one or with an empty name.
pub fn split_assignment(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = entry.iter().position(|&b| b == b'=')?;
    (at > 0).then(|| (&entry[..at], &entry[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_keep_equal_signs_and_order() {
        let mut fields = Fields::default();
        fields.push("set", "A==x").push("set", "B=").push("name", "A");
        let back = Fields::decode(&fields.encode());
        assert_eq!(back, fields);
        let sets: Vec<_> = back.assignments("set").collect();
        assert_eq!(sets, [(&b"A"[..], &b"=x"[..]), (&b"B"[..], &b""[..])]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let fields = Fields::decode(&bytes);
            prop_assert_eq!(Fields::decode(&fields.encode()), fields);
        }
    }
}
