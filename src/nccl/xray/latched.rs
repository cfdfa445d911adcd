//! Reads what NCCL latched: all cached integers of one loaded libnccl in one
//! vectored read. It decides nothing about them.

use super::locate::Loaded;
use crate::model::{Latched, Unreadable};
use crate::nccl::image::{Image, Known, Param};
use crate::process::memory::{Memory, Part, RemoteMemory};
use std::ops::Range;
use std::sync::Arc;

/// What a cache holds until NCCL reads the variable (all of 2.18.3 to 2.32.3).
const NEVER_READ: i64 = i64::MIN;

/// The caches of one libnccl in one process, all read at the same moment.
#[derive(Clone, Debug)]
pub struct LatchedSet {
    image: Arc<Image>,
    /// In the order of `image.params`.
    values: Vec<Latched>,
}

impl LatchedSet {
    /// All cached parameters with their values, by variable.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<Param>, &Latched)> {
        self.image.params.iter().zip(&self.values)
    }

    /// What NCCL latched for an environment variable. `NotCached` for a
    /// setting that it reads as text each time (and for all those that
    /// `NCCL_NO_CACHE` names, since 2.29.7), `NoSuchParameter` for a name that
    /// is not in the library.
    pub fn get(&self, variable: &str) -> Latched {
        if let Some(at) = self.image.position(variable) {
            return self.values[at].clone();
        }
        match (self.image.kind_of(variable), self.image.no_params_reason()) {
            (Known::Unknown, _) => Latched::NoSuchParameter,
            (_, Some(why)) => Latched::Unreadable(Unreadable::new(why)),
            (_, None) => Latched::NotCached,
        }
    }

    /// The library that these values are from.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }
}

/// Reads the caches of `loaded` in process `pid`: one vectored
/// read of a few pieces. The process is not stopped.
///
/// # Errors
/// The library's file could not be read, or the process's memory cannot: it is
/// gone, or another user's.
pub fn latched(pid: i32, loaded: &Loaded) -> Result<LatchedSet, Unreadable> {
    let image = Arc::clone(loaded.image.as_ref().map_err(Clone::clone)?);
    let runs = Runs::read(pid, loaded.base, &image)?;
    let values = image
        .params
        .iter()
        .map(|param| {
            let flag = param.no_cache_vaddr.and_then(|at| runs.get::<1>(at));
            value(runs.get(param.cache_vaddr).map(i64::from_ne_bytes), flag == Some([1]))
        })
        .collect();
    Ok(LatchedSet { image, values })
}

/// The memory that holds all caches, read at one moment.
struct Runs<'a> {
    image: &'a Image,
    bytes: Vec<Vec<u8>>,
}

impl<'a> Runs<'a> {
    fn read(pid: i32, base: u64, image: &'a Image) -> Result<Self, Unreadable> {
        let size = |run: &Range<u64>| usize::try_from(run.end - run.start).unwrap_or_default();
        let mut bytes: Vec<Vec<u8>> =
            image.cache_runs.iter().map(|run| vec![0; size(run)]).collect();
        let pieces = image.cache_runs.iter().zip(&mut bytes);
        let mut parts: Vec<Part> =
            pieces.map(|(run, into)| Part::new(base.wrapping_add(run.start), into)).collect();
        let memory = RemoteMemory::new(pid);
        memory
            .read_many(&mut parts)
            .map_err(|error| memory.explain("NCCL's cached parameters", &error))?;
        let got: Vec<usize> = parts.iter().map(|part| part.got).collect();
        for (bytes, got) in bytes.iter_mut().zip(got) {
            bytes.truncate(got);
        }
        Ok(Self { image, bytes })
    }

    /// `N` bytes at a link-time address; `None` where the process has no
    /// readable memory.
    fn get<const N: usize>(&self, vaddr: u64) -> Option<[u8; N]> {
        let after = self.image.cache_runs.partition_point(|run| run.start <= vaddr);
        let index = after.checked_sub(1)?;
        let at = usize::try_from(vaddr - self.image.cache_runs[index].start).ok()?;
        self.bytes[index].get(at..)?.first_chunk().copied()
    }
}

fn value(cache: Option<i64>, no_cache: bool) -> Latched {
    match cache {
        None => Latched::Unreadable(Unreadable::new("its cache is not in readable memory")),
        Some(NEVER_READ) if no_cache => Latched::NotCached,
        Some(NEVER_READ) => Latched::NotRead,
        Some(value) => Latched::Value(value),
    }
}
