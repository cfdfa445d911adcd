//! The directory of libraries that were fetched through pip: where it is, what
//! is in it, and how entries are locked, added and removed. It fetches nothing
//! itself (`wheel` does) and removes nothing but its own entries.
//!
//! Layout below `$XDG_CACHE_HOME/nccldiag/nccl` (else `~/.cache/...`):
//! `2.27.7-cu12/libnccl.so.2` is an entry, `2.27.7-cu12.lock` its lock and
//! `.partial-2.27.7-cu12-XXXXXX/` a fetch that is under way or was killed.

use super::wheel::Wheel;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

/// The one file that an entry is about.
pub(super) const LIBRARY: &str = "libnccl.so.2";

/// Why the cache could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is no place for it.
    #[error(
        "there is no place for fetched libraries: neither XDG_CACHE_HOME nor HOME is an \
         absolute path; set XDG_CACHE_HOME"
    )]
    NoHome,
    /// Something that this tool did not make is in the way. Code is loaded
    /// from the cache, so it must belong to the user alone.
    #[error("will not use {}: {why}; remove it or set XDG_CACHE_HOME", path.display())]
    Unsafe {
        /// The offending file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// A verb, such as `create`.
        what: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// One fetched library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which wheel it came from.
    pub wheel: Wheel,
    /// The library itself.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What [`Cache::clean`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Bytes that were freed.
    pub freed: u64,
    /// Entries that were removed.
    pub removed: Vec<Wheel>,
    /// Entries that stay because another process uses or fetches them.
    pub in_use: Vec<Wheel>,
}

/// While it lives, [`Cache::clean`] in any process leaves the entry alone.
#[derive(Debug)]
pub struct Lease(#[expect(dead_code, reason = "held only for the lock on it")] File);

/// A cache directory. Nothing is created before something is fetched.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache.
    ///
    /// # Errors
    /// [`CacheError::NoHome`].
    pub fn user() -> Result<Self, CacheError> {
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        // The XDG specification says that a relative path is to be ignored.
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|base| Self { root: base.join("nccldiag/nccl") })
            .ok_or(CacheError::NoHome)
    }

    /// A cache in a directory of the caller's choice.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory that holds the entries.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The entry for `wheel`, with a lease that keeps it from being cleaned.
    ///
    /// # Errors
    /// [`CacheError`] when something foreign is in its place.
    pub fn get(&self, wheel: &Wheel) -> Result<Option<(Entry, Lease)>, CacheError> {
        if !self.check_root()? || self.entry(wheel)?.is_none() {
            return Ok(None);
        }
        let lock = self.lock_file_to_read(wheel)?;
        lock.lock_shared().map_err(|error| self.lock_error(wheel, error))?;
        // Again, now that nobody can remove it any more.
        Ok(self.entry(wheel)?.map(|entry| (entry, Lease(lock))))
    }

    /// All complete entries, oldest version first.
    ///
    /// # Errors
    /// [`CacheError`] when the directory cannot be read or is not the user's own.
    pub fn list(&self) -> Result<Vec<Entry>, CacheError> {
        let mut entries = Vec::new();
        for wheel in self.wheels()? {
            // What does not look like ours is left out, and left alone.
            entries.extend(self.entry(&wheel).ok().flatten());
        }
        entries.sort_by(|a, b| a.wheel.cmp(&b.wheel));
        Ok(entries)
    }

    /// Removes the entry of one wheel, or all entries, and what killed fetches
    /// left behind. Entries that another process holds stay.
    ///
    /// # Errors
    /// [`CacheError`] when a removal fails half-way.
    pub fn clean(&self, which: Option<&Wheel>) -> Result<Cleaned, CacheError> {
        let mut cleaned = Cleaned::default();
        for wheel in self.wheels()?.into_iter().filter(|wheel| which.is_none_or(|w| w == wheel)) {
            let lock = self.lock_file(&wheel)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    cleaned.in_use.push(wheel);
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(self.lock_error(&wheel, error)),
            }
            cleaned.freed += self.remove_partial(&wheel)?;
            if let Some(entry) = self.entry(&wheel)? {
                cleaned.freed += entry.bytes;
                remove_tree(&self.root.join(wheel.to_string()))?;
                cleaned.removed.push(wheel);
            }
        }
        Ok(cleaned)
    }

    /// Makes the directory and takes the lock for adding `wheel`; `None` while
    /// another process has it.
    pub(super) fn try_lock(&self, wheel: &Wheel) -> Result<Option<File>, CacheError> {
        if !self.check_root()? {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
            made.map_err(|error| io_error("create", &self.root, error))?;
            self.check_root()?;
        }
        let lock = self.lock_file(wheel)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(self.lock_error(wheel, error)),
        }
    }

    /// Removes what killed fetches of other wheels left; the caller holds the
    /// lock of `wheel`.
    pub(super) fn remove_abandoned(&self, wheel: &Wheel) -> Result<(), CacheError> {
        for other in self.wheels()?.into_iter().filter(|other| other != wheel) {
            // Whoever fetches it now cleans up by itself.
            if let Ok(_lock) = self.lock_file(&other)?.try_lock() {
                self.remove_partial(&other)?;
            }
        }
        Ok(())
    }

    /// A fresh private directory for a fetch. The caller holds the lock.
    pub(super) fn partial(&self, wheel: &Wheel) -> Result<tempfile::TempDir, CacheError> {
        self.remove_partial(wheel)?;
        tempfile::Builder::new()
            .prefix(&partial_prefix(wheel))
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&self.root)
            .map_err(|error| io_error("create a directory in", &self.root, error))
    }

    /// Turns a directory inside `partial` into the entry. The caller holds the lock.
    pub(super) fn publish(&self, wheel: &Wheel, finished: &Path) -> Result<Entry, CacheError> {
        let place = self.root.join(wheel.to_string());
        // An incomplete entry (no library in it) may be in the way.
        if self.entry(wheel)?.is_none() && place.symlink_metadata().is_ok() {
            remove_tree(&place)?;
        }
        fs::rename(finished, &place).map_err(|error| io_error("create", &place, error))?;
        let missing = || io_error("read", &place, io::ErrorKind::NotFound.into());
        self.entry(wheel)?.ok_or_else(missing)
    }

    /// The entry, when it is complete. The caller has checked the root.
    fn entry(&self, wheel: &Wheel) -> Result<Option<Entry>, CacheError> {
        let directory = self.root.join(wheel.to_string());
        if !own_directory(&directory)? {
            return Ok(None);
        }
        let path = directory.join(LIBRARY);
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() => {
                Ok(Some(Entry { wheel: wheel.clone(), path, bytes: meta.len() }))
            }
            Ok(_) => Err(CacheError::Unsafe { path, why: "it is not a regular file" }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("look at", &path, error)),
        }
    }

    /// The wheels that any file in the directory is named after.
    fn wheels(&self) -> Result<Vec<Wheel>, CacheError> {
        if !self.check_root()? {
            return Ok(Vec::new());
        }
        let listed =
            fs::read_dir(&self.root).map_err(|error| io_error("read", &self.root, error))?;
        let mut wheels: Vec<Wheel> = listed
            .filter_map(|item| item.ok()?.file_name().into_string().ok())
            .filter_map(|name| {
                let name = name.strip_suffix(".lock").unwrap_or(&name);
                Wheel::from_entry_name(name)
            })
            .collect();
        wheels.sort();
        wheels.dedup();
        Ok(wheels)
    }

    /// Whether the directory exists; it and its parent must be the user's own.
    fn check_root(&self) -> Result<bool, CacheError> {
        if let Some(parent) = self.root.parent()
            && parent.file_name().is_some_and(|name| name == "nccldiag")
            && !own_directory(parent)?
        {
            return Ok(false);
        }
        own_directory(&self.root)
    }

    /// For a shared lock, which needs no file that is open for writing.
    fn lock_file_to_read(&self, wheel: &Wheel) -> Result<File, CacheError> {
        let path = self.lock_path(wheel);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.lock_file(wheel),
            opened => opened.map_err(|error| io_error("open", &path, error)),
        }
    }

    fn lock_path(&self, wheel: &Wheel) -> PathBuf {
        self.root.join(format!("{wheel}.lock"))
    }

    fn lock_file(&self, wheel: &Wheel) -> Result<File, CacheError> {
        let path = self.lock_path(wheel);
        // Lock files are never removed: a process that waits on a removed one
        // would hold a lock that nobody else sees.
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(|error| io_error("open", &path, error))
    }

    fn lock_error(&self, wheel: &Wheel, error: io::Error) -> CacheError {
        io_error("lock", &self.lock_path(wheel), error)
    }

    /// Removes what killed fetches of `wheel` left. The caller holds the lock.
    fn remove_partial(&self, wheel: &Wheel) -> Result<u64, CacheError> {
        let listed =
            fs::read_dir(&self.root).map_err(|error| io_error("read", &self.root, error))?;
        let prefix = partial_prefix(wheel);
        let mut freed = 0;
        for item in listed.flatten() {
            if item.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
                && own_directory(&item.path())?
            {
                freed += tree_bytes(&item.path());
                remove_tree(&item.path())?;
            }
        }
        Ok(freed)
    }
}

