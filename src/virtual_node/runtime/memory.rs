//! Memory of the virtual devices: files without a name, mapped without
//! reserving, so that what nobody touches costs nothing. Also registered host
//! memory, copies, fills, and what a pointer is.

use super::abi::{Out, fill};
use super::errors::{ALREADY_REGISTERED, Code, Error, INVALID_VALUE, OUT_OF_MEMORY, code};
use super::sys::{self, Backing, PAGE, Pages};
use super::{state, vmm};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What `cudaMalloc` rounds up to.
const ROUND: usize = 64 << 10;
/// Smaller fills are cheaper than a system call.
const PUNCH: usize = 64 << 10;

/// What kind of memory a range is.
#[derive(Debug)]
pub(super) enum Kind {
    /// Memory of a device, with the file that holds it.
    Device(Arc<File>),
    /// Host memory that was allocated here.
    Host,
    /// Host memory of the caller.
    Registered,
    /// A mapped part of an allocation handle, from an offset in bytes.
    Mapped(Arc<vmm::Physical>, usize),
}

/// One range.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) bytes: usize,
    pub(super) device: c_int,
    pub(super) kind: Kind,
    /// The pages, when they go with the range: they are unmapped with it.
    pub(super) _pages: Option<Pages>,
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

functions! {
    "cudaMalloc" => malloc,
    "cudaMallocAsync" => malloc_async,
    "cudaMallocFromPoolAsync" => malloc_from_pool,
    "cudaFree" => free,
    "cudaFreeAsync" => free_async,
    "cudaMemPoolCreate" => pool_create,
    "cudaMemPoolDestroy" => pool_destroy,
    "cudaMemPoolSetAttribute" => pool_set_attribute,
    "cudaHostAlloc" => host_alloc,
    "cudaMallocHost" => malloc_host,
    "cudaFreeHost" => free_host,
    "cudaHostRegister" => host_register,
    "cudaHostUnregister" => host_unregister,
    "cudaHostGetDevicePointer" => host_device_pointer,
    "cudaMemcpy" => copy,
    "cudaMemcpyAsync" => copy_async,
    "cudaMemcpyBatchAsync" => copy_batch,
    "cudaMemset" => set,
    "cudaMemsetAsync" => set_async,
    "cudaMemGetInfo" => info,
    "cudaPointerGetAttributes" => pointer_attributes,
}

/// All ranges, locked.
pub(super) fn ranges() -> MutexGuard<'static, BTreeMap<usize, Range>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range that holds an address.
pub(super) fn holding(ranges: &BTreeMap<usize, Range>, at: usize) -> Option<(usize, &Range)> {
    let (&start, range) = ranges.range(..=at).next_back()?;
    (at - start < range.bytes).then_some((start, range))
}

/// `cudaMalloc`.
pub extern "C" fn malloc(to: Out<usize>, bytes: usize) -> Code {
    code(allocate(bytes, state::device()).and_then(|at| to.set(at)))
}

extern "C" fn malloc_async(to: Out<usize>, bytes: usize, _stream: usize) -> Code {
    malloc(to, bytes)
}

extern "C" fn malloc_from_pool(to: Out<usize>, bytes: usize, _pool: usize, _s: usize) -> Code {
    malloc(to, bytes)
}

/// Device memory; 0 for 0 bytes, as CUDA does.
fn allocate(bytes: usize, device: c_int) -> Result<usize, Error> {
    if bytes == 0 {
        return Ok(0);
    }
    let bytes = bytes.checked_next_multiple_of(ROUND).ok_or(OUT_OF_MEMORY)?;
    let file = sys::memory_file(c"nccldiag-virtual-gpu", bytes)?;
    let pages = sys::map(bytes, Backing::Shared(&file, 0))?;
    let (at, kind) = (pages.at, Kind::Device(Arc::new(file)));
    ranges().insert(at, Range { bytes, device, kind, _pages: Some(pages) });
    Ok(at)
}

/// `cudaFree`.
pub extern "C" fn free(at: usize) -> Code {
    code(release(at, |kind| matches!(kind, Kind::Device(_))))
}

extern "C" fn free_async(at: usize, _stream: usize) -> Code {
    free(at)
}

