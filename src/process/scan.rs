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
/// The most entries of environments that are looked at, over all candidates:
/// a hostile program could point to one long array from everywhere.
const MAX_ENTRIES: usize = 1 << 20;
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
    let (mut left, mut entries) = (MAX_DATA, MAX_ENTRIES);
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
                if is_writable(maps, array) && looks_like_environ(target, array, &mut entries)? {
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
fn looks_like_environ(
    target: &mut Target<'_>,
    array: u64,
    entries: &mut usize,
) -> io::Result<bool> {
    let word = target.class.word() as u64;
    for index in 0.. {
        let is_variable = target.word(array.saturating_add(index * word)).and_then(|string| {
            if string == 0 { Ok(None) } else { starts_with_name(target, string).map(Some) }
        });
        match is_variable {
            Ok(None) => return Ok(index > 0),
            Ok(Some(true)) => {}
            Ok(Some(false)) => return Ok(false),
            Err(error) if is_not_mapped(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        *entries = entries.checked_sub(1).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "too much in it looks like an environment")
        })?;
    }
    Ok(false)
}

/// True for a string of the form `NAME=...`.
fn starts_with_name(target: &mut Target<'_>, string: u64) -> io::Result<bool> {
    let mut len = 0;
    while len < MAX_NAME {
        let bytes = target.memory.rest_of_page(string.saturating_add(len as u64))?;
        for byte in bytes.iter().take(MAX_NAME - len) {
            match byte {
                b'=' => return Ok(len > 0),
                b'A'..=b'Z' | b'a'..=b'z' | b'_' => {}
                b'0'..=b'9' | b'.' | b'-' | b'%' | b'(' | b')' if len > 0 => {}
                _ => return Ok(false),
            }
            len += 1;
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use super::super::elf_mem::Class;
    use super::super::maps::Perms;
    use super::super::memory::SparseMemory;
    use super::*;

    const DATA: u64 = 0x1000_0000;
    const HEAP: u64 = 0x2000_0000;
    const STACK: u64 = 0x3000_0000;

    fn region(start: u64, path: &[u8]) -> Mapping {
        Mapping {
            start,
            end: start + 0x1000_0000,
            perms: Perms { read: true, write: true, ..Perms::default() },
            offset: 0,
            dev: (0, 0),
            inode: 0,
            path: path.to_vec(),
            deleted: false,
        }
    }

    /// Searches data with these words; heap and stack each begin with an array
    /// of one variable, and 16 bytes further with its NULL.
    fn search(words: &[u64]) -> io::Result<Scan> {
        let maps = [region(DATA, b"/x"), region(HEAP, b"[heap]"), region(STACK, b"[stack]")];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let segment = Segment { start: DATA, size: bytes.len() as u64 };
        let mut memory = SparseMemory::new();
        memory.put(DATA, bytes);
        for base in [HEAP, STACK] {
            let array = [base + 32, base + 40, 0, 0].map(u64::to_le_bytes).concat();
            memory.put(base, [&array[..], b"ALGO=1\0\0PROTO=2\0"].concat());
        }
        let mut target = Target::new(&memory, Class::Elf64, 64);
        find(&memory, &mut target, &[segment], &maps)
    }

    #[test]
    fn the_choice() {
        let found = |words: &[u64]| search(words).expect("readable");
        assert_eq!(found(&[1, HEAP + 16, DATA, 0]), Scan::Nothing);
        assert_eq!(found(&[1, STACK]), Scan::Slot(DATA + 8));
        assert_eq!(found(&[STACK + 8, STACK]), Scan::Slot(DATA + 8), "the whole, not its tail");
        assert_eq!(found(&[7, HEAP]), Scan::Slot(DATA + 8));
        assert_eq!(found(&[STACK, HEAP, HEAP]), Scan::Slot(DATA + 8), "moved by setenv");
        assert_eq!(found(&[STACK, HEAP]), Scan::Ambiguous(2));
    }

    #[test]
    fn a_flood_of_candidates_ends() {
        let error = search(&vec![HEAP; MAX_ENTRIES + 1]).expect_err("too many entries");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
