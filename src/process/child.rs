//! Starts and ends children of our own: they get SIGKILL when the thread that
//! started them ends, and a deadline where one is asked for.

use super::pidfd::PidFd;
use super::tree::Tree;
use nix::sys::signal::Signal;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a child is asked whether it has ended.
pub const POLL: Duration = Duration::from_millis(2);

/// Starts a command that does not outlive the calling thread, in a process
/// group of its own when `own_group` is set (so that a terminal's Ctrl-C
/// reaches only us).
///
/// # Errors
/// The command cannot be started.
pub fn spawn(command: &mut Command, own_group: bool) -> io::Result<Child> {
    if own_group {
        command.process_group(0);
    }
    // SAFETY: prctl is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Makes this process the one that orphaned descendants are handed to, so that
/// none of them escapes. A kernel that refuses costs only that.
pub fn adopt_orphans() {
    // SAFETY: prctl with integer arguments only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Reaps whatever orphan has ended. Call it only when no `Child` is waited for.
pub fn reap_orphans() {
    // SAFETY: a null status pointer is allowed.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Ends a child of ours and everything below it.
pub fn end_tree(child: u32) {
    let Ok(tree) = Tree::read() else { return };
    kill(&tree, &tree.descendants(child.cast_signed()));
}

/// Ends whatever descends from this process, also what such processes start
/// meanwhile, until nothing is left or `limit` is over. It relies on
/// [`adopt_orphans`] and reaps: no `Child` may be waited for.
pub fn end_descendants(limit: Duration) {
    let deadline = Instant::now() + limit;
    let own = std::process::id().cast_signed();
    loop {
        reap_orphans();
        let Ok(tree) = Tree::read() else { return };
        let found: Vec<i32> = tree.descendants(own).into_iter().filter(|&pid| pid != own).collect();
        if found.is_empty() || Instant::now() > deadline {
            return;
        }
        kill(&tree, &found);
        thread::sleep(POLL);
    }
}

fn kill(tree: &Tree, pids: &[i32]) {
    for stat in pids.iter().filter_map(|&pid| tree.get(pid)) {
        // One that is gone by now needs no signal.
        let _ = PidFd::open(stat.identity()).and_then(|p| p.signal(Signal::SIGKILL));
    }
}

/// Waits for the end, or kills the child when `deadline` has passed; `None`
/// then.
///
/// # Errors
/// The child cannot be waited for.
pub fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Runs a command to its end and collects what it prints (at most 16 MiB a
/// stream).
///
/// # Errors
/// It cannot be started, or had not ended in time and was killed.
pub fn output(mut command: Command, limit: Duration) -> io::Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command, true)?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let status = wait_until(&mut child, Instant::now() + limit)?;
    let join = |handle: Option<thread::JoinHandle<Vec<u8>>>| {
        handle.and_then(|h| h.join().ok()).unwrap_or_default()
    };
    match status {
        Some(status) => Ok(Output { status, stdout: join(stdout), stderr: join(stderr) }),
        // The pipes may be held open by a grandchild: not joined on purpose.
        None => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it had not ended after {} s", limit.as_secs()),
        )),
    }
}

fn collect(stream: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before an error is still worth showing.
        let _ = stream.take(16 << 20).read_to_end(&mut all);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_gives_both_streams() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; exit 3"]);
        let output = output(command, Duration::from_secs(20)).expect("sh starts");
        assert_eq!((output.stdout, output.stderr), (b"a\n".to_vec(), b"b\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let error = output(command, Duration::from_millis(50)).expect_err("it hangs");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