/// Forgets a range that begins at `at` and is of the right kind.
pub(super) fn release(at: usize, right: impl Fn(&Kind) -> bool) -> Result<(), Error> {
    if at == 0 {
        return Ok(());
    }
    let mut all = ranges();
    match all.get(&at) {
        Some(range) if right(&range.kind) => {
            let range = all.remove(&at);
            drop(all);
            drop(range); // unmaps outside the lock
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

extern "C" fn pool_create(to: Out<usize>, _properties: usize) -> Code {
    // One pool is as good as another: nothing is ever kept for later.
    code(to.set(PAGE))
}

extern "C" fn pool_destroy(_pool: usize) -> Code {
    0
}

extern "C" fn pool_set_attribute(_pool: usize, _which: c_int, _value: usize) -> Code {
    0
}

extern "C" fn host_alloc(to: Out<usize>, bytes: usize, _flags: c_uint) -> Code {
    code(allocate_host(bytes).and_then(|at| to.set(at)))
}

extern "C" fn malloc_host(to: Out<usize>, bytes: usize) -> Code {
    code(allocate_host(bytes).and_then(|at| to.set(at)))
}

fn allocate_host(bytes: usize) -> Result<usize, Error> {
    if bytes == 0 {
        return Ok(0);
    }
    let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    let pages = sys::map(bytes, Backing::Private)?;
    let at = pages.at;
    let device = state::device();
    ranges().insert(at, Range { bytes, device, kind: Kind::Host, _pages: Some(pages) });
    Ok(at)
}

extern "C" fn free_host(at: usize) -> Code {
    code(release(at, |kind| matches!(kind, Kind::Host)))
}

extern "C" fn host_register(at: usize, bytes: usize, _flags: c_uint) -> Code {
    if at == 0 || bytes == 0 {
        return code(Err(INVALID_VALUE));
    }
    let range = Range { bytes, device: state::device(), kind: Kind::Registered, _pages: None };
    match ranges().entry(at) {
        Entry::Vacant(free) => {
            free.insert(range);
            0
        }
        Entry::Occupied(_) => code(Err(ALREADY_REGISTERED)),
    }
}

extern "C" fn host_unregister(at: usize) -> Code {
    code(release(at, |kind| matches!(kind, Kind::Registered)))
}

/// Addresses are the same on both sides.
extern "C" fn host_device_pointer(to: Out<usize>, at: usize, _flags: c_uint) -> Code {
    code(to.set(at))
}

extern "C" fn copy(to: *mut u8, from: *const u8, bytes: usize, _direction: c_int) -> Code {
    code(copy_bytes(to, from, bytes))
}

extern "C" fn copy_async(
    to: *mut u8,
    from: *const u8,
    bytes: usize,
    _direction: c_int,
    _stream: usize,
) -> Code {
    code(copy_bytes(to, from, bytes))
}

fn copy_bytes(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    if to.is_null() || from.is_null() {
        return Err(INVALID_VALUE);
    }
    // As with kernels, what a user's buffers hold means nothing: a collective
    // of one rank is such a copy, and would fill gigabytes.
    if bytes >= PUNCH && [to.addr(), from.addr()].into_iter().all(on_device) {
        return Ok(());
    }
    // SAFETY: CUDA's contract: the caller owns `bytes` bytes at both ends;
    // device memory is ordinary memory here.
    unsafe { std::ptr::copy(from, to, bytes) };
    Ok(())
}

/// Whether an address is in memory of `cudaMalloc`.
fn on_device(at: usize) -> bool {
    holding(&ranges(), at).is_some_and(|(_, range)| matches!(range.kind, Kind::Device(_)))
}

/// Attributes follow in the signature; they only say how to copy.
extern "C" fn copy_batch(
    to: super::abi::In<*mut u8>,
    from: super::abi::In<*const u8>,
    bytes: super::abi::In<usize>,
    count: usize,
) -> Code {
    code((0..count).try_for_each(|i| copy_bytes(to.at(i)?, from.at(i)?, bytes.at(i)?)))
}

extern "C" fn set(at: usize, value: c_int, bytes: usize) -> Code {
    code(fill_bytes(at, value as u8, bytes))
}

extern "C" fn set_async(at: usize, value: c_int, bytes: usize, _stream: usize) -> Code {
    code(fill_bytes(at, value as u8, bytes))
}

/// Fills memory. Large zero fills make holes, so that they cost no memory.
pub(super) fn fill_bytes(at: usize, value: u8, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    if at == 0 {
        return Err(INVALID_VALUE);
    }
    let (start, end) = (at.next_multiple_of(PAGE), (at + bytes) & !(PAGE - 1));
    let large = value == 0 && bytes >= PUNCH && end > start;
    if large && let Some(()) = zero_pages(start, end) {
        write(at, 0, start - at);
        write(end, 0, at + bytes - end);
    } else {
        write(at, value, bytes);
    }
    Ok(())
}

fn write(at: usize, value: u8, bytes: usize) {
    // SAFETY: CUDA's contract: the caller owns these bytes.
    unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
}

/// Makes whole pages zero without touching them, where that is possible.
fn zero_pages(start: usize, end: usize) -> Option<()> {
    let all = ranges();
    let (base, range) = holding(&all, start)?;
    if end > base + range.bytes {
        return None;
    }
    let (from, bytes) = (start - base, end - start);
    match &range.kind {
        Kind::Device(file) => sys::punch(file, from, bytes).ok(),
        Kind::Mapped(physical, offset) => sys::punch(&physical.file, offset + from, bytes).ok(),
        // SAFETY: private pages of this range, which the caller wants zero.
        Kind::Host => unsafe { sys::forget_pages(start, bytes) }.ok(),
        Kind::Registered => None,
    }
}

extern "C" fn info(free: Out<usize>, total: Out<usize>) -> Code {
    let device = state::device();
    let used: usize = ranges()
        .values()
        .filter(|range| range.device == device && matches!(range.kind, Kind::Device(_)))
        .map(|range| range.bytes)
        .sum();
    let memory = usize::try_from(state::node().figures.memory).unwrap_or(usize::MAX);
    code(free.set(memory.saturating_sub(used)).and_then(|()| total.set(memory)))
}

/// `cudaPointerGetAttributes`: type, device, device and host pointer. The
/// structure has 24 bytes in CUDA 12 and 88 in 13.
extern "C" fn pointer_attributes(to: *mut c_void, at: usize) -> Code {
    const UNREGISTERED: (c_int, c_int) = (0, -2);
    let size = if state::thirteen() { 88 } else { 24 };
    let found = holding(&ranges(), at).map(|(_, range)| match range.kind {
        Kind::Host | Kind::Registered => (1, range.device),
        Kind::Mapped(ref physical, _) if physical.on_host() => (1, range.device),
        Kind::Device(_) | Kind::Mapped(..) => (2, range.device),
    });
    let (kind, device) = found.unwrap_or(UNREGISTERED);
    let pointer = |there: bool| if there { at.to_ne_bytes() } else { [0; 8] };
    let values: [(usize, &[u8]); 4] = [
        (0, &kind.to_ne_bytes()),
        (4, &device.to_ne_bytes()),
        (8, &pointer(kind != 0)),
        (16, &pointer(kind != 2)),
    ];
    code(fill(to, size, &values))
}
