//! Finds the libnccl files that a process has mapped, reads each file once,
//! and computes where in memory it lies. What the caches there hold is for
//! `latched` to read.

use crate::model::Unreadable;
use crate::nccl::image::{Image, ImageError};
use crate::process::maps::{self, Mapping};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// One libnccl in the memory of one process.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Its path as the process sees it.
    pub path: PathBuf,
    /// The file of that name is gone (or was replaced) since it was loaded.
    pub deleted: bool,
    /// What the file says, or why it could not be read.
    pub image: Result<Arc<Image>, Unreadable>,
    /// Add it to a link-time address to get the one in the process.
    pub base: u64,
}

/// Device, inode, size and time of the last change: the last two, because a
/// long run may see an inode number twice.
type Key = (u64, u64, u64, i64, i64);

/// `Ok(None)`: the file is no libnccl at all, but a plugin such as
/// `libnccl-net.so`.
type Parsed = Result<Option<Arc<Image>>, Unreadable>;

/// Every file is read once, however many processes map it. Shared by threads.
#[derive(Debug, Default)]
pub struct ImageCache {
    /// A library that does not have to be called libnccl.
    also: Option<PathBuf>,
    images: Mutex<HashMap<Key, Arc<OnceLock<Parsed>>>>,
}

impl ImageCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty cache that takes this file for a libnccl too, whatever its name.
    pub fn with(library: &Path) -> Self {
        // The memory map shows the name behind all links.
        let also = library.canonicalize().ok();
        Self { also, ..Self::default() }
    }

    /// Whether this is the library that the cache was made [`with`](Self::with).
    pub fn was_asked_for(&self, loaded: &Loaded) -> bool {
        self.also.as_ref() == Some(&loaded.path)
    }

    fn is_candidate(&self, mapping: &Mapping) -> bool {
        mapping.is_file() && (is_named_nccl(mapping) || self.also == Some(path(mapping)))
    }

    fn get(&self, opened: io::Result<File>, mapping: &Mapping) -> Parsed {
        let unreadable = |error| {
            let path = path(mapping);
            let path = path.display();
            Unreadable::new(format!("open the mapped library {path}: {error}"))
        };
        let file = opened.map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        let key = (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec());
        let slot = {
            // A thread that panicked elsewhere cannot have left this map half-changed.
            let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(images.entry(key).or_default())
        };
        slot.get_or_init(|| match Image::from_file(&file, &path(mapping)) {
            Ok(image) => Ok(Some(Arc::new(image))),
            Err(ImageError::NotNccl { .. }) => Ok(None),
            Err(error) => Err(Unreadable::new(error.to_string())),
        })
        .clone()
    }
}

/// All libnccl that process `pid` has loaded, in the order of addresses; often
/// one, but torch's and the system's can both be there. Empty when there is
/// none, and for a program into which NCCL was linked statically.
///
/// # Errors
/// When the memory map cannot be read: no such process, or another user's.
pub fn loaded(pid: i32, images: &ImageCache) -> Result<Vec<Loaded>, Unreadable> {
    let mut found: Vec<Loaded> = Vec::new();
    let also = images.also.as_ref().map(|path| path.as_os_str().as_bytes());
    let names: Vec<&[u8]> = [NAME].into_iter().chain(also).collect();
    let mut mappings = maps::naming(pid, &names)?;
    mappings.retain(|mapping| images.is_candidate(mapping));
    // Only the mapping that holds code: somebody may have mapped the same file a
    // second time as data, and that gives a wrong base.
    for mapping in mappings.iter().filter(|mapping| mapping.perms.exec) {
        let image = match images.get(maps::open_mapped(pid, mapping), mapping) {
            Ok(Some(image)) => Ok(image),
            Ok(None) => continue,
            Err(why) => Err(why),
        };
        let base = match &image {
            Ok(image) => load_base(image, mapping).filter(|b| is_loaded(image, *b, &mappings)),
            Err(_) => mapping.start.checked_sub(mapping.offset),
        };
        let Some(base) = base else { continue };
        let path = path(mapping);
        // Without its file the code mappings of one library give several bases.
        let known = |other: &Loaded| other.base == base || image.is_err();
        if !found.iter().any(|other| other.path == path && known(other)) {
            found.push(Loaded { path, deleted: mapping.deleted, image, base });
        }
    }
    Ok(found)
}

/// What the name of every libnccl, and of its plugins, contains.
const NAME: &[u8] = b"libnccl";

fn is_named_nccl(mapping: &Mapping) -> bool {
    let path = path(mapping);
    let name = path.file_name().unwrap_or_default().as_bytes();
    memchr::memmem::find(name, NAME).is_some()
}

fn path(mapping: &Mapping) -> PathBuf {
    OsStr::from_bytes(&mapping.path).into()
}

/// Whether every segment lies where it would with this base. Not so for a
/// mapping that somebody made to look at the file.
fn is_loaded(image: &Image, base: u64, mappings: &[Mapping]) -> bool {
    image.segments.iter().all(|segment| {
        let first = base.wrapping_add(segment.vaddr);
        mappings.iter().any(|mapping| {
            (mapping.start..mapping.end).contains(&first)
                && (first - mapping.start).wrapping_add(mapping.offset) == segment.file_offset
        })
    })
}

/// Where address 0 of the file lies, by the segment that `mapping` shows.
fn load_base(image: &Image, mapping: &Mapping) -> Option<u64> {
    const PAGE: u64 = 4096;
    let shown = image.segments.iter().find(|segment| {
        let first = segment.file_offset & !(PAGE - 1);
        let end = segment.file_offset.saturating_add(segment.file_size);
        segment.executable && (first..end).contains(&mapping.offset)
    })?;
    // Signed, because the mapping starts at a page and the segment may not.
    let into_segment = mapping.offset.wrapping_sub(shown.file_offset);
    let base = mapping.start.wrapping_sub(shown.vaddr.wrapping_add(into_segment));
    (base < mapping.end && base.is_multiple_of(PAGE)).then_some(base)
}
