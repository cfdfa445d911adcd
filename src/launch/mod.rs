//! The ways to start a child, and the driver that runs them side by side and
//! observes each child from outside. One `LaunchPath` is how the child is
//! started plus the places where a variable can be set on that way; one file a
//! family. What a child looks like is read by `process` and `nccl`; what the
//! four views mean together is decided in `verdict`.

mod conf;
mod custom;
mod driver;
mod exec;
mod failure;
pub mod far;
mod findings;
mod folder;
mod frame;
mod free;
mod gpus;
mod hub;
mod mark;
mod observe;
mod python;
mod remarks;
mod running;
mod shell;
mod site;
mod transcript;
mod values;
mod verdict;

pub use custom::Custom;
pub use driver::{Driver, Options};
pub use findings::{Context, findings};
pub use folder::{RunFolder, remove_dead_runs};
pub use gpus::{Gpus, Trial};
pub use python::Python;
pub use remarks::remarks;
pub use values::Values;

use crate::model::{Family, Place};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// One place where the watched variables are set. `nth` tells two settings of
/// the same kind apart (two sitecustomize.py files), so that each has a value
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Where.
    pub place: Place,
    /// Which of several such places, from 0.
    pub nth: u8,
}

/// Short forms for the tables below.
pub(crate) const SHELL: Set = Set { place: Place::Shell, nth: 0 };
pub(crate) const PARENT: Set = Set { place: Place::Parent, nth: 0 };
pub(crate) const CHILD: Set = Set { place: Place::Child, nth: 0 };
pub(crate) const SITE: Set = Set { place: Place::Site, nth: 0 };
pub(crate) const SECOND_SITE: Set = Set { place: Place::Site, nth: 1 };
pub(crate) const CONF: Set = Set { place: Place::Conf, nth: 0 };
pub(crate) const LAUNCHER: Set = Set { place: Place::Launcher, nth: 0 };
pub(crate) const SECOND_LAUNCHER: Set = Set { place: Place::Launcher, nth: 1 };

/// In the shell, or just before the start: what most paths compare.
pub(crate) const BOTH: &[&[Set]] = &[&[SHELL], &[PARENT]];

/// Cause and cure where a loss would be a surprise.
pub(crate) const INHERITS: [&str; 2] = [
    "the child should inherit its parent's whole environment",
    "look for a wrapper, profile or start-up file between the two that changes it",
];

/// What a path needs on this machine before it can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program in PATH.
    Tool(&'static str),
    /// A Python that starts.
    Python,
    /// That Python, with this module installed.
    PythonModule(&'static str),
}

/// One way to start a child.
pub struct LaunchPath {
    /// The stable name.
    pub id: &'static str,
    /// The group it is shown in.
    pub family: Family,
    /// One phrase for `--list`.
    pub about: &'static str,
    /// Each entry is one launch, with the places set on it.
    pub launches: &'static [&'static [Set]],
    /// What has to be there.
    pub needs: &'static [Need],
    /// Says how to start a launch, after writing the files that it needs.
    pub start: fn(&Stage) -> anyhow::Result<Top>,
    /// Why a setting is lost or changed here, when one is.
    pub cause: &'static str,
    /// What to do then.
    pub cure: &'static str,
}

/// What a launch can build on.
pub struct Stage<'a> {
    /// The path's name.
    pub id: &'static str,
    /// This launch's own folder, which holds its `spec` file.
    pub folder: &'a Path,
    /// The home directory that its processes see.
    pub home: PathBuf,
    /// This program, which is also the native probe.
    pub exe: &'a Path,
    /// The Python to use; present when a path needs it.
    pub python: Option<&'a Python>,
    /// The Python probe script.
    pub script: PathBuf,
    /// The values to set.
    pub values: &'a Values,
    /// The places set on this launch.
    pub launch: &'a [Set],
    /// The longest that a preparing step may take.
    pub limit: Duration,
    /// Becomes true when the run is to end.
    pub stop: &'a AtomicBool,
}

/// How to start the first process of a launch.
pub struct Top {
    /// Its command line.
    pub argv: Vec<OsString>,
    /// Variables to set besides the common ones.
    pub env: Vec<(OsString, OsString)>,
    /// A working directory other than the launch's folder.
    pub cwd: Option<PathBuf>,
    /// The rest of the shell script that sets the shell's values; it finds
    /// the command line in `"$@"`.
    pub script: String,
    /// Whether the shell exports what it sets.
    pub export: bool,
    /// Keeps NCCL away from `~/.nccl.conf` by naming an empty file instead.
    pub hide_home_conf: bool,
}

impl Top {
    /// A command started as it is.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            script: "exec \"$@\"\n".into(),
            export: true,
            hide_home_conf: true,
        }
    }

    /// Sets one variable for the first process.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Replaces the shell script's last part.
    #[must_use]
    pub fn script(mut self, text: impl Into<String>) -> Self {
        self.script = text.into();
        self
    }
}

impl Stage<'_> {
    /// What to set in this place; nothing when this launch does not set it.
    pub fn sets(&self, set: Set) -> Vec<(String, Vec<u8>)> {
        if self.launch.contains(&set) { self.values.of(set) } else { Vec::new() }
    }

    /// The native probe's command line.
    pub fn native(&self) -> [OsString; 3] {
        [self.exe.into(), crate::probes::native::PROBE.into(), self.folder.into()]
    }

    /// The Python to use.
    ///
    /// # Errors
    /// Only when a path forgot to say that it needs one.
    pub fn python(&self) -> anyhow::Result<&Python> {
        self.python
            .ok_or_else(|| anyhow::anyhow!("path {} does not say that it needs Python", self.id))
    }

    /// A Python command line that runs the probe script in the way `kind`.
    ///
    /// # Errors
    /// As [`Stage::python`].
    pub fn python_line(&self, kind: &str) -> anyhow::Result<[OsString; 4]> {
        let python = self.python()?;
        Ok([
            python.executable.clone().into(),
            self.script.clone().into(),
            kind.into(),
            self.folder.into(),
        ])
    }
}

/// Every built-in path, in the order in which they are shown.
pub fn all() -> impl Iterator<Item = &'static LaunchPath> {
    [exec::PATHS, shell::PATHS, python::PATHS, site::PATHS, conf::PATHS].into_iter().flatten()
}
