//! Goes through the memory that a process wrote itself, page by page, for what
//! somebody is looking for. Pages that are not in memory are not touched, so
//! the process does not grow by being looked at.

use crate::model::Unreadable;
use crate::process::maps::{self, Mapping};
use crate::process::memory::{Memory, is_not_mapped};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// How much is read at once.
const CHUNK: usize = 1 << 20;

/// The most memory that is gone through in one process.
const MOST_BYTES: u64 = 16 << 30;

/// The most address space whose pages are asked for: 8 bytes for each page.
const MOST_SPACE: u64 = 1 << 40;

/// How long one search takes at most.
const LONGEST: Duration = Duration::from_secs(3);

/// What `/proc/PID/pagemap` says about a page that holds something: it is in
/// memory, or swapped out.
const PRESENT: u64 = 1 << 63 | 1 << 62;

/// Memory worth a look, and whether that is all of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Regions {
    pub(super) runs: Vec<Range<u64>>,
    pub(super) cut: bool,
}

/// The private memory of a process that no file is behind, as far as it is
/// used: heaps and what allocators map.
pub(super) fn regions(pid: i32) -> Result<Regions, Unreadable> {
    let maps = maps::maps(pid)?;
    // Without it (a kernel without the option) all pages are looked at.
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok();
    let mut regions = Regions::default();
    let mut space = MOST_SPACE;
    for mapping in maps.iter().filter(|mapping| is_own(mapping)) {
        let size = mapping.end - mapping.start;
        let Some(left) = space.checked_sub(size) else {
            regions.cut = true;
            continue;
        };
        space = left;
        match &pagemap {
            Some(file) => present(file, mapping, &mut regions.runs),
            None => regions.runs.push(mapping.start..mapping.end),
        }
    }
    // A communicator is in a small heap or has a mapping of its own; data of the
    // application comes last.
    regions.runs.sort_by_key(|run| run.end - run.start);
    let mut bytes = MOST_BYTES;
    let all = regions.runs.len();
    regions.runs.retain(|run| {
        let left = bytes.checked_sub(run.end - run.start);
        bytes = left.unwrap_or(bytes);
        left.is_some()
    });
    regions.cut |= regions.runs.len() != all;
    Ok(regions)
}

fn is_own(mapping: &Mapping) -> bool {
    let named = mapping.path.is_empty()
        || mapping.path == b"[heap]"
        || mapping.path.starts_with(b"[anon")
        || mapping.path.starts_with(b"[stack");
    let usable = mapping.perms.read && mapping.perms.write && !mapping.perms.shared;
    mapping.inode == 0 && usable && named
}

/// Adds the used pages of a mapping, those beside each other as one run.
fn present(pagemap: &File, mapping: &Mapping, runs: &mut Vec<Range<u64>>) {
    const ENTRIES: u64 = 64 << 10;
    let mut entries = vec![0; 8 * ENTRIES as usize];
    let (mut page, end) = (mapping.start / PAGE, mapping.end / PAGE);
    while page < end {
        let wanted = (end - page).min(ENTRIES);
        let into = &mut entries[..8 * wanted as usize];
        let got = pagemap.read_at(into, page * 8).unwrap_or(0) as u64 / 8;
        if got == 0 {
            // It may not be read: look at all of it.
            add(runs, page * PAGE..mapping.end);
            return;
        }
        let (words, _) = into.as_chunks();
        for (at, word) in (page..).zip(words).take(got as usize) {
            if u64::from_le_bytes(*word) & PRESENT != 0 {
                add(runs, at * PAGE..(at + 1) * PAGE);
            }
        }
        page += got;
    }
}

fn add(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

/// Shows all bytes of the runs in pieces that overlap by `overlap` bytes, so
/// that nothing up to that size falls between two of them. `see` gets the
/// address of a piece and its bytes. Returns false when the time was up before
/// the end.
pub(super) fn each(
    memory: &dyn Memory,
    runs: &[Range<u64>],
    overlap: usize,
    mut see: impl FnMut(u64, &[u8]),
) -> io::Result<bool> {
    let deadline = Instant::now() + LONGEST;
    let mut buffer = vec![0; CHUNK + overlap];
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            if Instant::now() > deadline {
                return Ok(false);
            }
            let wanted = (run.end - at).min(buffer.len() as u64) as usize;
            let got = match memory.read(at, &mut buffer[..wanted]) {
                Ok(got) => got,
                // Unmapped since the look at the map.
                Err(error) if is_not_mapped(&error) => 0,
                Err(error) => return Err(error),
            };
            see(at, &buffer[..got]);
            at = match got < wanted {
                // On behind the page that cannot be read.
                true => (at + got as u64) / PAGE * PAGE + PAGE,
                false if at + wanted as u64 >= run.end => break,
                false => at + CHUNK as u64,
            };
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::SparseMemory;

    #[test]
    fn all_that_can_be_read_is_seen_and_no_more() {
        let mut memory = SparseMemory::new();
        let size = 3 * CHUNK as u64;
        memory.put(0, vec![1; 2 * PAGE as usize]).put(4 * PAGE, vec![2; 3 * CHUNK]);
        let runs: Vec<_> = std::iter::once(0..size).collect();
        let mut seen = vec![0u8; size as usize];
        let complete = each(&memory, &runs, 24, |at, bytes| {
            seen[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        });
        assert!(complete.expect("no error"));
        let (hole, rest) = seen.split_at(4 * PAGE as usize);
        assert!(hole[..2 * PAGE as usize].iter().all(|byte| *byte == 1));
        assert!(hole[2 * PAGE as usize..].iter().all(|byte| *byte == 0));
        assert!(rest.iter().all(|byte| *byte == 2));
    }

    #[test]
    fn only_used_pages_are_looked_at() {
        let pages = 64;
        let size = pages * PAGE as usize;
        let mut view = memmap2::MmapMut::map_anon(size).expect("a few pages");
        view[5 * PAGE as usize] = 1;
        view[6 * PAGE as usize] = 1;
        let own = std::process::id().cast_signed();
        let start = view.as_ptr() as u64;
        let regions = regions(own).expect("own process");
        if std::fs::File::open("/proc/self/pagemap").is_err() {
            crate::testing::skipped("no /proc/self/pagemap");
            return;
        }
        // Neighbours of other mappings may be in the same run.
        let touched = |page: u64| {
            let at = start + page * PAGE;
            regions.runs.iter().any(|run| run.contains(&at))
        };
        assert!(touched(5) && touched(6) && !touched(40), "{start:x}: {regions:x?}");
    }
}
