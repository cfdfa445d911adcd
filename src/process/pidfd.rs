//! Ending processes that this tool started or that the user named, through
//! pidfds, so that a reused pid is never hit. Deciding what to end is not done
//! here.

use super::stat::Identity;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A handle on one process, which no later process of the same pid can take.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    identity: Identity,
}

/// How a process ended under [`PidFd::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It had exited before anything was sent.
    Already,
    /// It exited after SIGTERM.
    Asked,
    /// It exited after SIGKILL.
    Killed,
    /// It has not exited in time: it hangs in the kernel or in a frozen cgroup.
    /// SIGKILL stays pending.
    Not,
}

fn gone(identity: Identity) -> io::Error {
    io::Error::other(format!("process {}: no such process", identity.pid))
}

impl PidFd {
    /// Opens a handle on exactly this process.
    ///
    /// # Errors
    /// `ESRCH` or a message when it is gone or its pid belongs to another
    /// process now; `ENOSYS` before Linux 5.3.
    pub fn open(identity: Identity) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor
        // or -1; it touches no memory of ours.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, identity.pid, 0) };
        let raw = i32::try_from(Errno::result(raw)?).map_err(io::Error::other)?;
        // SAFETY: the kernel just returned this descriptor, and nothing else
        // owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // The pid was not reused before the handle was opened, and after that
        // the handle is bound to the process.
        if identity.exists() { Ok(Self { fd, identity }) } else { Err(gone(identity)) }
    }

    /// The process that this handle is for.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Sends a signal, after a look at the start time once more.
    ///
    /// # Errors
    /// When the process is gone, or `EPERM`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if !self.identity.exists() {
            return Err(gone(self.identity));
        }
        let no_info: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open as long as self, and the kernel
        // accepts a null siginfo_t (it then fills in what kill() would).
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal as libc::c_int,
                no_info,
                0,
            )
        };
        Errno::result(sent).map(drop).map_err(io::Error::from)
    }

    /// Waits until the process has exited (it may remain as a zombie) or the
    /// time is over; says whether it has.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the last round does not spin.
            let millis = left.as_micros().div_ceil(1000);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// True when the process has exited, also as a zombie.
    ///
    /// # Errors
    /// As [`PidFd::wait`].
    pub fn has_exited(&self) -> io::Result<bool> {
        self.wait(Duration::ZERO)
    }

    /// Asks with SIGTERM, and after `grace` kills with SIGKILL; waits `grace`
    /// again for the end.
    ///
    /// # Errors
    /// When a signal may not be sent.
    pub fn end(&self, grace: Duration) -> io::Result<Ended> {
        if self.has_exited()? {
            return Ok(Ended::Already);
        }
        self.signal_if_there(Signal::SIGTERM)?;
        if self.wait(grace)? {
            return Ok(Ended::Asked);
        }
        self.signal_if_there(Signal::SIGKILL)?;
        Ok(if self.wait(grace)? { Ended::Killed } else { Ended::Not })
    }

    fn signal_if_there(&self, signal: Signal) -> io::Result<()> {
        match self.signal(signal) {
            Err(_) if self.has_exited()? => Ok(()),
            sent => sent,
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::targets::{Running, c_program, eventually};
    use super::*;
    use std::process::Command;

    const LONG: Duration = Duration::from_secs(10);

    fn handle(target: &Running) -> PidFd {
        PidFd::open(Identity::of(target.pid()).expect("running")).expect("our own child")
    }

    #[test]
    fn asks_first_and_kills_what_does_not_listen() {
        let Some(polite) = c_program("int main(void) { ready(); rest(); }", &[]) else { return };
        let target = polite.start(&[]);
        let fd = handle(&target);
        assert!(!fd.has_exited().expect("can wait"));
        assert_eq!(fd.end(LONG).expect("may signal"), Ended::Asked);
        assert_eq!(fd.end(LONG).expect("may signal"), Ended::Already);

        let body = "#include <signal.h>\nint main(void) { signal(SIGTERM, SIG_IGN); ready(); \
                    for (;;) pause(); }";
        let Some(deaf) = c_program(body, &[]) else { return };
        let target = deaf.start(&[]);
        let ended = handle(&target).end(Duration::from_millis(50)).expect("may signal");
        // A very slow machine may need longer than the grace for the kill too.
        assert!(matches!(ended, Ended::Killed | Ended::Not), "{ended:?}");
        eventually("the kill", || handle(&target).has_exited().ok()?.then_some(()));
    }

    #[test]
    fn a_stopped_process_is_killed() {
        let Some(program) = c_program("int main(void) { ready(); rest(); }", &[]) else { return };
        let target = program.start(&[]);
        let fd = handle(&target);
        fd.signal(Signal::SIGSTOP).expect("may signal");
        assert!(!fd.wait(Duration::from_millis(1)).expect("can wait"));
        fd.signal(Signal::SIGKILL).expect("may signal");
        assert!(fd.wait(LONG).expect("can wait"));
    }

    #[test]
    fn another_process_of_the_same_pid_is_not_touched() {
        let target = Running::start({
            let mut command = Command::new("sleep");
            command.arg("1000");
            command
        });
        let real = Identity::of(target.pid()).expect("running");
        let earlier = Identity { start_time: real.start_time - 1, ..real };
        let why = PidFd::open(earlier).expect_err("another process").to_string();
        assert_eq!(why, format!("process {}: no such process", real.pid));
        PidFd::open(Identity { pid: i32::MAX, start_time: 1 }).expect_err("no process");
        assert!(!handle(&target).has_exited().expect("can wait"));
    }
}
