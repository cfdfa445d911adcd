//! Turns the errors of reading a process into sentences for a person: what was
//! being done, on what, and why it failed. Decides nothing.

use super::stat;
use crate::model::Unreadable;
use std::io;

/// Why a file under `/proc/PID` could not be read.
pub(super) fn cannot_read(pid: i32, path: &str, error: &io::Error) -> Unreadable {
    let why = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => match without_memory(pid) {
            Some(why) => return why,
            None => error.to_string(),
        },
        Some(libc::EACCES | libc::EPERM) => {
            "permission denied: another user's process, or one that made itself not dumpable; \
             needs root or CAP_SYS_PTRACE"
                .into()
        }
        _ => error.to_string(),
    };
    Unreadable::new(format!("read {path}: {why}"))
}

/// Why the memory of a process could not be read; `what` names the bytes that
/// were wanted.
pub(super) fn cannot_read_memory(pid: i32, what: &str, error: &io::Error) -> Unreadable {
    let why = match error.raw_os_error() {
        Some(libc::ESRCH) => "no such process".into(),
        Some(libc::EPERM | libc::EACCES) => denied(),
        Some(libc::EFAULT | libc::EIO) => "it points to memory that is not mapped".into(),
        _ => error.to_string(),
    };
    Unreadable::new(format!("read {what} in the memory of process {pid}: {why}"))
}

fn denied() -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => "permission denied: another user's process, or one that made itself not \
                     dumpable; needs root or CAP_SYS_PTRACE"
            .into(),
        "3" => {
            "permission denied: kernel.yama.ptrace_scope is 3, which forbids it to everyone".into()
        }
        scope => format!(
            "permission denied: another user's process, or kernel.yama.ptrace_scope={scope}, \
             which allows only descendants; needs root or CAP_SYS_PTRACE"
        ),
    }
}

/// Why a process has no memory at all, if that is so: gone, a zombie, a kernel
/// thread.
pub(super) fn without_memory(pid: i32) -> Option<Unreadable> {
    let stat = match stat::read(pid) {
        Ok(stat) => stat,
        Err(why) => return Some(why),
    };
    if stat.is_zombie() {
        Some(Unreadable::new(format!(
            "process {pid} is a zombie: it has exited and its memory is gone"
        )))
    } else if stat.is_kernel_thread() {
        Some(Unreadable::new(format!("process {pid} is a kernel thread: it has no environment")))
    } else {
        None
    }
}
