//! Runs the ranks of a virtual node: starts them as processes (or all in one),
//! hands the unique id over, keeps them in step, collects NCCL's log, and
//! leaves nothing behind. Logs and the topology live in files without a name;
//! the connection to each rank is its lifeline.

use super::describe::{DescribeError, describe};
use super::models::Model;
use super::topology::Topology;
use super::worker::SUBCOMMAND;
use crate::probes::channel::{read_message, write_message};
use crate::probes::wire::Fields;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How much of one process's log is kept, in bytes.
const MOST_LOG: usize = 64 << 20;

/// What NCCL logs unless the user asks for something else.
const LOG: [(&str, &str); 2] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,TUNING,COLL")];

/// Keeps the network cards of the host out of the described machine.
const NO_HOST_NETWORK: [(&str, &str); 2] = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1")];

/// How ranks are spread over processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One process for each rank, as launchers do it.
    #[default]
    Processes,
    /// All ranks in one process.
    OneProcess,
}

/// A virtual node to start.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The libnccl to ask.
    pub library: PathBuf,
    /// The machine.
    pub topology: Topology,
    /// Its GPUs.
    pub model: Model,
    /// How many ranks take part: the first GPUs of the topology.
    pub ranks: usize,
    /// How they are spread.
    pub mode: Mode,
    /// Variables that the ranks get, in this order, over all others.
    pub variables: Vec<(OsString, OsString)>,
    /// Let the ranks have the caller's own `NCCL_*` and conf files as well.
    pub inherit: bool,
    /// Let NCCL see the host's network cards.
    pub host_network: bool,
    /// The longest time from start to end.
    pub limit: Duration,
    /// The command that becomes a rank.
    pub command: Vec<OsString>,
}

impl NodeSpec {
    /// All GPUs of the topology, one process each, a minute.
    ///
    /// # Errors
    /// This program's own path is not known.
    pub fn new(library: PathBuf, topology: Topology, model: Model) -> io::Result<Self> {
        Ok(Self {
            library,
            ranks: topology.gpus.len(),
            topology,
            model,
            mode: Mode::default(),
            variables: Vec::new(),
            inherit: false,
            host_network: false,
            limit: Duration::from_secs(60),
            command: vec![std::env::current_exe()?.into(), SUBCOMMAND.into()],
        })
    }
}

/// Why a virtual node gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The library cannot be used.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// More ranks than GPUs, or none.
    #[error("{ranks} ranks on a topology of {gpus} GPUs")]
    Ranks {
        /// How many were asked for.
        ranks: usize,
        /// How many there are.
        gpus: usize,
    },
    /// The system refused something.
    #[error("virtual node: {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// A rank reports an error, mostly NCCL's own.
    #[error("virtual rank {rank}: {step}: {why}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// What it says.
        why: String,
    },
    /// NCCL called something that the virtual node does not have.
    #[error(
        "NCCL called {names}, which the virtual node does not implement: its answer would not be \
         that of a real machine"
    )]
    Missing {
        /// The functions.
        names: String,
    },
    /// A rank ended by itself.
    #[error("virtual rank {rank} ended during {step} ({how}){hint}")]
    Ended {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// Its exit.
        how: String,
        /// NCCL's last warning.
        hint: String,
    },
    /// The time is over.
    #[error("virtual node: {step} had not ended after {limit:?}{hint}")]
    TooLate {
        /// The step.
        step: &'static str,
        /// The limit.
        limit: Duration,
        /// NCCL's last warning.
        hint: String,
    },
}

/// NCCL's own estimate for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Size of the all-reduce in bytes.
    pub bytes: u64,
    /// Microseconds.
    pub time_us: f64,
}

/// A kernel that NCCL would have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictedLaunch {
    /// Size of the all-reduce in bytes.
    pub bytes: u64,
    /// The device.
    pub device: usize,
    /// Blocks and threads a block, as `XxYxZ`.
    pub grid: String,
    /// Threads a block.
    pub block: String,
    /// Blocks in a cluster; 0 when the launch sets none.
    pub cluster: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: usize,
    /// Mangled name.
    pub kernel: String,
}

/// One process of the node.
struct Worker {
    first: usize,
    child: Child,
    stream: UnixStream,
    log: File,
}

