//! An environment as the raw list that it is, and view E: the block that the
//! last exec delivered. The live environment (view L) is in `live`; comparing
//! the two is not done here.

use super::{reason, stat};
use crate::model::Unreadable;
use std::fs::File;
use std::io::{self, Read};

/// The most bytes that one environment may have. The kernel accepts at most
/// 6 MiB at exec; `setenv` can make more.
pub const MAX_BYTES: usize = 32 << 20;

/// The most entries that one environment may have.
pub const MAX_ENTRIES: usize = 1 << 18;

/// An ordered list of raw entries: keeps order, duplicates, and entries
/// without `=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvBlock {
    entries: Vec<Vec<u8>>,
    overwritten: bool,
}

impl EnvBlock {
    /// A block from entries in the order of an `environ` array. They are taken
    /// as they are, also empty ones.
    pub fn from_entries(entries: Vec<Vec<u8>>) -> Self {
        let overwritten = entries.iter().any(|entry| !is_assignment(entry));
        Self { entries, overwritten }
    }

    /// A block from the NUL-separated bytes of `/proc/PID/environ`. Empty
    /// pieces are dropped: they are what a process title leaves behind, and
    /// only [`EnvBlock::looks_overwritten`] remembers them.
    ///
    /// # Errors
    /// When the bytes exceed [`MAX_BYTES`] or [`MAX_ENTRIES`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.len() > MAX_BYTES {
            return Err(too_large());
        }
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut block = Self::default();
        for piece in bytes.strip_suffix(b"\0").unwrap_or(bytes).split(|byte| *byte == 0) {
            block.overwritten |= !is_assignment(piece);
            if !piece.is_empty() {
                block.entries.push(piece.to_vec());
            }
            if block.entries.len() > MAX_ENTRIES {
                return Err(too_large());
            }
        }
        Ok(block)
    }

    /// The entries in order, as they are.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.entries.iter().map(Vec::as_slice)
    }

    /// Names and values in order; entries without `=` are left out.
    pub fn variables(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries().filter_map(split)
    }

    /// How many entries there are, odd ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value that `getenv` would return: the first one wins.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let name = name.as_ref();
        self.entries().find_map(|entry| value_of(entry, name))
    }

    /// How many entries have this name: more than 1 means that programs may
    /// disagree on its value (`getenv` takes the first, shells the last).
    pub fn duplicates(&self, name: impl AsRef<[u8]>) -> usize {
        let name = name.as_ref();
        self.entries().filter_map(|entry| value_of(entry, name)).count()
    }

    /// True when this cannot be all that exec delivered: a process title was
    /// written over it, which shows as NULs without an entry before them or as
    /// entries that are no assignment. A name missing from such a block proves nothing.
    pub fn looks_overwritten(&self) -> bool {
        self.overwritten
    }
}

/// The value, when the entry sets this name. No entry sets the empty name.
fn value_of<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() { None } else { entry.strip_prefix(name)?.strip_prefix(b"=") }
}

/// Splits `NAME=VALUE`. A name may start with `=` (as `getenv` sees it, the
/// first byte never ends the name), so that `=x=1` is the variable `=x`.
fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b'=', entry.get(1..)?)? + 1;
    Some((&entry[..at], &entry[at + 1..]))
}

fn is_assignment(entry: &[u8]) -> bool {
    split(entry).is_some()
}

pub(super) fn too_large() -> Unreadable {
    Unreadable::new(format!(
        "the environment is larger than {} MiB or {MAX_ENTRIES} entries",
        MAX_BYTES >> 20
    ))
}

/// View E: the environment that the last exec of this process delivered, from
/// `/proc/PID/environ`. A child that was forked and did not exec shows the
/// block of its ancestor.
///
/// # Errors
/// Why it cannot be read: no such process, another user's, a zombie, a kernel
/// thread.
pub fn exec_block(pid: i32) -> Result<EnvBlock, Unreadable> {
    match exec_block_of_thread(pid) {
        Ok(block) if !block.is_empty() => Ok(block),
        result => match reason::without_memory(pid) {
            None => result,
            Some(why) => stat::living_thread(pid).map_or(Err(why), exec_block_of_thread),
        },
    }
}

