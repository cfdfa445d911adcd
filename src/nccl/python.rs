//! Which Python is asked, and where it looks for packages. It starts the
//! interpreter for one short question; `wheel` starts it for pip.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a Python may take to start. A cold one on a network file system
/// takes seconds; one that takes longer is as good as none.
const DEADLINE: Duration = Duration::from_secs(10);

/// What the answer starts with: site hooks may print lines of their own.
const MARK: &str = "nccldiag-site:";

const QUESTION: &str = "import site, sys, os
dirs = list(sys.path)
try: dirs += site.getsitepackages()
except Exception: pass
try: dirs.append(site.getusersitepackages())
except Exception: pass
w = sys.stdout.buffer.write
for d in dict.fromkeys(dirs): w(b'\\nnccldiag-site:' + os.fsencode(d) + b'\\0')
";

/// `python` or the default, `python3` on PATH; made absolute when it has a
/// directory, because the child's working directory is another one. Links stay:
/// a virtual environment's Python is a link.
pub(super) fn interpreter(python: Option<&Path>) -> PathBuf {
    match python {
        None => "python3".into(),
        Some(name) if name.components().count() == 1 && !name.is_absolute() => name.into(),
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.into()),
    }
}

/// The directories that may hold `nvidia/nccl/lib`, in import order.
///
/// # Errors
/// When there is no such Python, or it gave no answer in ten seconds.
pub(super) fn package_directories(python: &Path) -> io::Result<Vec<PathBuf>> {
    let mut command = Command::new(python);
    command
        .args(["-c", QUESTION])
        // `-c` imports from the working directory first.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    die_with_parent(&mut command);
    let mut child = command.spawn()?;
    let (to, from) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut answer = Vec::new();
            let read = stdout.take(1 << 20).read_to_end(&mut answer);
            let _ = to.send(read.map(|_| answer)); // nobody listens after the deadline
        });
    }
    let answer = from.recv_timeout(DEADLINE);
    let _ = child.kill(); // it has answered, or it never will
    child.wait()?;
    let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(directories(&answer))
}

fn directories(answer: &[u8]) -> Vec<PathBuf> {
    let starts = memchr::memmem::find_iter(answer, MARK).map(|at| &answer[at + MARK.len()..]);
    starts
        .filter_map(|tail| Some(&tail[..memchr::memchr(0, tail)?]))
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .filter(|path| path.is_absolute())
        .collect()
}

/// Makes the kernel end the child when this process dies, even by SIGKILL.
pub(super) fn die_with_parent(command: &mut Command) {
    let hook = || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
            .map_err(|errno| io::Error::from_raw_os_error(errno as i32))
    };
    // SAFETY: the hook runs between fork and exec and makes one system call;
    // it neither allocates nor takes a lock.
    unsafe { command.pre_exec(hook) };
}

/// Splits a PATH-like variable; empty and relative parts are left out.
pub(super) fn absolute_parts(value: &OsStr) -> Vec<PathBuf> {
    let parts = value.as_bytes().split(|byte| *byte == b':');
    parts.map(|part| PathBuf::from(OsStr::from_bytes(part))).filter(|p| p.is_absolute()).collect()
}
