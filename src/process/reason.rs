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
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    denied_under(scope.unwrap_or_default().trim())
}

/// The same error has two causes; which one it was, the kernel does not say.
fn denied_under(yama_scope: &str) -> String {
    let who = match yama_scope {
        "" | "0" => ", or one that made itself not dumpable",
        "1" => ", or Yama (kernel.yama.ptrace_scope=1) allows only descendants",
        "2" => ", or Yama (kernel.yama.ptrace_scope=2) allows only CAP_SYS_PTRACE",
        _ => {
            return format!(
                "permission denied: Yama (kernel.yama.ptrace_scope={yama_scope}) forbids it to everyone"
            );
        }
    };
    format!("permission denied: another user's process{who}; needs root or CAP_SYS_PTRACE")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_yama_scope_has_its_reason() {
        assert!(denied_under("").contains("another user's process, or one that made itself"));
        assert!(denied_under("1").contains("allows only descendants; needs root"));
        assert!(denied_under("2").contains("allows only CAP_SYS_PTRACE"));
        assert!(denied_under("3").ends_with("forbids it to everyone"));
    }
}
