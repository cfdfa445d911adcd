//! The program and a library where other users can read them.

use super::{PROGRAM, main_library};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The user and group that tests become: nobody's.
pub const NOBODY: u32 = 65534;

/// A folder that every user can read.
pub struct OpenCopy {
    folder: tempfile::TempDir,
}

impl OpenCopy {
    /// Copies both; nothing when there is no library.
    pub fn new() -> Option<Self> {
        let library = main_library()?;
        let folder = tempfile::Builder::new().prefix("ndopen-").tempdir().expect("a temp folder");
        let copy = Self { folder };
        fs::copy(PROGRAM, copy.program()).expect("copy the program");
        fs::copy(library, copy.library()).expect("copy the library");
        let home = copy.home();
        fs::create_dir(&home).expect("create");
        for path in [copy.folder.path(), &copy.program(), &copy.library(), &home] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("open it for all");
        }
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("give it away");
        Some(copy)
    }

    /// The program.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("nccldiag")
    }

    /// The library.
    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnccl.so.2")
    }

    /// A folder that belongs to the other user.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// All of it.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}
