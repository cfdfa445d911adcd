//! Runs the ranks of a virtual node: starts them as processes (or all in one),
//! hands the unique id over, keeps them in step, collects NCCL's log, and
//! leaves nothing behind. Logs and the topology live in files without a name;
//! the connection to each rank is its lifeline.

use super::describe::{DescribeError, describe};
use super::models::Model;
use super::process::{GRACE, Worker, nameless, system};
use super::runtime::Description;
use super::topology::Topology;
use super::worker::SUBCOMMAND;
use crate::probes::channel::write_message;
use crate::probes::wire::Fields;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
    /// The machine's CUDA driver, such as 12040, when it is known.
    pub driver: Option<i32>,
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
            driver: None,
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
        let description = describe(&spec.library, &spec.topology, &spec.model, spec.driver)?;
        Self::start_as(spec, &description)
    }

    /// As [`start`](Self::start), for a given description.
    fn start_as(spec: &NodeSpec, description: &Description) -> Result<Self, NodeError> {
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
        request
            .push("conf", if spec.inherit { "read" } else { "none" })
            .push("node", description.encode());
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
    let mut answers: Vec<Option<Fields>> = workers.iter().map(|_| None).collect();
    let mut until = deadline;
    while let Some(ready) = wait_for_some(workers, &answers, until)? {
        for at in ready {
            let answer = workers[at].answer(step)?;
            if ["missing", "refused", "error"].iter().any(|key| answer.first(key).is_some()) {
                // The others may wait for this rank for ever.
                until = until.min(Instant::now() + GRACE);
            }
            answers[at] = Some(answer);
        }
    }
    judge(workers, &answers, step)?;
    let hint =
        || workers.iter().map(Worker::hint).find(|hint| !hint.is_empty()).unwrap_or_default();
    let all: Option<Vec<Fields>> = answers.into_iter().collect();
    all.ok_or_else(|| NodeError::TooLate { step, limit, hint: hint() })
}

/// The workers without an answer that have one now; `None` when all have
/// answered or the time is over.
fn wait_for_some(
    workers: &[Worker],
    answers: &[Option<Fields>],
    until: Instant,
) -> Result<Option<Vec<usize>>, NodeError> {
    let waiting: Vec<usize> = (0..workers.len()).filter(|&at| answers[at].is_none()).collect();
    if waiting.is_empty() {
        return Ok(None);
    }
    loop {
        let fds =
            waiting.iter().map(|&at| PollFd::new(workers[at].stream.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("wait for the ranks")(errno.into())),
            Ok(0) if Instant::now() >= until => return Ok(None),
            Ok(_) => {
                let ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
                return Ok(Some(
                    waiting
                        .iter()
                        .zip(ready)
                        .filter(|(_, ready)| *ready)
                        .map(|(&at, _)| at)
                        .collect(),
                ));
            }
        }
    }
}

/// Turns what ranks report into an error: first what explains the most.
fn judge(
    workers: &[Worker],
    answers: &[Option<Fields>],
    step: &'static str,
) -> Result<(), NodeError> {
    let all = || answers.iter().flatten();
    let mut names: Vec<_> =
        all().flat_map(|a| a.all("missing")).map(String::from_utf8_lossy).collect();
    names.sort();
    names.dedup();
    if !names.is_empty() {
        return Err(NodeError::Missing { names: names.join(", ") });
    }
    for key in ["refused", "error"] {
        for (worker, answer) in workers.iter().zip(answers) {
            if let Some(why) = answer.as_ref().and_then(|answer| answer.first(key)) {
                let why = String::from_utf8_lossy(why).into_owned() + &worker.hint();
                return Err(NodeError::Failed { rank: worker.first, step, why });
            }
        }
    }
    Ok(())
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