fn partial_prefix(wheel: &Wheel) -> String {
    format!(".partial-{wheel}-")
}

/// Whether `path` is there; an error when it is not a directory that only this
/// user can change.
fn own_directory(path: &Path) -> Result<bool, CacheError> {
    let unsafe_because = |why| Err(CacheError::Unsafe { path: path.into(), why });
    match path.symlink_metadata() {
        Ok(meta) if meta.file_type().is_symlink() => unsafe_because("it is a symbolic link"),
        Ok(meta) if !meta.is_dir() => unsafe_because("it is not a directory"),
        Ok(meta) if meta.uid() != nix::unistd::geteuid().as_raw() => {
            unsafe_because("it belongs to another user")
        }
        Ok(meta) if meta.mode() & 0o022 != 0 => unsafe_because("others may write to it"),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("look at", path, error)),
    }
}

/// Removes a directory without following links (as `remove_dir_all` promises).
fn remove_tree(path: &Path) -> Result<(), CacheError> {
    fs::remove_dir_all(path).map_err(|error| io_error("remove", path, error))
}

/// The bytes of all regular files below `path`, as far as they can be seen.
pub(super) fn tree_bytes(path: &Path) -> u64 {
    let Ok(listed) = fs::read_dir(path) else { return 0 };
    let size = |item: fs::DirEntry| match item.metadata() {
        Ok(meta) if meta.is_dir() => tree_bytes(&item.path()),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    };
    listed.flatten().map(size).sum()
}

pub(super) fn io_error(what: &'static str, path: &Path, error: io::Error) -> CacheError {
    CacheError::Io { what, path: path.into(), error }
}
