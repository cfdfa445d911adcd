//! Finds the communicators in a process: by NCCL's own list, by the marks
//! around each, or by their shape. Whether one is sound is for `snapshot`.

use super::layout::{CommLayout, List, Number};
use super::scan;
use super::snapshot::{self, MARK};
use crate::model::{Latched, Source, Unreadable};
use crate::nccl::xray::{Loaded, latched};
use crate::process::memory::{Memory, RemoteMemory};
use std::io;

/// More communicators than any process has.
const MOST: usize = 1 << 14;

/// The most places that are looked at closely in a search.
const MOST_CANDIDATES: usize = 1 << 16;

/// Addresses of what may be communicators.
pub(super) struct Found {
    pub(super) addresses: Vec<u64>,
    pub(super) source: Source,
    pub(super) notes: Vec<String>,
}

/// Finds them in a running process.
pub(super) fn find(
    memory: &RemoteMemory,
    loaded: &Loaded,
    layout: &CommLayout,
) -> Result<Found, Unreadable> {
    let explain = |error: io::Error| memory.explain("NCCL's communicators", &error);
    if never_initialised(memory.pid(), loaded) {
        let addresses = Vec::new();
        return Ok(Found { addresses, source: Source::NeverInitialised, notes: Vec::new() });
    }
    if let Some(list) = layout.list {
        let addresses = by_list(memory, list, loaded.base).map_err(explain)?;
        if !addresses.is_empty() {
            return Ok(Found { addresses, source: Source::List, notes: Vec::new() });
        }
        // It stays empty with NCCL_RAS_ENABLE=0.
    }
    let regions = scan::regions(memory.pid())?;
    let (source, found) = match layout.number(Number::StartMark) {
        Some(mark) => (Source::Marks, by_marks(memory, &regions.runs, mark.offset)),
        None => (Source::Shape, by_shape(memory, &regions.runs, layout)),
    };
    let Guesses { addresses, complete } = found.map_err(explain)?;
    let cut = "the process has too much memory to search all of it".to_owned();
    let notes = if complete && !regions.cut { Vec::new() } else { vec![cut] };
    Ok(Found { addresses, source, notes })
}

/// Places that look like a communicator.
pub(super) struct Guesses {
    pub(super) addresses: Vec<u64>,
    /// Whether all memory was searched.
    pub(super) complete: bool,
}

impl Guesses {
    fn new(mut addresses: Vec<u64>, complete: bool) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        Self { addresses, complete }
    }
}

/// Whether NCCL has read no setting at all: making a communicator reads some.
fn never_initialised(pid: i32, loaded: &Loaded) -> bool {
    let Ok(set) = latched(pid, loaded) else { return false };
    // Read whenever the list is kept (since 2.24).
    match set.get("NCCL_RAS_ENABLE") {
        Latched::NotRead => true,
        Latched::NoSuchParameter => {
            set.iter().len() > 0 && set.iter().all(|(_, value)| *value == Latched::NotRead)
        }
        _ => false,
    }
}

/// The entries of NCCL's own list.
pub(super) fn by_list(memory: &dyn Memory, list: List, base: u64) -> io::Result<Vec<u64>> {
    let (mut count, mut array) = ([0; 4], [0; 8]);
    memory.read_exact(base.wrapping_add(list.count), &mut count)?;
    memory.read_exact(base.wrapping_add(list.array), &mut array)?;
    let count = usize::try_from(i32::from_le_bytes(count)).unwrap_or(0).min(MOST);
    let array = u64::from_le_bytes(array);
    if count == 0 || array == 0 {
        return Ok(Vec::new());
    }
    let mut entries = vec![0; 8 * count];
    let got = memory.read(array, &mut entries)?;
    let (entries, _) = entries[..got].as_chunks();
    let mut addresses: Vec<_> = entries.iter().copied().map(u64::from_le_bytes).collect();
    addresses.retain(|address| *address != 0 && address.is_multiple_of(8));
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

type Runs = [std::ops::Range<u64>];

/// Every place that starts with the mark; the mark at the end is checked when
/// the communicator is read.
pub(super) fn by_marks(memory: &dyn Memory, runs: &Runs, offset: u64) -> io::Result<Guesses> {
    let finder = memchr::memmem::Finder::new(&MARK.to_le_bytes()).into_owned();
    let mut found = Vec::new();
    let complete = scan::each(memory, runs, size_of::<u64>(), |base, bytes| {
        for at in finder.find_iter(bytes) {
            let mark = base + at as u64;
            if mark.is_multiple_of(8) && found.len() < MOST_CANDIDATES {
                found.extend(mark.checked_sub(offset));
            }
        }
    })?;
    Ok(Guesses::new(found, complete))
}

/// Every place that looks like a communicator from all sides.
pub(super) fn by_shape(
    memory: &dyn Memory,
    runs: &Runs,
    layout: &CommLayout,
) -> io::Result<Guesses> {
    let Some(shape) = Shape::of(layout) else { return Ok(Guesses::new(Vec::new(), true)) };
    let mut found = Vec::new();
    let complete = scan::each(memory, runs, shape.window, |base, bytes| {
        let first = (base.wrapping_sub(shape.first)).wrapping_neg() as usize % 8;
        let windows = (first..).step_by(8);
        for at in windows.take_while(|at| at + shape.window <= bytes.len()) {
            if shape.fits(&bytes[at..at + shape.window]) && found.len() < MOST_CANDIDATES {
                found.extend((base + at as u64).checked_sub(shape.first));
            }
        }
    })?;
    let mut guesses = Guesses::new(found, complete);
    guesses.addresses = snapshot::keep(memory, layout, &guesses.addresses, |one| one.is_certain())?;
    Ok(guesses)
}

/// What is close to the rank in a communicator, to tell most memory from one
/// at a glance.
struct Shape {
    /// Offset of the first of them in the structure.
    first: u64,
    /// Bytes from the first to the end of the last.
    window: usize,
    rank: usize,
    ranks: usize,
    device: usize,
    capability: Option<usize>,
}

impl Shape {
    fn of(layout: &CommLayout) -> Option<Self> {
        let offset = |number| {
            layout.number(number).filter(|field| field.size == 4).map(|field| field.offset)
        };
        let rank = offset(Number::Rank)?;
        let ranks = offset(Number::Ranks)?;
        let device = offset(Number::CudaDevice)?;
        let near = |other: &u64| other.abs_diff(rank) < 256;
        let capability = offset(Number::ComputeCapability).filter(near);
        let all = [Some(rank), Some(ranks), Some(device), capability];
        let first = all.into_iter().flatten().min()?;
        let last = all.into_iter().flatten().max()?;
        let window = usize::try_from(last - first).ok().filter(|size| *size < 4096)? + 4;
        let inside = |offset: u64| (offset - first) as usize;
        Some(Self {
            first,
            window,
            rank: inside(rank),
            ranks: inside(ranks),
            device: inside(device),
            capability: capability.map(inside),
        })
    }

    fn fits(&self, window: &[u8]) -> bool {
        let at = |offset: usize| {
            window.get(offset..).and_then(|rest| rest.first_chunk()).map(|b| i32::from_le_bytes(*b))
        };
        let (Some(rank), Some(ranks)) = (at(self.rank), at(self.ranks)) else { return false };
        (1..1 << 20).contains(&ranks)
            && (0..ranks).contains(&rank)
            && at(self.device).is_some_and(|device| (0..1024).contains(&device))
            && self.capability.is_none_or(|capability| {
                at(capability).is_some_and(|capability| (30..1000).contains(&capability))
            })
    }
}
