//! One process of a virtual node: how it is started, what it gets, how it is
//! asked, and how its end is told. Keeping several in step is `node`'s work.

use super::error::{NodeError, system};
use super::node::{NodeSpec, steers_the_log};
use super::noise;
use super::runtime::hardware::SHOW;
use crate::nccl::surroundings;
use crate::probes::channel::read_message;
use crate::probes::wire::Fields;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How much of one process's log is kept, in bytes.
const MOST_LOG: usize = 64 << 20;

/// How long other ranks may still take once one has failed.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// Signals that a process gets for what its own code does.
const CRASHES: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGFPE,
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

/// Keeps the network cards of the host out of the described machine.
const NO_HOST_NETWORK: [(&str, &str); 2] = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1")];

/// One process of the node.
pub(super) struct Worker {
    /// Its first rank.
    pub(super) first: usize,
    pub(super) child: Child,
    /// The connection, which is also its lifeline.
    pub(super) stream: UnixStream,
    /// What NCCL logs there.
    log: File,
    /// How much of it there was before the last communicator, in bytes.
    pub(super) init_at: u64,
}

impl Worker {
    /// Starts a process for the ranks from `first` on.
    pub(super) fn start(spec: &NodeSpec, first: usize, topology: &File) -> Result<Self, NodeError> {
        let log = nameless("nccldiag-log")?;
        let (own, theirs) = UnixStream::pair().map_err(system("make a connection"))?;
        let (program, arguments) = spec.command.split_first().ok_or_else(|| NodeError::System {
            what: "start a rank",
            error: io::ErrorKind::InvalidInput.into(),
        })?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        command.process_group(0);
        environment(&mut command, spec, &[("NCCL_DEBUG_FILE", &log), ("NCCL_TOPO_FILE", topology)]);
        let kept = [log.as_raw_fd(), topology.as_raw_fd()];
        let keep_open = move || {
            for fd in kept {
                // SAFETY: both files are open in the parent until spawn returns.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only two fcntl calls are made.
        unsafe { command.pre_exec(keep_open) };
        let child = command.spawn().map_err(system("start a rank"))?;
        Ok(Self { first, child, stream: own, log, init_at: 0 })
    }

    /// How long NCCL's log is now, in bytes.
    pub(super) fn log_length(&self) -> u64 {
        self.log.metadata().map_or(0, |meta| meta.len())
    }

    /// NCCL's log so far, from a place in it on.
    pub(super) fn read_log(&self, from: u64) -> String {
        let size = self.log_length().saturating_sub(from);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(MOST_LOG).min(MOST_LOG)];
        let read = self.log.read_at(&mut bytes, from).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// NCCL's last warning, as an addition to a message that may have it.
    pub(super) fn hint(&self, message: &str) -> String {
        let log = self.read_log(0);
        let mut warnings =
            log.lines().rev().filter_map(|line| Some(line.split_once("NCCL WARN ")?.1));
        let warning = warnings.find(|text| !noise::is_ours(text));
        let new = warning.filter(|text| !message.contains(text));
        new.map_or_else(String::new, |text| format!("; NCCL's last warning: {text}"))
    }

    /// Reads an answer that has begun to arrive, or finds that the rank is gone.
    pub(super) fn answer(&mut self, step: &'static str) -> Result<Fields, NodeError> {
        self.stream.set_read_timeout(Some(GRACE)).map_err(system("wait for a rank"))?;
        if let Ok(Some(fields)) = read_message(&mut self.stream) {
            return Ok(fields);
        }
        // The connection is closed, or what comes is nothing of ours.
        let _ = self.child.kill();
        Err(self.ended(step))
    }

    /// How the process ended, which it has.
    fn ended(&mut self, step: &'static str) -> NodeError {
        let (rank, status) = (self.first, self.child.wait());
        let signal = status.as_ref().ok().and_then(|status| status.signal());
        let signal = signal.and_then(|number| Signal::try_from(number).ok());
        let hint = self.hint("");
        if let Some(signal) = signal.filter(|signal| CRASHES.contains(signal)) {
            return NodeError::Crashed { rank, step, signal: signal.as_str(), hint };
        }
        let how = match (signal, status) {
            (Some(signal), _) => signal.as_str().to_owned(),
            (None, Ok(status)) => status.to_string(),
            (None, Err(error)) => error.to_string(),
        };
        NodeError::Ended { rank, step, how, hint }
    }
}

/// The environment of a rank: the caller's without what steers NCCL, then what
/// the virtual node needs, then what the user asks for.
fn environment(command: &mut Command, spec: &NodeSpec, files: &[(&str, &File)]) {
    surroundings::keep_from(command);
    match spec.host_network {
        true => command.env(SHOW, "1"),
        false => command.env_remove(SHOW).envs(NO_HOST_NETWORK),
    };
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", &spec.subsystems);
    for (name, file) in files {
        command.env(name, format!("/proc/self/fd/{}", file.as_raw_fd()));
    }
    let asked = spec.variables.iter().filter(|(name, _)| !steers_the_log(name));
    command.envs(asked.map(|(name, value)| (name, value)));
}

/// A file without a name, which its descriptor alone keeps.
pub(super) fn nameless(name: &str) -> Result<File, NodeError> {
    let made = memfd_create(name, MFdFlags::MFD_CLOEXEC);
    made.map(File::from).map_err(|errno| system("make a file without a name")(errno.into()))
}
