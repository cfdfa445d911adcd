//! The ranks of one process of a virtual node: a hidden subcommand that takes
//! requests on its standard input (a socket) and answers there. It does what
//! it is told step by step, so that somebody can look at the communicator
//! between two steps, and ends at once when its driver is gone.

use super::conf;
use super::runtime::{self, Description, Launch, Out};
use crate::nccl::collective::{Call, Collective};
use crate::nccl::table::{Comm, Library, NcclResult, SimulationInfo, UniqueId};
use crate::nccl::witness::{self, Witness};
use crate::probes::channel::{read_message, write_message};
use crate::probes::wire::Fields;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString, c_int, c_void};
use std::os::fd::FromRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__vrank";

/// `ncclSum`.
const SUM: c_int = 0;
/// The rank that broadcasts and that reduces.
const ROOT: c_int = 0;

/// Works until the driver closes the connection; never returns.
pub fn run() -> ! {
    // SAFETY: the driver started this process with a socket as standard input,
    // and nothing else reads from it.
    let stream = unsafe { UnixStream::from_raw_fd(0) };
    // Without a second handle there is no way to be told anything.
    let code = match stream.try_clone() {
        Ok(reader) => serve(stream, &requests(reader)),
        Err(_) => 1,
    };
    leave(code)
}

/// Ends this process without the exit handlers of libnccl, which would ask
/// NVIDIA's runtime to clean up what it never made.
fn leave(code: c_int) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Reads requests in a thread of its own: the end of the connection must end
/// this process even while NCCL waits in a call.
fn requests(mut reader: UnixStream) -> Receiver<Fields> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        while let Ok(Some(request)) = read_message(&mut reader) {
            if to.send(request).is_err() {
                break;
            }
        }
        leave(0);
    });
    from
}

fn serve(mut stream: UnixStream, requests: &Receiver<Fields>) -> c_int {
    let mut ranks = None;
    for request in requests {
        let started = Instant::now();
        let mut reply = match handle(&mut ranks, &request) {
            Ok(reply) => reply,
            Err(error) => {
                let mut reply = Fields::default();
                reply.push("error", format!("{error:#}"));
                reply
            }
        };
        reply.push("us", started.elapsed().as_micros().to_string());
        for name in runtime::missing() {
            reply.push("missing", name);
        }
        for what in runtime::refusals() {
            reply.push("refused", what);
        }
        if write_message(&mut stream, &reply).is_err() {
            return 1;
        }
    }
    0
}

fn handle(ranks: &mut Option<Ranks>, request: &Fields) -> Result<Fields> {
    let what = request.text("do").unwrap_or_default();
    if what == "setup" {
        ensure!(ranks.is_none(), "this process has its ranks already");
        let (new, reply) = Ranks::set_up(request)?;
        *ranks = Some(new);
        return Ok(reply);
    }
    let ranks = ranks.as_mut().context("nothing is set up")?;
    match what {
        "id" => ranks.unique_id(),
        "set" => ranks.set_variables(request),
        "init" => ranks.init(request),
        "simulate" => ranks.for_each_size(request, Ranks::simulate),
        "enqueue" => ranks.for_each_size(request, Ranks::enqueue),
        "capture" => ranks.for_each_size(request, Ranks::capture),
        "destroy" => ranks.destroy(),
        "reads" => Ok(ranks.reads()),
        other => bail!("no such request: {other}"),
    }
}

/// One call that was asked for.
#[derive(Clone, Copy)]
struct Asked {
    collective: Collective,
    bytes: u64,
}

/// One rank: its device, communicator and buffers.
struct Rank {
    device: c_int,
    comm: Comm,
    buffers: [usize; 2],
    room: usize,
    stream: usize,
}

/// The ranks of this process.
struct Ranks {
    library: Library,
    total: c_int,
    ranks: Vec<Rank>,
    /// What the variables were that requests have changed.
    before: HashMap<OsString, Option<OsString>>,
    /// The record of NCCL's reads; none where its table has no such entry.
    witness: Option<Witness>,
}

