//! The private folder of one run: made where a child may use it, locked while
//! its driver lives, removed at the end, and removed by the next run when the
//! driver was killed.

use crate::probes::wire::Fields;
use anyhow::{Context, Result, bail};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "nccldiag-run-";
/// The prefix of a folder that is not locked yet.
const NEW: &str = "nccldiag-new-";
const LOCK: &str = "lock";
/// Below a folder with a longer path, in bytes, Python's fork server fails: it
/// puts a socket into a folder in our launch's folder, and the path of a socket
/// has at most 107 bytes. Such a folder is the last choice.
const LONGEST_BASE: usize = 40;

/// The shared object that Python children load.
const PROBE_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnccldiag_probe.so"));
/// The Python probe.
const PROBE_SCRIPT: &str = include_str!("../../probes/python/probe.py");

/// A folder that disappears with its owner.
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
    /// Why better places could not be used, one line each.
    pub notes: Vec<String>,
}

impl RunFolder {
    /// Makes the folder in $TMPDIR, or where that cannot be used in /tmp,
    /// /dev/shm, $XDG_RUNTIME_DIR or /var/tmp, and puts the probes into it.
    ///
    /// # Errors
    /// None of these places can be used; the reasons are all named.
    pub fn create() -> Result<Self> {
        let mut notes = Vec::new();
        for base in bases() {
            match Self::create_in(&base) {
                Ok(mut folder) => {
                    folder.notes = notes;
                    return Ok(folder);
                }
                Err(error) => notes.push(format!("{} cannot be used: {error:#}", base.display())),
            }
        }
        bail!(
            "no place for the probes' files: {}; name a writable directory without noexec in TMPDIR",
            notes.join("; ")
        )
    }

    fn create_in(base: &Path) -> Result<Self> {
        if !base.is_absolute() {
            bail!("its path is not absolute");
        }
        if base.as_os_str().as_bytes().contains(&b':') {
            bail!("its path has a colon, which PYTHONPATH cannot hold");
        }
        let flags = statvfs(base).context("ask about its file system")?.flags();
        if flags.contains(FsFlags::ST_NOEXEC) {
            bail!("it is mounted noexec, and Python children load a shared object from there");
        }
        // It gets its name only when it is locked: another run removes what has
        // the name and no lock.
        let new = tempfile::Builder::new()
            .prefix(&format!("{NEW}{}-", std::process::id()))
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .tempdir_in(base)
            .context("create a folder")?;
        let lock = File::create(new.path().join(LOCK)).context("create a lock file")?;
        lock.lock().context("lock its lock file")?;
        let suffix = new.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = base.join(suffix.replacen(NEW, PREFIX, 1));
        fs::rename(new.path(), &path).context("name the folder")?;
        let folder = Self { path, _lock: lock, notes: Vec::new() };
        folder.write(&folder.probe_library(), PROBE_LIBRARY)?;
        folder.write(&folder.script(), PROBE_SCRIPT.as_bytes())?;
        folder.write(&folder.empty_conf(), b"")?;
        Ok(folder)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("create {}", path.display()))?;
        file.write_all(bytes).with_context(|| format!("write {}", path.display()))
    }

    /// Puts a file for the probes into the folder.
    ///
    /// # Errors
    /// The file system refuses, or there is one of this name.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.path.join(name);
        self.write(&path, bytes)?;
        Ok(path)
    }

    /// Adds the answers to a specification that keep NCCL on the loopback
    /// interface and, where asked for, away from `~/.nccl.conf`.
    pub fn keep_out(&self, spec: &mut Fields, hide_home_conf: bool) {
        spec.push("substitute", "NCCL_SOCKET_IFNAME=lo");
        if hide_home_conf {
            let conf = self.empty_conf();
            spec.push_assignment("substitute", b"NCCL_CONF_FILE", conf.as_os_str().as_bytes());
        }
    }

    /// Makes a launch's folder, with a home directory inside.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn launch(&self, number: usize) -> Result<PathBuf> {
        let path = self.path.join(number.to_string());
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path.join("home"))
            .with_context(|| format!("create {}", path.display()))?;
        Ok(path)
    }

    /// The driver's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("s")
    }

    /// The shared object for Python children.
    pub fn probe_library(&self) -> PathBuf {
        self.path.join("libnccldiag_probe.so")
    }

    /// The Python probe. Python puts the folder on sys.path, so no other Python
    /// file may lie in it.
    pub fn script(&self) -> PathBuf {
        self.path.join("nccldiag_probe.py")
    }

    /// A conf file without a line.
    pub fn empty_conf(&self) -> PathBuf {
        self.path.join("empty.conf")
    }

    /// What the command lines of this run's processes contain.
    pub fn mark(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // The next run removes what could not be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn bases() -> Vec<PathBuf> {
    let mut list = vec![std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()];
    list.extend(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    list.push("/var/tmp".into());
    list.sort_by_key(|path| path.as_os_str().len() > LONGEST_BASE);
    let mut seen = Vec::new();
    list.retain(|p| {
        !seen.contains(p) && {
            seen.push(p.clone());
            true
        }
    });
    list
}

/// Removes the folders of runs whose driver is dead: ours by owner, and their
/// lock can be had.
pub fn remove_dead_runs() {
    for base in bases().into_iter().filter(|base| base.is_absolute()) {
        for entry in fs::read_dir(&base).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let dead = if name.starts_with(PREFIX) {
                is_unlocked(&entry.path())
            } else if let Some(rest) = name.strip_prefix(NEW) {
                was_abandoned(rest, &entry)
            } else {
                continue;
            };
            if dead && is_own_directory(&entry.path()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn is_own_directory(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == own)
}

/// A folder has its name only while somebody holds its lock.
fn is_unlocked(path: &Path) -> bool {
    // Opened without following a link: the name was read from a shared folder.
    let lock = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path.join(LOCK));
    match lock {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Its maker was killed before it was locked: that process is gone, and not
/// only out of sight in another namespace, as making takes no time.
fn was_abandoned(rest: &str, entry: &fs::DirEntry) -> bool {
    let maker = rest.split('-').next().unwrap_or_default();
    let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    !Path::new("/proc").join(maker).exists() && age.is_some_and(|age| age.as_secs() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_dead_run_is_told_from_one_in_use() {
        let base = tempfile::tempdir().expect("temp folder");
        let alive = RunFolder::create_in(base.path()).expect("a usable folder");
        let dead = base.path().join(format!("{PREFIX}1-x"));
        fs::create_dir(&dead).expect("create");
        fs::write(dead.join(LOCK), "").expect("create its lock");
        assert!(is_unlocked(&dead));
        assert!(!is_unlocked(alive.path()));
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }
}