/// A running virtual node. Dropping it ends all its processes.
pub struct Node {
    workers: Vec<Worker>,
    deadline: Instant,
    limit: Duration,
    _topology: File,
}

impl Node {
    /// Starts the processes and puts the virtual GPUs into each.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn start(spec: &NodeSpec) -> Result<Self, NodeError> {
        let gpus = spec.topology.gpus.len();
        if spec.ranks == 0 || spec.ranks > gpus {
            return Err(NodeError::Ranks { ranks: spec.ranks, gpus });
        }
        let description = describe(&spec.library, &spec.topology, &spec.model)?.encode();
        let topology = nameless("nccldiag-topology")?;
        topology
            .write_all_at(spec.topology.text.as_bytes(), 0)
            .map_err(system("write the topology"))?;
        let local = if spec.mode == Mode::Processes { 1 } else { spec.ranks };
        let mut node = Self {
            workers: Vec::new(),
            deadline: Instant::now() + spec.limit,
            limit: spec.limit,
            _topology: topology,
        };
        for first in (0..spec.ranks).step_by(local) {
            let worker = Worker::start(spec, first, &node._topology)?;
            node.workers.push(worker);
        }
        let mut request = Fields::default();
        request.push("do", "setup").push("library", spec.library.as_os_str().as_bytes());
        request.push("total", spec.ranks.to_string()).push("local", local.to_string());
        request.push("conf", if spec.inherit { "read" } else { "none" }).push("node", description);
        node.step("set-up", |worker| {
            let mut request = request.clone();
            request.push("first", worker.first.to_string());
            request
        })?;
        Ok(node)
    }

    /// Makes one communicator of all ranks. Returns the longest time that a
    /// rank took.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn init(&mut self) -> Result<Duration, NodeError> {
        let mut request = Fields::default();
        request.push("do", "id");
        let first = &mut self.workers[..1];
        let answers =
            talk(first, self.deadline, self.limit, "ncclGetUniqueId", |_| request.clone())?;
        let id = answers[0].first("id").unwrap_or_default().to_vec();
        let mut request = Fields::default();
        request.push("do", "init").push("id", id);
        Ok(longest(&self.step("communicator init", |_| request.clone())?))
    }

    /// NCCL's own estimates (since 2.23.4); nothing is enqueued.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn simulate(&mut self, sizes: &[u64]) -> Result<Vec<Predicted>, NodeError> {
        let answers = self.step("simulation", |_| sized("simulate", sizes))?;
        let one = |line: &[u8]| {
            let mut words = std::str::from_utf8(line).ok()?.split(' ');
            let (bytes, time) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Predicted { bytes, time_us: time })
        };
        Ok(answers[0].all("time").filter_map(one).collect())
    }

    /// Enqueues one all-reduce for each size on every rank, in order. Returns
    /// what each rank would have started.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn enqueue(&mut self, sizes: &[u64]) -> Result<Vec<PredictedLaunch>, NodeError> {
        let answers = self.step("enqueue", |_| sized("enqueue", sizes))?;
        Ok(launches(&answers))
    }

    /// As [`enqueue`](Self::enqueue), into graphs, which are launched twice.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn capture(&mut self, sizes: &[u64]) -> Result<Vec<PredictedLaunch>, NodeError> {
        let answers = self.step("capture", |_| sized("capture", sizes))?;
        Ok(launches(&answers))
    }

    /// Destroys the communicator; the ranks stay for another. Returns how many
    /// files each process has open then.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn destroy(&mut self) -> Result<Vec<usize>, NodeError> {
        let mut request = Fields::default();
        request.push("do", "destroy");
        let answers = self.step("ncclCommDestroy", |_| request.clone())?;
        let files = |fields: &Fields| fields.text("files").and_then(|text| text.parse().ok());
        Ok(answers.iter().filter_map(files).collect())
    }

    /// The processes, by rank. They stand still between two steps, so that
    /// they can be inspected.
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    /// NCCL's log so far, of each process.
    pub fn logs(&self) -> Vec<String> {
        self.workers.iter().map(Worker::read_log).collect()
    }

    fn step(
        &mut self,
        step: &'static str,
        request: impl Fn(&Worker) -> Fields,
    ) -> Result<Vec<Fields>, NodeError> {
        talk(&mut self.workers, self.deadline, self.limit, step, request)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // One that has ended already needs no signal.
            let _ = worker.child.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait();
        }
    }
}