impl Ranks {
    /// Loads the library and puts the virtual node into it.
    fn set_up(request: &Fields) -> Result<(Self, Fields)> {
        let number = |key: &str| -> Result<c_int> {
            request
                .text(key)
                .and_then(|text| text.parse().ok())
                .with_context(|| format!("no {key}"))
        };
        let path = Path::new(OsStr::from_bytes(request.first("library").context("no library")?));
        let node = Description::parse(request.text("node").context("no node")?)?;
        let (total, first, local) = (number("total")?, number("first")?, number("local")?);
        ensure!(local > 0 && first >= 0 && first + local <= total, "no such ranks");
        ensure!(total.unsigned_abs() as usize <= node.gpus.len(), "more ranks than GPUs");
        let started = Instant::now();
        // SAFETY: the user chose this library for this very purpose.
        let library = unsafe { Library::open(path) }?;
        let loaded = started.elapsed();
        // SAFETY: the library was just opened, is never closed and has not
        // been called; the driver described this very file.
        let redirected = unsafe { runtime::install(library.handle(), node) }?;
        if request.text("conf") != Some("read") {
            conf::keep_out(&library)?;
        }
        // SAFETY: as above: opened, never closed, not called yet.
        let witness = unsafe { witness::install(library.handle(), Vec::new()) }.ok();
        let mut reply = Fields::default();
        reply.push("load_us", loaded.as_micros().to_string());
        reply.push("implemented", redirected.implemented.to_string());
        reply.push("stubs", redirected.stubs.to_string());
        let ranks = (first..first + local).map(|device| Rank {
            device,
            comm: std::ptr::null_mut(),
            buffers: [0; 2],
            room: 0,
            stream: 0,
        });
        let (ranks, before) = (ranks.collect(), HashMap::new());
        Ok((Self { library, total, ranks, before, witness }, reply))
    }

    fn unique_id(&self) -> Result<Fields> {
        let id = self.library.unique_id()?;
        let mut reply = Fields::default();
        reply.push("id", id.0.map(|byte| format!("{byte:02x}")).concat());
        Ok(reply)
    }

    /// The variables that NCCL has asked for so far and that were there, each
    /// once.
    fn reads(&self) -> Fields {
        let mut names: Vec<_> = self.witness.iter().flat_map(Witness::reads).collect();
        names.retain(|read| read.value.is_some());
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.dedup_by(|a, b| a.name == b.name);
        let mut reply = Fields::default();
        for read in names {
            reply.push("read", read.name);
        }
        reply
    }

    /// Changes this process's environment for the next communicator.
    fn set_variables(&mut self, request: &Fields) -> Result<Fields> {
        ensure!(self.ranks.iter().all(|rank| rank.comm.is_null()), "there is a communicator");
        for (variable, _) in request.assignments("variable") {
            let variable = OsStr::from_bytes(variable);
            self.before.entry(variable.into()).or_insert_with(|| std::env::var_os(variable));
        }
        for variable in request.all("restore").map(OsStr::from_bytes) {
            if let Some(before) = self.before.get(variable) {
                set_variable(variable, before.as_deref());
            }
        }
        for (variable, value) in request.assignments("variable") {
            set_variable(OsStr::from_bytes(variable), Some(OsStr::from_bytes(value)));
        }
        Ok(Fields::default())
    }

    /// Makes one communicator of all ranks.
    fn init(&mut self, request: &Fields) -> Result<Fields> {
        let id = request.text("id").and_then(unhex).context("no id")?;
        ensure!(self.ranks.iter().all(|rank| rank.comm.is_null()), "there is a communicator");
        let call = self.library.functions().comm_init_rank.context("no ncclCommInitRank")?;
        let total = self.total;
        let mut results = Vec::new();
        self.group_start()?;
        for rank in &mut self.ranks {
            runtime::set_device(rank.device);
            // SAFETY: as nccl.h has it; the communicator's place lives until
            // the group ends, within this function.
            results.push(unsafe { call(&mut rank.comm, total, id, rank.device) });
        }
        let end = self.group_end();
        for result in results {
            started(&self.library, "ncclCommInitRank", result)?;
        }
        end?;
        Ok(Fields::default())
    }

