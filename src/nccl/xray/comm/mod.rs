//! Reads the communicators of a running process from outside: what NCCL chose
//! for each (ranks, channels, buffers, which algorithms and protocols it may
//! use). The places come from the debug information of the library file, so no
//! table of offsets per version is kept; the process is never stopped.

mod find;
mod layout;
mod scan;
mod snapshot;

use super::locate::Loaded;
use crate::model::{Communicators, Source, Unreadable};
use crate::process::maps;
use crate::process::memory::RemoteMemory;
use layout::CommLayout;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a communicator is read again that differs between two reads.
const ATTEMPTS: usize = 4;

/// The most communicators that are read in one process.
const MOST: usize = 4096;

/// As in [`ImageCache`](super::ImageCache).
type Key = (u64, u64, u64, i64, i64);

type Parsed = Result<Arc<CommLayout>, Unreadable>;

/// Remembers the layout of communicators in each library file, however many
/// processes map it. Shared by threads.
#[derive(Debug, Default)]
pub struct LayoutCache {
    layouts: Mutex<HashMap<Key, Arc<OnceLock<Parsed>>>>,
}

impl LayoutCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    fn get(&self, pid: i32, loaded: &Loaded) -> Parsed {
        loaded.image.as_ref().map_err(Clone::clone)?;
        let failed = |error: io::Error| {
            let path = loaded.path.display();
            Unreadable::new(format!("open the mapped library {path}: {error}"))
        };
        let names = maps::naming(pid, &[loaded.path.as_os_str().as_bytes()])?;
        let same = |mapping: &&maps::Mapping| {
            mapping.path == loaded.path.as_os_str().as_bytes()
                && mapping.deleted == loaded.deleted
                && mapping.perms.exec
                && mapping.start >= loaded.base
        };
        let gone = || failed(io::Error::from(io::ErrorKind::NotFound));
        let mapping = names.iter().find(same).ok_or_else(gone)?;
        let file = maps::open_mapped(pid, mapping).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let key = (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec());
        let slot = {
            // A thread that panicked elsewhere cannot have left this map half-changed.
            let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(layouts.entry(key).or_default())
        };
        slot.get_or_init(|| CommLayout::from_file(&file, &loaded.path).map(Arc::new)).clone()
    }
}

/// All communicators that the library `loaded` has in process `pid`.
///
/// Each is read twice, `pause` apart: the counts of operations tell whether it
/// is in use, and everything else must be equal. With NCCL's own list (2.24 and
/// newer, unless `NCCL_RAS_ENABLE=0`) this takes less than a millisecond
/// besides the pause; otherwise the memory of the process is searched.
///
/// # Errors
/// The library was stripped or built without debug information, its file cannot
/// be read, or the memory of the process cannot.
pub fn communicators(
    pid: i32,
    loaded: &Loaded,
    layouts: &LayoutCache,
    pause: Duration,
) -> Result<Communicators, Unreadable> {
    let layout = layouts.get(pid, loaded)?;
    let memory = RemoteMemory::new(pid);
    let found = find::find(&memory, loaded, &layout)?;
    let mut result =
        Communicators { source: found.source, notes: found.notes, ..Communicators::default() };
    read(&memory, &layout, &found.addresses, pause, &mut result)
        .map_err(|error| memory.explain("NCCL's communicators", &error))?;
    Ok(result)
}

/// Reads the communicators at these addresses; what is none is passed over
/// when the addresses are guesses.
fn read(
    memory: &RemoteMemory,
    layout: &CommLayout,
    addresses: &[u64],
    pause: Duration,
    result: &mut Communicators,
) -> io::Result<()> {
    let mut kept = snapshot::keep(memory, layout, addresses, |one| one.is_plausible())?;
    if result.source == Source::List && kept.len() < addresses.len() {
        let odd = addresses.len() - kept.len();
        result.notes.push(format!("{odd} communicators are being made or destroyed"));
    }
    if kept.len() > MOST {
        result.notes.push(format!("only {MOST} of {} communicators were read", kept.len()));
        kept.truncate(MOST);
    }
    let first = snapshot::read_all(memory, layout, &kept)?;
    thread::sleep(pause);
    let mut second = snapshot::read_all(memory, layout, &kept)?;
    for (first, second) in first.into_iter().zip(&mut second) {
        let (Some(mut first), Some(mut latest)) = (first, second.take()) else { continue };
        let earliest = first.clone();
        for _ in 0..ATTEMPTS {
            if first.is_same(&latest) {
                break;
            }
            let again = snapshot::read_all(memory, layout, &[latest.address])?.pop().flatten();
            let Some(again) = again else { break };
            first = std::mem::replace(&mut latest, again);
        }
        if first.is_same(&latest) && latest.is_plausible() {
            result.found.push(latest.interpret(&earliest));
        } else {
            let at = latest.address;
            result.notes.push(format!("the communicator at {at:#x} is changing"));
        }
    }
    Ok(())
}

/// Whether a file describes communicators. Only for the fuzz target, which wants
/// to see everything that reads a library's debug information.
#[doc(hidden)]
pub fn has_layout(file: &std::fs::File) -> bool {
    let path = std::path::Path::new("fuzzed.so");
    let layout = layout::describe(file, path).map(|(layout, list)| CommLayout::new(&layout, list));
    matches!(layout, Ok(Ok(_)))
}

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
