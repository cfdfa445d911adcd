//! The Python family: how Python starts processes, and where in a Python
//! program a variable can be set. Also the one Python that all paths use.

use super::driver::find_tool;
use super::{BOTH, CHILD, INHERITS, LaunchPath, Need, PARENT, SHELL, Set, Stage, Top};
use crate::model::Family;
use crate::process;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const PARENT_AND_CHILD: &[&[Set]] = &[&[CHILD], &[PARENT, CHILD]];

const fn path(
    id: &'static str,
    about: &'static str,
    launches: &'static [&'static [Set]],
    [cause, cure]: [&'static str; 2],
) -> LaunchPath {
    LaunchPath {
        id,
        family: Family::Python,
        about,
        launches,
        needs: &[Need::Python],
        start,
        cause,
        cure,
    }
}

const IN_TARGET: [&str; 2] = [
    "a value set in the target function is live only, and too late once NCCL has read it",
    "set the variable in the parent before the process is started, or before the first NCCL call",
];

/// The paths of this family.
pub const PATHS: &[LaunchPath] = &[
    path("py-subprocess", "subprocess with env=None", BOTH, INHERITS),
    path(
        "py-subprocess-empty-env",
        "subprocess with env={}",
        BOTH,
        [
            "env={...} replaces the whole environment of the child",
            "pass env=dict(os.environ, NAME=VALUE), or leave env out",
        ],
    ),
    path("py-subprocess-environ-copy", "subprocess with env=os.environ.copy()", BOTH, INHERITS),
    path("py-os-system", "os.system", BOTH, INHERITS),
    path(
        "py-fork",
        "multiprocessing fork",
        BOTH,
        [
            "a forked child keeps its ancestor's exec block; what the parent set later is live only",
            "judge such a worker by its live environ, not by /proc/PID/environ",
        ],
    ),
    path("py-spawn", "multiprocessing spawn", BOTH, INHERITS),
    path(
        "py-forkserver",
        "multiprocessing forkserver, set before the server starts",
        BOTH,
        INHERITS,
    ),
    path(
        "py-forkserver-late",
        "multiprocessing forkserver, set after the server started",
        BOTH,
        [
            "children of the fork server have the environment that the server had when it started",
            "set the variable before the first process is started or the first lock or queue is \
             made, or use spawn",
        ],
    ),
    path(
        "py-pool",
        "multiprocessing.Pool, set after the workers started",
        BOTH,
        [
            "workers of a pool have the environment of the moment at which they were started",
            "set the variable before the pool is created",
        ],
    ),
    path("py-target-early", "in the target, before NCCL reads it", PARENT_AND_CHILD, IN_TARGET),
    path("py-target-late", "in the target, after NCCL read it", PARENT_AND_CHILD, IN_TARGET),
    path(
        "py-main-toplevel",
        "at the top level of the main script, with spawn",
        &[&[PARENT, CHILD]],
        [
            "spawn and forkserver children import the main script again, so its top-level \
             assignments run in the child and overwrite what the parent delivered",
            "use os.environ.setdefault, or move the assignment under if __name__ == '__main__'",
        ],
    ),
    path(
        "py-environ-replaced",
        "os.environ = dict(...), then set",
        &[&[SHELL], &[PARENT]],
        [
            "os.environ was replaced by a plain dict, so assignments never reach libc",
            "assign to os.environ[...] of the original object, or pass env= explicitly",
        ],
    ),
    path("py-ctypes-setenv", "libc's setenv through ctypes, env=None", BOTH, INHERITS),
    path(
        "py-ctypes-setenv-copy",
        "libc's setenv through ctypes, env=os.environ.copy()",
        &[&[PARENT]],
        [
            "os.environ does not see what C code sets with setenv, so a copy of it lacks the value",
            "leave env out, or set the variable through os.environ",
        ],
    ),
    LaunchPath {
        launches: &[&[SHELL]],
        needs: &[Need::PythonModule("setproctitle")],
        ..path(
            "py-setproctitle",
            "a worker that sets its process title",
            &[],
            [
                "the process title was written over the exec block, so /proc/PID/environ is not \
                 what exec delivered",
                "judge such a worker by its live environ, or start it with SPT_NOENV=1",
            ],
        )
    },
];

fn start(stage: &Stage) -> Result<Top> {
    Ok(Top::new(stage.python_line(stage.id)?))
}

/// The interpreter that the Python paths use, as it describes itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Python {
    /// Its real executable (a pyenv shim, say, is resolved by asking).
    pub executable: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// Whether `import setproctitle` would find something.
    pub setproctitle: bool,
}

const DESCRIBE: &str = "import importlib.util as u, json, sys; print(json.dumps({\
    'executable': sys.executable, 'version': sys.version_info[:2], \
    'setproctitle': u.find_spec('setproctitle') is not None}))";

impl Python {
    /// The interpreter for these paths, or why there is none.
    ///
    /// # Errors
    /// A reason to skip the paths that need it.
    pub fn needed(
        program: &Path,
        paths: &[&'static LaunchPath],
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let needs = |need: &Need| matches!(need, Need::Python | Need::PythonModule(_));
        if !paths.iter().any(|path| path.needs.iter().any(needs)) {
            return Err("no path needs Python".into());
        }
        if program.components().count() == 1 && find_tool(&program.to_string_lossy()).is_none() {
            return Err(format!("there is no {} in PATH (see --python)", program.display()));
        }
        Self::ask(program, limit, stop).map_err(|error| format!("{error:#}"))
    }

    /// Asks an interpreter to describe itself.
    ///
    /// # Errors
    /// It cannot be started, fails, hangs, or says something else.
    fn ask(program: &Path, limit: Duration, stop: &AtomicBool) -> Result<Self> {
        let text = run(program, &["-c".as_ref(), DESCRIBE.as_ref()], limit, stop)
            .with_context(|| format!("ask {} what it is", program.display()))?;
        // Site files and exit handlers may print lines of their own.
        let described = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let mut python: Self = described.with_context(|| {
            format!("{} did not describe itself as Python 3", program.display())
        })?;
        if python.executable.as_os_str().is_empty() {
            // Without PATH, Python does not know where it is.
            let found = find_tool(&program.to_string_lossy());
            python.executable = found.unwrap_or_else(|| program.to_owned());
        }
        Ok(python)
    }

    /// Whether a module that a path needs is there.
    pub fn has(&self, module: &str) -> bool {
        module == "setproctitle" && self.setproctitle
    }

    /// Runs it to its end and gives what it printed.
    ///
    /// # Errors
    /// It cannot be started, fails or hangs; with the end of what it printed.
    pub fn run(&self, args: &[&OsStr], limit: Duration, stop: &AtomicBool) -> Result<String> {
        run(&self.executable, args, limit, stop)
    }
}

fn run(program: &Path, args: &[&OsStr], limit: Duration, stop: &AtomicBool) -> Result<String> {
    let mut command = Command::new(program);
    let output = process::output(command.args(args), limit, stop)
        .with_context(|| format!("run {}", program.display()))?;
    if !output.status.success() {
        let tail = String::from_utf8_lossy(&output.stderr);
        let tail = tail.lines().last().unwrap_or("it printed nothing").to_owned();
        bail!("{} ended with {}: {tail}", program.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
