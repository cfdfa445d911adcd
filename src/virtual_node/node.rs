//! Runs the ranks of a virtual node: starts them as processes (or all in one),
//! hands the unique id over, keeps them in step, collects NCCL's log, and
//! leaves nothing behind. Logs and the topology live in files without a name;
//! the connection to each rank is its lifeline.

use super::describe::describe;
pub use super::error::NodeError;
use super::error::system;
use super::models::Model;
use super::process::{Worker, nameless};
use super::runtime::Description;
use super::talk::talk;
use super::topology::Topology;
use super::worker::SUBCOMMAND;
use crate::nccl::collective::Collective;
use crate::probes::wire::Fields;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
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

/// What NCCL logs by default: enough for topology, graphs, tables and choices.
/// `P2P,SHM,NET` besides shows how connections are made.
pub const SUBSYSTEMS: &str = "INIT,ENV,GRAPH,TUNING,COLL";

/// Whether a variable steers NCCL's log (`NCCL_DEBUG`, `NCCL_DEBUG_FILE`,
/// `NCCL_DEBUG_TIMESTAMP_FORMAT`, ...), which the node has to read: it is not
/// taken from the user.
pub fn steers_the_log(variable: &OsStr) -> bool {
    variable.as_bytes().starts_with(b"NCCL_DEBUG")
}

/// A virtual node to start.
#[derive(Clone, Debug, PartialEq)]
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
    /// Variables that the ranks get, in this order, over all others but those
    /// that [steer the log](steers_the_log); see [`overridden`](Self::overridden).
    pub variables: Vec<(OsString, OsString)>,
    /// What NCCL logs: the value of `NCCL_DEBUG_SUBSYS`. [`SUBSYSTEMS`] unless
    /// more is needed.
    pub subsystems: String,
    /// Let the ranks read this machine's and the caller's conf files. The
    /// caller's own `NCCL_*` never reach them: who wants that puts them into
    /// `variables`.
    pub conf_files: bool,
    /// Let NCCL see the host's network cards.
    pub host_network: bool,
    /// The longest time from start, or from a communicator's init, to its end.
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
            subsystems: SUBSYSTEMS.into(),
            conf_files: false,
            host_network: false,
            limit: Duration::from_secs(60),
            command: vec![std::env::current_exe()?.into(), SUBCOMMAND.into()],
        })
    }

    /// The names among [`variables`](Self::variables) that the ranks do not
    /// get, because the node could not read NCCL's log then.
    pub fn overridden(&self) -> Vec<&OsStr> {
        let names = self.variables.iter().map(|(name, _)| name.as_os_str());
        names.filter(|name| steers_the_log(name)).collect()
    }
}

/// NCCL's own estimate for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Size in bytes, as it was asked for.
    pub bytes: u64,
    /// Microseconds.
    pub time_us: f64,
}

/// A kernel that NCCL would have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictedLaunch {
    /// Size in bytes, as it was asked for.
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
            .push("conf", if spec.conf_files { "read" } else { "none" })
            .push("node", description.encode());
        node.step("set-up", |worker| {
            let mut request = request.clone();
            request.push("first", worker.first.to_string());
            request
        })?;
        Ok(node)
    }

    /// Makes one communicator of all ranks, and lets the time limit begin anew.
    /// Returns the longest time that a rank took.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn init(&mut self) -> Result<Duration, NodeError> {
        self.deadline = Instant::now() + self.limit;
        for worker in &mut self.workers {
            worker.init_at = worker.log_length();
        }
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
    pub fn simulate(
        &mut self,
        collective: Collective,
        sizes: &[u64],
    ) -> Result<Vec<Predicted>, NodeError> {
        let answers = self.step("simulation", |_| sized("simulate", collective, sizes))?;
        let one = |line: &[u8]| {
            let mut words = std::str::from_utf8(line).ok()?.split(' ');
            let (bytes, time) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Predicted { bytes, time_us: time })
        };
        Ok(answers[0].all("time").filter_map(one).collect())
    }

    /// Enqueues one collective for each size on every rank, in order. Returns
    /// what each rank would have started. Sizes are as in [`Collective::call`]:
    /// the choices in the log are in the same order.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn enqueue(
        &mut self,
        collective: Collective,
        sizes: &[u64],
    ) -> Result<Vec<PredictedLaunch>, NodeError> {
        let answers = self.step("enqueue", |_| sized("enqueue", collective, sizes))?;
        Ok(launches(&answers))
    }

    /// As [`enqueue`](Self::enqueue), into graphs, which are launched twice.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn capture(
        &mut self,
        collective: Collective,
        sizes: &[u64],
    ) -> Result<Vec<PredictedLaunch>, NodeError> {
        let answers = self.step("capture", |_| sized("capture", collective, sizes))?;
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

    /// The variables that NCCL has asked for in the first process and that were
    /// there; empty when its reads are not recorded.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn reads(&mut self) -> Result<Vec<OsString>, NodeError> {
        let mut request = Fields::default();
        request.push("do", "reads");
        let first = &mut self.workers[..1];
        let answers =
            talk(first, self.deadline, self.limit, "record of reads", |_| request.clone())?;
        let name = |name: &[u8]| OsStr::from_bytes(name).to_owned();
        Ok(answers[0].all("read").map(name).collect())
    }

    /// The processes, by rank. They stand still between two steps, so that
    /// they can be inspected.
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    /// Changes the ranks' environment for the next [`init`](Self::init), while
    /// there is no communicator. `None` brings back what a rank was started
    /// with; what is restored and set in one call is set. Only variables of [`Scope::Communicator`] have an effect then:
    /// NCCL keeps all others from its first read on.
    ///
    /// [`Scope::Communicator`]: crate::nccl::scope::Scope::Communicator
    ///
    /// # Errors
    /// [`NodeError`], also when a variable [steers the log](steers_the_log).
    pub fn set_variables(
        &mut self,
        variables: &[(OsString, Option<OsString>)],
    ) -> Result<(), NodeError> {
        if let Some((name, _)) = variables.iter().find(|(name, _)| steers_the_log(name)) {
            return Err(NodeError::Log { variable: name.to_string_lossy().into_owned() });
        }
        let mut request = Fields::default();
        request.push("do", "set");
        for (name, value) in variables {
            match value {
                Some(value) => {
                    request.push_assignment("variable", name.as_bytes(), value.as_bytes())
                }
                None => request.push("restore", name.as_bytes()),
            };
        }
        self.step("change of variables", |_| request.clone()).map(drop)
    }

    /// NCCL's log so far, of each process. It can also be read after an error.
    pub fn logs(&self) -> Vec<String> {
        self.workers.iter().map(|worker| worker.read_log(0)).collect()
    }

    /// NCCL's log since the last [`init`](Self::init) began. What NCCL says
    /// once for each process is not in it: its version, and the variables that
    /// it keeps.
    pub fn logs_since_init(&self) -> Vec<String> {
        self.workers.iter().map(|worker| worker.read_log(worker.init_at)).collect()
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

fn sized(what: &str, collective: Collective, sizes: &[u64]) -> Fields {
    let mut request = Fields::default();
    request.push("do", what).push("collective", collective.name());
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