impl Worker {
    fn start(spec: &NodeSpec, first: usize, topology: &File) -> Result<Self, NodeError> {
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

    fn read_log(&self) -> String {
        let size = self.log.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(MOST_LOG).min(MOST_LOG)];
        let read = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// NCCL's last warning, as an addition to a message.
    fn hint(&self) -> String {
        let log = self.read_log();
        let warning = log.lines().rev().find_map(|line| line.split_once("NCCL WARN "));
        warning.map_or_else(String::new, |(_, text)| format!("; NCCL's last warning: {text}"))
    }

    fn answer(
        &mut self,
        deadline: Instant,
        limit: Duration,
        step: &'static str,
    ) -> Result<Fields, NodeError> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).map_err(system("wait for a rank"))?;
        match read_message(&mut self.stream) {
            Ok(Some(fields)) => Ok(fields),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(NodeError::TooLate { step, limit, hint: self.hint() })
            }
            Ok(None) | Err(_) => {
                let status = self.child.wait();
                let how = status.map_or_else(
                    |e| e.to_string(),
                    |status| match status.signal() {
                        Some(signal) => format!("signal {signal}"),
                        None => status.to_string(),
                    },
                );
                Err(NodeError::Ended { rank: self.first, step, how, hint: self.hint() })
            }
        }
    }
}

/// Sends a request to each worker, then collects all answers.
fn talk(
    workers: &mut [Worker],
    deadline: Instant,
    limit: Duration,
    step: &'static str,
    request: impl Fn(&Worker) -> Fields,
) -> Result<Vec<Fields>, NodeError> {
    for worker in workers.iter_mut() {
        let request = request(worker);
        // Why a rank is gone shows when its answer is read.
        let _ = write_message(&mut worker.stream, &request);
    }
    let mut answers = Vec::new();
    for worker in workers.iter_mut() {
        answers.push(worker.answer(deadline, limit, step)?);
    }
    judge(workers, &answers, step)?;
    Ok(answers)
}

/// Turns what ranks report into an error: first what explains the most.
fn judge(workers: &[Worker], answers: &[Fields], step: &'static str) -> Result<(), NodeError> {
    let mut names: Vec<_> =
        answers.iter().flat_map(|a| a.all("missing")).map(String::from_utf8_lossy).collect();
    names.sort();
    names.dedup();
    if !names.is_empty() {
        return Err(NodeError::Missing { names: names.join(", ") });
    }
    for key in ["refused", "error"] {
        for (worker, answer) in workers.iter().zip(answers) {
            if let Some(why) = answer.first(key) {
                let why = String::from_utf8_lossy(why).into_owned() + &worker.hint();
                return Err(NodeError::Failed { rank: worker.first, step, why });
            }
        }
    }
    Ok(())
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

fn nameless(name: &str) -> Result<File, NodeError> {
    let made = memfd_create(name, MFdFlags::MFD_CLOEXEC);
    made.map(File::from).map_err(|errno| system("make a file without a name")(errno.into()))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| NodeError::System { what, error }
}

fn sized(what: &str, sizes: &[u64]) -> Fields {
    let mut request = Fields::default();
    request.push("do", what);
    for bytes in sizes {
        request.push("bytes", bytes.to_string());
    }
    request
}

fn longest(answers: &[Fields]) -> Duration {
    let micros = |answer: &Fields| answer.text("us").and_then(|text| text.parse().ok());
    Duration::from_micros(answers.iter().filter_map(micros).max().unwrap_or(0))
}

fn launches(answers: &[Fields]) -> Vec<PredictedLaunch> {
    let one = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let mut words = text.splitn(7, ' ');
        Some(PredictedLaunch {
            bytes: words.next()?.parse().ok()?,
            device: words.next()?.parse().ok()?,
            grid: words.next()?.to_owned(),
            block: words.next()?.to_owned(),
            cluster: words.next()?.parse().ok()?,
            shared_bytes: words.next()?.parse().ok()?,
            kernel: words.next()?.to_owned(),
        })
    };
    answers.iter().flat_map(|answer| answer.all("launch")).filter_map(one).collect()
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