    /// Waits until what goes on in the background has ended; the driver has a
    /// limit of time.
    fn settle(&self) -> Result<()> {
        let ask = self.library.functions().comm_get_async_error;
        let ask = ask.context("no ncclCommGetAsyncError")?;
        for rank in self.ranks.iter().filter(|rank| !rank.comm.is_null()) {
            let mut state = NcclResult::IN_PROGRESS;
            while state == NcclResult::IN_PROGRESS {
                // SAFETY: a communicator of this rank, and a place for the result.
                let asked = unsafe { ask(rank.comm, &mut state) };
                self.library.check("ncclCommGetAsyncError", asked)?;
                if state == NcclResult::IN_PROGRESS {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            self.library.check("the communicator's state", state)?;
        }
        Ok(())
    }

    fn group_start(&self) -> Result<()> {
        let call = self.library.functions().group_start.context("no ncclGroupStart")?;
        // SAFETY: no arguments.
        Ok(self.library.check("ncclGroupStart", unsafe { call() })?)
    }

    fn group_end(&self) -> Result<()> {
        let call = self.library.functions().group_end.context("no ncclGroupEnd")?;
        // SAFETY: no arguments.
        match unsafe { call() } {
            NcclResult::IN_PROGRESS => self.settle(),
            other => Ok(self.library.check("ncclGroupEnd", other)?),
        }
    }

    /// Runs a step for every `bytes` of the request.
    fn for_each_size(
        &mut self,
        request: &Fields,
        step: impl Fn(&mut Self, Asked, &mut Fields) -> Result<()>,
    ) -> Result<Fields> {
        let mut reply = Fields::default();
        let collective = request.text("collective").context("no collective")?.parse()?;
        for bytes in request.all("bytes") {
            let text = std::str::from_utf8(bytes)?;
            let bytes = text.parse().with_context(|| format!("{text:?} is no size"))?;
            let asked = Asked { collective, bytes };
            step(self, asked, &mut reply)
                .with_context(|| format!("{collective}, {bytes} bytes"))?;
        }
        Ok(reply)
    }

    /// Asks NCCL for its own estimate; nothing is enqueued.
    fn simulate(&mut self, asked: Asked, reply: &mut Fields) -> Result<()> {
        let functions = *self.library.functions();
        let end = functions.group_simulate_end.context("no ncclGroupSimulateEnd")?;
        self.group_start()?;
        let enqueued = self.call(asked);
        let mut info = SimulationInfo::default();
        // SAFETY: the structure has the size that it says.
        let ended = unsafe { end(&mut info) };
        let settled = if ended == NcclResult::IN_PROGRESS { self.settle() } else { Ok(()) };
        enqueued?;
        started(&self.library, "ncclGroupSimulateEnd", ended)?;
        settled?;
        reply.push("time", format!("{} {}", asked.bytes, info.estimated_us));
        Ok(())
    }

    /// Enqueues one collective on all ranks and reports the launches.
    fn enqueue(&mut self, asked: Asked, reply: &mut Fields) -> Result<()> {
        runtime::take_launches();
        let started = Instant::now();
        self.group_start()?;
        let enqueued = self.call(asked);
        let ended = self.group_end();
        enqueued?;
        ended?;
        reply.push("enqueued", format!("{} {}", asked.bytes, started.elapsed().as_micros()));
        push_launches(asked.bytes, reply);
        Ok(())
    }

    /// As [`enqueue`](Self::enqueue), into a graph that is then launched twice.
    fn capture(&mut self, asked: Asked, reply: &mut Fields) -> Result<()> {
        runtime::take_launches();
        for rank in &mut self.ranks {
            runtime::set_device(rank.device);
            if rank.stream == 0 {
                cuda(runtime::capture::create(Out::to(&mut rank.stream)))?;
            }
            cuda(runtime::capture::begin(rank.stream, 0))?;
        }
        self.group_start()?;
        let enqueued = self.call(asked);
        let ended = self.group_end();
        enqueued?;
        ended?;
        for rank in &self.ranks {
            let (mut graph, mut instance) = (0, 0);
            cuda(runtime::capture::end(rank.stream, Out::to(&mut graph)))?;
            cuda(runtime::capture::instantiate(Out::to(&mut instance), graph, 0))?;
            cuda(runtime::capture::launch_graph(instance, rank.stream))?;
            cuda(runtime::capture::launch_graph(instance, rank.stream))?;
            cuda(runtime::capture::destroy_instance(instance))?;
            cuda(runtime::capture::destroy(graph))?;
        }
        push_launches(asked.bytes, reply);
        Ok(())
    }

    /// Calls the collective for every rank, inside a group that is open.
    fn call(&mut self, asked: Asked) -> Result<()> {
        let call = asked.collective.call(asked.bytes, self.total.unsigned_abs().into());
        for rank in &mut self.ranks {
            ensure!(!rank.comm.is_null(), "there is no communicator");
            runtime::set_device(rank.device);
            rank.make_room(usize::try_from(call.bytes)?)?;
            rank.call(&self.library, asked.collective, call)?;
        }
        Ok(())
    }

    fn destroy(&mut self) -> Result<Fields> {
        let call = self.library.functions().comm_destroy.context("no ncclCommDestroy")?;
        for rank in &mut self.ranks {
            let comm = std::mem::replace(&mut rank.comm, std::ptr::null_mut());
            runtime::set_device(rank.device);
            // SAFETY: a communicator of this rank, or null, which NCCL accepts.
            let result: NcclResult = unsafe { call(comm) };
            self.library.check("ncclCommDestroy", result)?;
        }
        let open = std::fs::read_dir("/proc/self/fd").map(|list| list.count());
        let mut reply = Fields::default();
        reply.push("files", open.unwrap_or(0).to_string());
        Ok(reply)
    }
}

impl Rank {
    /// Calls one collective, whose buffers are large enough.
    fn call(&self, library: &Library, collective: Collective, call: Call) -> Result<()> {
        let functions = library.functions();
        let (count, kind, comm) = (usize::try_from(call.count)?, call.datatype, self.comm);
        let [send, receive] = self.buffers.map(|at| at as *mut c_void);
        let stream = self.stream as *mut c_void;
        let (name, missing) = (collective.function(), || collective.function());
        // SAFETY: both buffers hold the bytes of the call, and the communicator
        // is this rank's. The types are those of nccl.h.
        let result = unsafe {
            match collective {
                Collective::AllReduce => functions.all_reduce.with_context(missing)?(
                    send, receive, count, kind, SUM, comm, stream,
                ),
                Collective::AllGather => functions.all_gather.with_context(missing)?(
                    send, receive, count, kind, comm, stream,
                ),
                Collective::ReduceScatter => functions.reduce_scatter.with_context(missing)?(
                    send, receive, count, kind, SUM, comm, stream,
                ),
                Collective::Broadcast => functions.broadcast.with_context(missing)?(
                    send, receive, count, kind, ROOT, comm, stream,
                ),
                Collective::Reduce => functions.reduce.with_context(missing)?(
                    send, receive, count, kind, SUM, ROOT, comm, stream,
                ),
            }
        };
        started(library, name, result)
    }

    /// Makes both buffers large enough. They take memory only where somebody
    /// writes, and nobody does.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if self.room >= bytes {
            return Ok(());
        }
        for buffer in &mut self.buffers {
            cuda(runtime::free(*buffer))?;
            *buffer = 0;
            cuda(runtime::malloc(Out::to(buffer), bytes))?;
        }
        self.room = bytes;
        Ok(())
    }
}

