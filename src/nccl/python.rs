//! Which Python is asked, and where it looks for packages. It starts the
//! interpreter for one short question; `wheel` starts it for pip.

use crate::process;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    // `-c` imports from the working directory first.
    command.args(["-c", QUESTION]).current_dir("/");
    Ok(directories(&process::output(&mut command, DEADLINE, &process::NEVER)?.stdout))
}

fn directories(answer: &[u8]) -> Vec<PathBuf> {
    let starts = memchr::memmem::find_iter(answer, MARK).map(|at| &answer[at + MARK.len()..]);
    starts
        .filter_map(|tail| Some(&tail[..memchr::memchr(0, tail)?]))
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .filter(|path| path.is_absolute())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_absolute_directories_are_taken() {
        let answer =
            b"hello from a site hook\nnccldiag-site:/a b\0\nnccldiag-site:\0\nnccldiag-site:/c";
        assert_eq!(directories(answer), [PathBuf::from("/a b")]);
    }

    #[test]
    fn the_pythons_own_directories_are_found() {
        let Ok(found) = package_directories(&interpreter(None)) else {
            crate::testing::skipped("no python3 on PATH");
            return;
        };
        assert!(!found.is_empty());
    }
}
