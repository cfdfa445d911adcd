//! Starts and ends children of our own: they get SIGKILL when the thread that
//! started them ends, and a deadline where one is asked for.

use super::pidfd::PidFd;
use super::stat::{self, Identity, Stat};
use super::tree::Tree;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// For `output` where nothing interrupts.
pub static NEVER: AtomicBool = AtomicBool::new(false);

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
    die_with_parent(command, Signal::SIGKILL);
    command.spawn()
}

/// Makes the kernel send the child a signal when the thread that starts it
/// ends, so also when this process is killed.
pub fn die_with_parent(command: &mut Command, signal: Signal) {
    let parent = Pid::this();
    let hook = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // The parent may have died before that.
        if Pid::parent() == parent { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    };
    // SAFETY: the hook runs between fork and exec and makes two system calls;
    // it neither allocates nor takes a lock.
    unsafe { command.pre_exec(hook) };
}

/// Reaps whatever orphan has ended. Call it only when no `Child` is waited for.
fn reap_orphans() {
    // SAFETY: a null status pointer is allowed.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Whether this process ignores a signal, as after `nohup`.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let bit = u32::try_from(signal - 1).ok().and_then(|shift| 1u64.checked_shl(shift));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

/// Ends a child of ours and everything below it; waits up to `limit` for the
/// child's end and says whether it came. One that is stuck in the kernel, or
/// that became another user, may stay.
pub fn end_tree(child: &mut Child, limit: Duration) -> bool {
    if let Ok(tree) = Tree::read() {
        let all = tree.descendants(child.id().cast_signed());
        all.into_iter().filter_map(|pid| tree.get(pid)).map(Stat::identity).for_each(kill);
    }
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

/// The processes that descend from this one because it started them. Make it
/// before anything is started.
#[derive(Debug)]
pub struct Descendants {
    /// What descended from this process before: children that it inherited
    /// through exec.
    before: Vec<Identity>,
}

impl Descendants {
    /// Makes this process the one that orphaned descendants are handed to, so
    /// that none of them escapes. A kernel that refuses costs only that.
    pub fn adopt() -> Self {
        let own = std::process::id().cast_signed();
        let tree = Tree::read().unwrap_or_default();
        let before = tree.descendants(own).into_iter().filter(|&pid| pid != own);
        let before = before.filter_map(|pid| tree.get(pid)).map(Stat::identity).collect();
        // Nothing can be done about a refusal.
        let _ = nix::sys::prctl::set_child_subreaper(true);
        Self { before }
    }

    /// Those of now, parents first. As process 1 of a container every orphan
    /// is handed to us, so there only those with `mark` in their command line.
    pub fn now(&self, mark: &[u8]) -> Vec<Identity> {
        let own = std::process::id().cast_signed();
        let Ok(tree) = Tree::read() else { return Vec::new() };
        let mut foreign = Vec::new();
        let mut found = Vec::new();
        for stat in tree.descendants(own).into_iter().filter_map(|pid| tree.get(pid)) {
            if stat.pid == own {
                continue;
            }
            if self.before.contains(&stat.identity()) || foreign.contains(&stat.ppid) {
                foreign.push(stat.pid);
            } else if own != 1 || names(stat.pid, mark) {
                found.push(stat.identity());
            }
        }
        found
    }

    /// Ends them, also what they start meanwhile, until nothing is left or
    /// `limit` is over. It reaps: no `Child` may be waited for.
    pub fn end(&self, mark: &[u8], limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            reap_orphans();
            let found = self.now(mark);
            if found.is_empty() || Instant::now() > deadline {
                return;
            }
            found.into_iter().for_each(kill);
            thread::sleep(POLL);
        }
    }
}

fn names(pid: i32, mark: &[u8]) -> bool {
    let found = |word: &Vec<u8>| memchr::memmem::find(word, mark).is_some();
    stat::cmdline(pid).is_ok_and(|words| words.iter().any(found))
}

/// A process that is gone by now needs no signal, and one that became another
/// user cannot get one.
fn kill(identity: Identity) {
    let sent = PidFd::open(identity).and_then(|process| process.signal(Signal::SIGKILL));
    // Kernels before 5.3 and some container profiles have no pidfd.
    let no_pidfd = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) && identity.exists()
    };
    if sent.is_err_and(|error| no_pidfd(&error)) {
        let _ = nix::sys::signal::kill(Pid::from_raw(identity.pid), Signal::SIGKILL);
    }
}

/// Waits for the end, or kills the child when `deadline` has passed or `stop`
/// is set; `None` then.
///
/// # Errors
/// The child cannot be waited for.
fn wait_until(
    child: &mut Child,
    deadline: Instant,
    stop: &AtomicBool,
) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline || stop.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Runs a command to its end, without input, and collects what it prints (at
/// most 16 MiB a stream). It is cut short when `stop` becomes true.
///
/// # Errors
/// It cannot be started, or its output had not ended in time (a process in the
/// background may hold it open); then it was killed.
pub fn output(command: &mut Command, limit: Duration, stop: &AtomicBool) -> io::Result<Output> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command, true)?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let group = Pid::from_raw(child.id().cast_signed());
    let too_late = || {
        // Whoever still holds the output is in the child's group; if nobody
        // is, there is no such group.
        let _ = killpg(group, Signal::SIGKILL);
        if stop.load(Ordering::Relaxed) {
            return io::Error::other("interrupted");
        }
        let text = format!("it had not ended after {} s", limit.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    let status = wait_until(&mut child, deadline, stop)?.ok_or_else(too_late)?;
    let bytes = |from: Option<Receiver<Vec<u8>>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        from.map_or_else(
            || Ok(Vec::new()),
            |f| match f.recv_timeout(left) {
                Ok(bytes) => Ok(bytes),
                Err(RecvTimeoutError::Disconnected) => Ok(Vec::new()),
                Err(RecvTimeoutError::Timeout) => Err(too_late()),
            },
        )
    };
    Ok(Output { status, stdout: bytes(stdout)?, stderr: bytes(stderr)? })
}

fn collect(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (to, from) = channel();
    // Without a thread the stream counts as empty: its sender is dropped.
    let _ = thread::Builder::new().spawn(move || {
        let mut all = Vec::new();
        // What was read before an error is still worth showing.
        let _ = stream.take(16 << 20).read_to_end(&mut all);
        // Nobody listens after the deadline.
        let _ = to.send(all);
    });
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_gives_both_streams() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; exit 3"]);
        let output = output(&mut command, Duration::from_secs(20), &NEVER).expect("sh starts");
        assert_eq!((output.stdout, output.stderr), (b"a\n".to_vec(), b"b\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_grandchild_that_holds_the_output_does_not_hold_us() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo started"]);
        let error = output(&mut command, Duration::from_millis(200), &NEVER).expect_err("no end");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let error = output(&mut command, Duration::from_millis(50), &NEVER).expect_err("it hangs");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