fn exec_block_of_thread(tid: i32) -> Result<EnvBlock, Unreadable> {
    let path = format!("/proc/{tid}/environ");
    let bytes = read_capped(&path).map_err(|error| reason::cannot_read(tid, &path, &error))?;
    EnvBlock::parse(&bytes)
}

fn read_capped(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(8192);
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(text: &str) -> EnvBlock {
        EnvBlock::parse(text.as_bytes()).expect("small")
    }

    #[test]
    fn the_first_of_two_wins_and_both_are_counted() {
        let env = block("NCCL_ALGO=Ring\0X=1\0NCCL_ALGO=Tree\0");
        assert_eq!(env.get("NCCL_ALGO"), Some(&b"Ring"[..]));
        assert_eq!(env.duplicates("NCCL_ALGO"), 2);
        assert_eq!(env.get("NCCL"), None);
        assert_eq!(env.get("X"), Some(&b"1"[..]));
        assert!(!env.looks_overwritten());
    }

    #[test]
    fn process_titles_are_noticed() {
        assert!(block("\0\0\0HOME=/root\0").looks_overwritten());
        assert!(block("worker 3 of 8\0HOME=/root\0").looks_overwritten());
        assert!(block("a=title\0\0\0\0HOME=/root\0").looks_overwritten());
        assert!(!block("").looks_overwritten());
        // The block may end inside an entry: setproctitle keeps the area's size.
        assert_eq!(block("A=1\0B=2").get("B"), Some(&b"2"[..]));
    }

    #[test]
    fn odd_entries_are_kept() {
        let env = EnvBlock::from_entries(vec![b"".to_vec(), b"=x=1".to_vec(), b"bare".to_vec()]);
        assert_eq!(env.len(), 3);
        assert_eq!(env.get("=x"), Some(&b"1"[..]));
        assert!(env.looks_overwritten());
    }

    #[test]
    fn too_large_is_refused() {
        EnvBlock::parse(&vec![b'x'; MAX_BYTES + 1]).expect_err("one byte over the cap");
        EnvBlock::parse(&b"x\0".repeat(MAX_ENTRIES + 1)).expect_err("one entry over the cap");
    }

    #[test]
    fn missing_processes_are_named() {
        let why = exec_block(i32::MAX).expect_err("larger than any pid_max").0;
        assert_eq!(why, "process 2147483647: no such process");
    }

    proptest! {
        #[test]
        fn parse_keeps_entries_in_order(
            entries in proptest::collection::vec(proptest::collection::vec(1u8.., 1..20), 0..20)
        ) {
            let mut bytes = Vec::new();
            for entry in &entries {
                bytes.extend_from_slice(entry);
                bytes.push(0);
            }
            let parsed = EnvBlock::parse(&bytes).expect("small");
            prop_assert_eq!(&parsed.entries, &entries);
            prop_assert_eq!(parsed, EnvBlock::from_entries(entries));
        }

        #[test]
        fn parse_never_invents_bytes(bytes in proptest::collection::vec(0u8..4, 0..200)) {
            let parsed = EnvBlock::parse(&bytes).expect("small");
            let kept: usize = parsed.entries().map(<[u8]>::len).sum();
            prop_assert_eq!(kept, bytes.iter().filter(|byte| **byte != 0).count());
        }

        #[test]
        fn get_finds_what_was_set(name in "[A-Z_]{1,8}", value in "[^\0]{0,12}", n in 1usize..4) {
            let entry = format!("{name}={value}").into_bytes();
            let env = EnvBlock::from_entries(vec![entry; n]);
            prop_assert_eq!(env.get(&name), Some(value.as_bytes()));
            prop_assert_eq!(env.duplicates(&name), n);
            prop_assert_eq!(env.variables().next(), Some((name.as_bytes(), value.as_bytes())));
        }
    }
}
