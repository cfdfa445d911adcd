//! Kernel launches: recorded with name, grid, block and shared memory, never
//! executed. Also the attributes of kernels, as far as NCCL asks for them.

use super::abi::{
    Dim3, DriverLaunchConfig, In, KernelNode, LaunchAttribute, LaunchConfig, Out, fill,
};
use super::errors::{Code, Error, code, driver_code};
use super::graph::{self, Work};
use super::state::{self, node};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

/// Launches that are kept until somebody takes them.
const MOST: usize = 1 << 16;
/// `cudaLaunchAttributeClusterDimension`.
const CLUSTER: u32 = 4;
/// `cudaFuncAttributeMaxDynamicSharedMemorySize`.
const SHARED_MEMORY: c_int = 8;

/// One launch that NCCL made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The device of the launching thread.
    pub device: i32,
    /// The kernel's mangled name, or its address when the library has no name.
    pub kernel: String,
    /// Blocks in x, y, z.
    pub grid: Dim3,
    /// Threads a block in x, y, z.
    pub block: Dim3,
    /// Blocks in a cluster, when the launch says so.
    pub cluster: Option<u32>,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: usize,
    /// It went into a graph that is being captured.
    pub captured: bool,
}

/// A launch as it is recorded.
#[derive(Clone, Copy, Debug)]
struct Raw {
    device: c_int,
    kernel: usize,
    grid: Dim3,
    block: Dim3,
    cluster: Option<u32>,
    shared_bytes: usize,
    captured: bool,
}

impl Raw {
    /// A launch of this thread's device, with grid and block, outside a graph.
    fn new(
        kernel: usize,
        (grid, block): (Dim3, Dim3),
        cluster: Option<u32>,
        shared_bytes: usize,
    ) -> Self {
        let device = state::device();
        Self { device, kernel, grid, block, cluster, shared_bytes, captured: false }
    }
}

#[derive(Default)]
struct Record {
    launches: Vec<Raw>,
    lost: usize,
}

static RECORD: Mutex<Record> = Mutex::new(Record { launches: Vec::new(), lost: 0 });
static SHARED: Mutex<Option<HashMap<usize, c_int>>> = Mutex::new(None);
/// Where the library was loaded.
static BASE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

functions! {
    "cudaFuncGetAttributes" => attributes,
    "cudaFuncSetAttribute" => set_attribute,
    "cudaGetFuncBySymbol" => by_symbol,
    "__cudaGetKernel" => by_symbol,
    "cudaLaunchKernel" => launch_kernel,
    "__cudaLaunchKernel" => launch_kernel,
    "cudaLaunchKernelExC" => launch_configured,
    "__cudaPushCallConfiguration" => push_configuration,
    "__cudaPopCallConfiguration" => pop_configuration,
}

/// Where kernels' addresses count from.
pub(super) fn set_base(base: usize) {
    BASE.store(base, std::sync::atomic::Ordering::Relaxed);
}

/// Takes all launches since the last call, in order, and how many were lost
/// because nobody took them in time.
pub fn take_launches() -> (Vec<Launch>, usize) {
    let record = std::mem::take(&mut *RECORD.lock().unwrap_or_else(PoisonError::into_inner));
    (record.launches.iter().map(named).collect(), record.lost)
}

fn named(raw: &Raw) -> Launch {
    let offset = raw.kernel.wrapping_sub(BASE.load(std::sync::atomic::Ordering::Relaxed));
    let found = node().kernels.iter().find(|kernel| kernel.offset == offset);
    Launch {
        device: raw.device,
        kernel: found.map_or_else(|| format!("+{offset:#x}"), |kernel| kernel.name.clone()),
        grid: raw.grid,
        block: raw.block,
        cluster: raw.cluster,
        shared_bytes: raw.shared_bytes,
        captured: raw.captured,
    }
}

/// Records a launch, in the graph that the stream captures into or as done.
fn launched(mut raw: Raw, stream: usize) -> Result<(), Error> {
    raw.captured = graph::append(stream, Work::Kernel)?;
    record(raw);
    Ok(())
}

fn record(raw: Raw) {
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    if record.launches.len() < MOST {
        record.launches.push(raw);
    } else {
        record.lost += 1;
    }
}

