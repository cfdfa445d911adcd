//! The ranks of one process of a virtual node: a hidden subcommand that takes
//! requests on its standard input (a socket) and answers there. It does what
//! it is told step by step, so that somebody can look at the communicator
//! between two steps, and ends at once when its driver is gone.

use super::runtime::{self, Description, Launch, Out};
use crate::nccl::got;
use crate::nccl::table::{Comm, Library, NcclResult, SimulationInfo, UniqueId};
use crate::probes::channel::{read_message, write_message};
use crate::probes::wire::Fields;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::os::fd::FromRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__vrank";

/// `ncclFloat32`, `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;
const FLOAT_BYTES: usize = 4;

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
        "init" => ranks.init(request),
        "simulate" => ranks.for_each_size(request, Ranks::simulate),
        "enqueue" => ranks.for_each_size(request, Ranks::enqueue),
        "capture" => ranks.for_each_size(request, Ranks::capture),
        "destroy" => ranks.destroy(),
        other => bail!("no such request: {other}"),
    }
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
            keep_conf_files_out(&library)?;
        }
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
        Ok((Self { library, total, ranks: ranks.collect() }, reply))
    }

    fn unique_id(&self) -> Result<Fields> {
        let id = self.library.unique_id()?;
        let mut reply = Fields::default();
        reply.push("id", id.0.map(|byte| format!("{byte:02x}")).concat());
        Ok(reply)
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
            self.library.check("ncclCommInitRank", result)?;
        }
        end?;
        Ok(Fields::default())
    }

    fn group_start(&self) -> Result<()> {
        let call = self.library.functions().group_start.context("no ncclGroupStart")?;
        // SAFETY: no arguments.
        Ok(self.library.check("ncclGroupStart", unsafe { call() })?)
    }

    fn group_end(&self) -> Result<()> {
        let call = self.library.functions().group_end.context("no ncclGroupEnd")?;
        // SAFETY: no arguments.
        Ok(self.library.check("ncclGroupEnd", unsafe { call() })?)
    }

    /// Runs a step for every `bytes` of the request.
    fn for_each_size(
        &mut self,
        request: &Fields,
        step: impl Fn(&mut Self, usize, &mut Fields) -> Result<()>,
    ) -> Result<Fields> {
        let mut reply = Fields::default();
        for bytes in request.all("bytes") {
            let text = std::str::from_utf8(bytes)?;
            let bytes = text.parse().with_context(|| format!("{text:?} is no size"))?;
            step(self, bytes, &mut reply).with_context(|| format!("{bytes} bytes"))?;
        }
        Ok(reply)
    }

    /// Asks NCCL for its own estimate; nothing is enqueued.
    fn simulate(&mut self, bytes: usize, reply: &mut Fields) -> Result<()> {
        let functions = *self.library.functions();
        let end = functions.group_simulate_end.context("no ncclGroupSimulateEnd")?;
        self.group_start()?;
        let enqueued = self.all_reduce(bytes);
        let mut info = SimulationInfo::default();
        // SAFETY: the structure has the size that it says.
        let ended = unsafe { end(&mut info) };
        enqueued?;
        self.library.check("ncclGroupSimulateEnd", ended)?;
        reply.push("time", format!("{bytes} {}", info.estimated_us));
        Ok(())
    }

    /// Enqueues one all-reduce on all ranks and reports the launches.
    fn enqueue(&mut self, bytes: usize, reply: &mut Fields) -> Result<()> {
        runtime::take_launches();
        let started = Instant::now();
        self.group_start()?;
        let enqueued = self.all_reduce(bytes);
        let ended = self.group_end();
        enqueued?;
        ended?;
        reply.push("enqueued", format!("{bytes} {}", started.elapsed().as_micros()));
        push_launches(bytes, reply);
        Ok(())
    }

    /// As [`enqueue`](Self::enqueue), into a graph that is then launched twice.
    fn capture(&mut self, bytes: usize, reply: &mut Fields) -> Result<()> {
        runtime::take_launches();
        for rank in &mut self.ranks {
            runtime::set_device(rank.device);
            if rank.stream == 0 {
                cuda(runtime::capture::create(Out::to(&mut rank.stream)))?;
            }
            cuda(runtime::capture::begin(rank.stream, 0))?;
        }
        self.group_start()?;
        let enqueued = self.all_reduce(bytes);
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
        push_launches(bytes, reply);
        Ok(())
    }

    /// Calls ncclAllReduce for every rank, inside a group that is open.
    fn all_reduce(&mut self, bytes: usize) -> Result<()> {
        let call = self.library.functions().all_reduce.context("no ncclAllReduce")?;
        let count = (bytes / FLOAT_BYTES).max(1);
        for rank in &mut self.ranks {
            ensure!(!rank.comm.is_null(), "there is no communicator");
            runtime::set_device(rank.device);
            rank.make_room(bytes.max(FLOAT_BYTES))?;
            let [send, receive] = rank.buffers.map(|at| at as *mut c_void);
            let stream = rank.stream as *mut c_void;
            // SAFETY: both buffers hold `count` floats, and the communicator
            // is this rank's.
            let result = unsafe { call(send, receive, count, FLOAT, SUM, rank.comm, stream) };
            self.library.check("ncclAllReduce", result)?;
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

/// A code of the virtual runtime.
fn cuda(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(anyhow!("the virtual device reports CUDA error {code}")),
    }
}

fn push_launches(bytes: usize, reply: &mut Fields) {
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

/// The conf file that the user named, if any: it is read.
static NAMED_CONF: OnceLock<Option<OsString>> = OnceLock::new();

/// Makes NCCL find no `/etc/nccl.conf` and no `~/.nccl.conf`: what it would do
/// on a described machine must not depend on this one.
fn keep_conf_files_out(library: &Library) -> Result<()> {
    NAMED_CONF.get_or_init(|| std::env::var_os("NCCL_CONF_FILE"));
    // SAFETY: the library stays open, and nothing of it runs yet.
    unsafe {
        for slot in got::slots(library.handle(), c"fopen")? {
            got::write(slot, open_stream as *const () as usize)?;
        }
    }
    Ok(())
}

/// Stands for `fopen`.
///
/// # Safety
/// As `fopen`.
unsafe extern "C" fn open_stream(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller passes what it would pass to fopen.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let named = NAMED_CONF.get().and_then(Option::as_deref);
    let own = name == b"/etc/nccl.conf" || name.ends_with(b"/.nccl.conf");
    if own && named.is_none_or(|named| named.as_bytes() != name) {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { libc::fopen(path, mode) }
}
