//! Reads what NCCL latched: all cached integers of one loaded libnccl in one
//! vectored read. It decides nothing about them.

use super::locate::Loaded;
use crate::model::{Latched, Unreadable};
use crate::nccl::image::{Image, Known, Param};
use crate::process::memory::{Memory, Part, RemoteMemory};
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

/// Reads the caches of `loaded` in process `pid`: one system call for up to
/// 1024 parameters, some 50 microseconds. The process is not stopped.
///
/// # Errors
/// The library's file could not be read, or the process's memory cannot: it is
/// gone, or another user's.
pub fn latched(pid: i32, loaded: &Loaded) -> Result<LatchedSet, Unreadable> {
    let image = Arc::clone(loaded.image.as_ref().map_err(Clone::clone)?);
    let address = |vaddr: u64| loaded.base.wrapping_add(vaddr);
    let caches: Vec<u64> = image.params.iter().map(|p| address(p.cache_vaddr)).collect();
    let flags: Vec<u64> =
        image.params.iter().filter_map(|p| p.no_cache_vaddr).map(address).collect();
    let memory = RemoteMemory::new(pid);
    let caches = read_each::<8>(&memory, &caches)?;
    let mut flags = read_each::<1>(&memory, &flags)?.into_iter();
    let values = image
        .params
        .iter()
        .zip(caches)
        .map(|(param, bytes)| {
            let flag = param.no_cache_vaddr.and_then(|_| flags.next().flatten());
            value(bytes.map(i64::from_ne_bytes), flag == Some([1]))
        })
        .collect();
    Ok(LatchedSet { image, values })
}

/// `N` bytes at each address, in one vectored read; `None` where the process
/// has no readable memory.
fn read_each<const N: usize>(
    memory: &RemoteMemory,
    addresses: &[u64],
) -> Result<Vec<Option<[u8; N]>>, Unreadable> {
    let mut values = vec![[0; N]; addresses.len()];
    let pieces = addresses.iter().zip(&mut values);
    let mut parts: Vec<Part> = pieces.map(|(&at, into)| Part::new(at, into)).collect();
    memory
        .read_many(&mut parts)
        .map_err(|error| memory.explain("NCCL's cached parameters", &error))?;
    let whole: Vec<bool> = parts.iter().map(Part::is_whole).collect();
    Ok(values.into_iter().zip(whole).map(|(value, whole)| whole.then_some(value)).collect())
}

fn value(cache: Option<i64>, no_cache: bool) -> Latched {
    match cache {
        None => Latched::Unreadable(Unreadable::new("its cache is not in readable memory")),
        Some(NEVER_READ) if no_cache => Latched::NotCached,
        Some(NEVER_READ) => Latched::NotRead,
        Some(value) => Latched::Value(value),
    }
}