/// Records a kernel node that was added to a graph by hand.
pub(super) fn node_added(node: &KernelNode) {
    let shared_bytes = node.shared_bytes as usize;
    let raw = Raw::new(node.function, (node.grid, node.block), None, shared_bytes);
    record(Raw { captured: true, ..raw });
}

extern "C" fn attributes(to: *mut c_void, kernel: usize) -> Code {
    let figures = &node().figures;
    let version = (figures.major * 10 + figures.minor).to_ne_bytes();
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let dynamic = shared.as_ref().and_then(|all| all.get(&kernel).copied()).unwrap_or(49152);
    // maxThreadsPerBlock: NCCL's largest kernel; numRegs: a value that fits it.
    let values: [(usize, &[u8]); 5] = [
        (24, &640i32.to_ne_bytes()),
        (28, &96i32.to_ne_bytes()),
        (32, &version),
        (36, &version),
        (44, &dynamic.to_ne_bytes()),
    ];
    // 80 of 144 bytes: the rest is newer than CUDA 12.0 and stays as it is.
    code(fill(to, 80, &values))
}

extern "C" fn set_attribute(kernel: usize, which: c_int, value: c_int) -> Code {
    if which == SHARED_MEMORY {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get_or_insert_default().insert(kernel, value);
    }
    0
}

/// A kernel's handle is the address of its host-side stand-in.
extern "C" fn by_symbol(to: Out<usize>, kernel: usize) -> Code {
    code(to.set(kernel))
}

extern "C" fn launch_kernel(
    kernel: usize,
    grid: Dim3,
    block: Dim3,
    _arguments: usize,
    shared_bytes: usize,
    stream: usize,
) -> Code {
    code(launched(Raw::new(kernel, (grid, block), None, shared_bytes), stream))
}

extern "C" fn launch_configured(config: In<LaunchConfig>, kernel: usize, _args: usize) -> Code {
    code(config.get().and_then(|c| {
        let cluster = cluster(c.attributes, c.attribute_count);
        launched(Raw::new(kernel, (c.grid, c.block), cluster, c.shared_bytes), c.stream)
    }))
}

/// `cuLaunchKernelEx`.
pub(super) extern "C" fn driver_launch_configured(
    config: In<DriverLaunchConfig>,
    kernel: usize,
    _arguments: usize,
    _extra: usize,
) -> Code {
    driver_code(config.get().and_then(|c| {
        let cluster = cluster(c.attributes, c.attribute_count);
        launched(Raw::new(kernel, (c.grid, c.block), cluster, c.shared_bytes as usize), c.stream)
    }))
}

/// `cuLaunchKernel`.
pub(super) extern "C" fn driver_launch_kernel(
    kernel: usize,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: usize,
    _arguments: usize,
    _extra: usize,
) -> Code {
    let shape = (Dim3(gx, gy, gz), Dim3(bx, by, bz));
    driver_code(launched(Raw::new(kernel, shape, None, shared as usize), stream))
}

/// The cluster's size in x, when an attribute gives one.
fn cluster(attributes: *const LaunchAttribute, count: c_uint) -> Option<u32> {
    if attributes.is_null() || count > 64 {
        return None;
    }
    // SAFETY: the launch configuration says that so many attributes are there.
    let all = unsafe { std::slice::from_raw_parts(attributes, count as usize) };
    all.iter().find(|attribute| attribute.id == CLUSTER).map(|attribute| attribute.value[0])
}

/// What `kernel<<<grid, block, shared, stream>>>` hands from one compiler
/// support function to the next.
type Configuration = (Dim3, Dim3, usize, usize);

thread_local! {
    static CONFIGURATION: Cell<Configuration> =
        const { Cell::new((Dim3(0, 0, 0), Dim3(0, 0, 0), 0, 0)) };
}

extern "C" fn push_configuration(grid: Dim3, block: Dim3, shared: usize, stream: usize) -> c_uint {
    CONFIGURATION.set((grid, block, shared, stream));
    0
}

extern "C" fn pop_configuration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared: Out<usize>,
    stream: Out<usize>,
) -> Code {
    let now = CONFIGURATION.get();
    code(grid.set(now.0).and_then(|()| block.set(now.1)).and_then(|()| {
        shared.set(now.2)?;
        stream.set(now.3)
    }))
}
