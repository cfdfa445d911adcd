//! Starting small helper programs (Python, ldconfig) that must neither outlive
//! this process nor make it wait for ever.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// More than any answer that is expected.
const ANSWER_LIMIT: u64 = 4 << 20;

/// What `command` writes to stdout; its stderr is dropped, its exit status does
/// not matter.
///
/// # Errors
/// It could not be started, or it did not end its output before the deadline
/// (`TimedOut`); then it is killed.
pub(super) fn answer(command: &mut Command, deadline: Duration) -> io::Result<Vec<u8>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    die_with_parent(command);
    let mut child = command.spawn()?;
    let (to, from) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut answer = Vec::new();
            let read = stdout.take(ANSWER_LIMIT).read_to_end(&mut answer);
            let _ = to.send(read.map(|_| answer)); // nobody listens after the deadline
        });
    }
    let answer = from.recv_timeout(deadline);
    let _ = child.kill(); // it has answered, or it is too late
    child.wait()?;
    answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Makes the kernel end the child when the thread that starts it ends, so also
/// when this process is killed.
pub(super) fn die_with_parent(command: &mut Command) {
    let hook = || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
            .map_err(|errno| io::Error::from_raw_os_error(errno as i32))
    };
    // SAFETY: the hook runs between fork and exec and makes one system call;
    // it neither allocates nor takes a lock.
    unsafe { command.pre_exec(hook) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_returned_whole() {
        let answer = answer(Command::new("echo").arg("yes"), Duration::from_secs(60));
        assert_eq!(answer.expect("echo exists"), b"yes\n");
    }

    #[test]
    fn one_that_never_ends_is_killed() {
        let error = answer(Command::new("sleep").arg("1000"), Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