/// As [`Library::check`], for a call that may go on in the background
/// (`NCCL_COMM_BLOCKING=0`).
fn started(library: &Library, what: &'static str, result: NcclResult) -> Result<()> {
    match result {
        NcclResult::IN_PROGRESS => Ok(()),
        other => Ok(library.check(what, other)?),
    }
}

/// A code of the virtual runtime.
fn cuda(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(anyhow!("the virtual device reports CUDA error {code}")),
    }
}

/// Sets or removes a variable of this process, as NCCL's `getenv` sees it.
fn set_variable(variable: &OsStr, value: Option<&OsStr>) {
    // SAFETY: there is no communicator, so that none of NCCL's threads reads
    // variables, and our own reader of requests never does.
    unsafe {
        match value {
            Some(value) => std::env::set_var(variable, value),
            None => std::env::remove_var(variable),
        }
    }
}

fn push_launches(bytes: u64, reply: &mut Fields) {
    let (launches, lost) = runtime::take_launches();
    for launch in launches {
        reply.push("launch", format!("{bytes} {}", launch_text(&launch)));
    }
    if lost > 0 {
        reply.push("refused", format!("{lost} launches were not recorded"));
    }
}

/// A launch as one line: device, blocks, threads, cluster, shared bytes, name.
fn launch_text(launch: &Launch) -> String {
    let dim = |d: runtime::Dim3| format!("{}x{}x{}", d.0, d.1, d.2);
    format!(
        "{} {} {} {} {} {}",
        launch.device,
        dim(launch.grid),
        dim(launch.block),
        launch.cluster.unwrap_or(0),
        launch.shared_bytes,
        launch.kernel
    )
}

fn unhex(text: &str) -> Option<UniqueId> {
    let mut id = UniqueId([0; 128]);
    if text.len() != 256 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(id)
}
