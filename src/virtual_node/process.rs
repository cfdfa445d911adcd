//! One process of a virtual node: how it is started, what it gets, how it is
//! asked, and how its end is told. Keeping several in step is `node`'s work.

use super::node::{NodeError, NodeSpec};
use crate::probes::channel::read_message;
use crate::probes::wire::Fields;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How much of one process's log is kept, in bytes.
const MOST_LOG: usize = 64 << 20;

/// How long other ranks may still take once one has failed.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// What NCCL logs unless the user asks for something else.
const LOG: [(&str, &str); 2] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,TUNING,COLL")];

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
        Ok(Self { first, child, stream: own, log })
    }

    /// NCCL's log so far.
    pub(super) fn read_log(&self) -> String {
        let size = self.log.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(MOST_LOG).min(MOST_LOG)];
        let read = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// NCCL's last warning, as an addition to a message.
    pub(super) fn hint(&self) -> String {
        let log = self.read_log();
        let warning = log.lines().rev().find_map(|line| line.split_once("NCCL WARN "));
        warning.map_or_else(String::new, |(_, text)| format!("; NCCL's last warning: {text}"))
    }

    /// Reads an answer that has begun to arrive, or finds that the rank is gone.
    pub(super) fn answer(&mut self, step: &'static str) -> Result<Fields, NodeError> {
        self.stream.set_read_timeout(Some(GRACE)).map_err(system("wait for a rank"))?;
        if let Ok(Some(fields)) = read_message(&mut self.stream) {
            return Ok(fields);
        }
        // The connection is closed, or what comes is nothing of ours.
        let _ = self.child.kill();
        let how = match self.child.wait() {
            Ok(status) => {
                status.signal().map_or_else(|| status.to_string(), |s| format!("signal {s}"))
            }
            Err(error) => error.to_string(),
        };
        Err(NodeError::Ended { rank: self.first, step, how, hint: self.hint() })
    }
}

/// The environment of a rank: the caller's without what steers NCCL, then what
/// the virtual node needs, then what the user asks for.
fn environment(command: &mut Command, spec: &NodeSpec, files: &[(&str, &File)]) {
    if !spec.inherit {
        let steers = |name: &OsStr| name.as_bytes().starts_with(b"NCCL_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| steers(name)) {
            command.env_remove(name);
        }
    }
    command.envs(LOG);
    if !spec.host_network {
        command.envs(NO_HOST_NETWORK);
    }
    for (name, file) in files {
        command.env(name, format!("/proc/self/fd/{}", file.as_raw_fd()));
    }
    command.envs(spec.variables.iter().map(|(name, value)| (name, value)));
}

/// A file without a name, which its descriptor alone keeps.
pub(super) fn nameless(name: &str) -> Result<File, NodeError> {
    let made = memfd_create(name, MFdFlags::MFD_CLOEXEC);
    made.map(File::from).map_err(|errno| system("make a file without a name")(errno.into()))
}

/// An error of the system, with what was tried.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| NodeError::System { what, error }
}
