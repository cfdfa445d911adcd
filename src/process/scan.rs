//! The last resort for a static program without symbols: search its writable
//! data for a pointer to something that looks like an environment. It prefers
//! to find nothing over finding the wrong array.

use super::elf_mem::{Segment, Target};
use super::maps::Mapping;
use super::memory::{Memory, is_not_mapped};
use std::collections::BTreeMap;
use std::io;

/// The most bytes of writable data that are searched.
const MAX_DATA: u64 = 64 << 20;
const CHUNK: usize = 1 << 20;
const MAX_ENTRIES: usize = 1 << 16;
/// The longest name that is taken for a variable's.
const MAX_NAME: usize = 256;

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The address of the variable that holds the pointer.
    Slot(u64),
    /// Nothing looks like an environment.
    Nothing,
    /// Different arrays look like environments: this many.
    Ambiguous(usize),
}

/// Searches the writable segments of the main executable.
pub(super) fn find(
    memory: &dyn Memory,
    target: &mut Target<'_>,
    segments: &[Segment],
    maps: &[Mapping],
) -> io::Result<Scan> {
    let mut candidates: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut left = MAX_DATA;
    for segment in segments {
        let mut at = segment.start;
        let end = segment.start.saturating_add(segment.size.min(left));
        left -= end - at;
        while at < end {
            let mut chunk = vec![0; CHUNK.min((end - at) as usize)];
            let got = match memory.read(at, &mut chunk) {
                Ok(got) => got,
                Err(error) if is_not_mapped(&error) => break,
                Err(error) => return Err(error),
            };
            for (slot, array) in pointers(target, at, &chunk[..got]) {
                if is_writable(maps, array) && looks_like_environ(target, array)? {
                    candidates.entry(array).or_default().push(slot);
                }
            }
            at += got as u64;
        }
    }
    Ok(choose(&candidates, maps))
}

/// The aligned, non-null words of a piece of memory and where each of them is.
fn pointers(target: &Target<'_>, at: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
    let (class, word) = (target.class, target.class.word());
    let skip = (at as usize).wrapping_neg() % word;
    let words = bytes.get(skip..).unwrap_or_default().chunks_exact(word);
    let first = at + skip as u64;
    words
        .enumerate()
        .map(|(n, bytes)| (first + (n * word) as u64, class.number(bytes)))
        .filter(|(_, value)| *value != 0 && value % word as u64 == 0)
        .collect()
}

fn mapping(maps: &[Mapping], addr: u64) -> Option<&Mapping> {
    let index = maps.partition_point(|mapping| mapping.end <= addr);
    maps.get(index).filter(|mapping| mapping.start <= addr)
}

fn is_writable(maps: &[Mapping], addr: u64) -> bool {
    mapping(maps, addr).is_some_and(|mapping| mapping.perms.write)
}

fn is_stack(maps: &[Mapping], addr: u64) -> bool {
    mapping(maps, addr).is_some_and(|mapping| mapping.path == b"[stack]")
}

/// True for a non-empty, NULL-terminated array of `NAME=...` strings.
fn looks_like_environ(target: &mut Target<'_>, array: u64) -> io::Result<bool> {
    for index in 0..MAX_ENTRIES {
        let entry = match entry(target, array, index) {
            Ok(entry) => entry,
            Err(error) if is_not_mapped(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        match entry {
            Entry::End => return Ok(index > 0),
            Entry::Variable => {}
            Entry::Other => return Ok(false),
        }
    }
    Ok(false)
}

enum Entry {
    End,
    Variable,
    Other,
}

fn entry(target: &mut Target<'_>, array: u64, index: usize) -> io::Result<Entry> {
    let offset = (index * target.class.word()) as u64;
    let string = target.word(array.saturating_add(offset))?;
    if string == 0 {
        return Ok(Entry::End);
    }
    for at in 0..MAX_NAME {
        let [byte] = target.memory.array(string.saturating_add(at as u64))?;
        match byte {
            b'=' if at > 0 => return Ok(Entry::Variable),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {}
            b'0'..=b'9' | b'.' | b'-' | b'%' | b'(' | b')' if at > 0 => {}
            _ => return Ok(Entry::Other),
        }
    }
    Ok(Entry::Other)
}

/// Arrays on the stack are the one from exec, or a tail of it that the program
/// remembers: the lowest is the whole. Once `setenv` moved the array to the
/// heap, both glibc (`last_environ`) and musl (`oldenv`) keep a second pointer
/// to it, which a program's private array has not.
fn choose(candidates: &BTreeMap<u64, Vec<u64>>, maps: &[Mapping]) -> Scan {
    let moved: Vec<&Vec<u64>> = candidates
        .iter()
        .filter(|(array, _)| !is_stack(maps, **array))
        .map(|(_, slots)| slots)
        .collect();
    let twice: Vec<&&Vec<u64>> = moved.iter().filter(|slots| slots.len() > 1).collect();
    match (candidates.len(), moved.len(), &twice[..]) {
        (0, _, _) => Scan::Nothing,
        (_, _, [slots]) => Scan::Slot(slots[0]),
        (_, 0, _) => candidates.values().next().map_or(Scan::Nothing, |s| Scan::Slot(s[0])),
        (1, 1, _) => Scan::Slot(moved[0][0]),
        (many, _, _) => Scan::Ambiguous(many),
    }
}
