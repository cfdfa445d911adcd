//! The driver's virtual memory management and multicast objects: an allocation
//! handle is a file without a name, a shareable handle is a copy of its
//! descriptor, and mapping is mapping.

use super::abi::{AllocationProperties, In, MulticastProperties, Out};
use super::errors::{
    Code, Error, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY,
    driver_code, refused,
};
use super::memory::{self, Kind, Range};
use super::sys::{self, Backing, Pages};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_ulonglong};
use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::sync::{Arc, Mutex, PoisonError};

/// The granularity of real devices: large pages.
const LARGE_PAGE: usize = 2 << 20;
/// The recommended granularity of multicast objects.
const MULTICAST_PAGE: usize = 512 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

/// What a handle stands for.
#[derive(Debug)]
pub(super) struct Physical {
    /// The handle, for whoever asks a mapping for it.
    handle: u64,
    pub(super) file: File,
    properties: AllocationProperties,
}

impl Physical {
    /// It is host memory.
    pub(super) fn on_host(&self) -> bool {
        self.properties.location.kind != ON_DEVICE
    }
}

#[derive(Default)]
struct Tables {
    last: u64,
    /// By handle, with the number of references that callers hold.
    handles: HashMap<u64, (Arc<Physical>, usize)>,
    reserved: BTreeMap<usize, Pages>,
}

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

functions! {
    "cuMemAddressReserve" => address_reserve,
    "cuMemAddressFree" => address_free,
    "cuMemCreate" => create,
    "cuMemRelease" => release,
    "cuMemMap" => map,
    "cuMemUnmap" => unmap,
    "cuMemSetAccess" => set_access,
    "cuMemExportToShareableHandle" => export,
    "cuMemImportFromShareableHandle" => import,
    "cuMemGetAllocationGranularity" => granularity,
    "cuMemGetAllocationPropertiesFromHandle" => properties,
    "cuMemRetainAllocationHandle" => retain,
    "cuMulticastCreate" => multicast_create,
    "cuMulticastGetGranularity" => multicast_granularity,
    "cuMulticastAddDevice" => multicast_add_device,
    "cuMulticastBindMem" => multicast_bind_memory,
    "cuMulticastBindAddr" => multicast_bind_address,
    "cuMulticastUnbind" => multicast_unbind,
}

fn with<T>(act: impl FnOnce(&mut Tables) -> T) -> T {
    act(TABLES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

fn new_handle(file: File, properties: AllocationProperties) -> u64 {
    with(|tables| {
        tables.last += 1;
        let handle = tables.last;
        let physical = Physical { handle, file, properties };
        tables.handles.insert(handle, (Arc::new(physical), 1));
        handle
    })
}

fn physical(handle: u64) -> Result<Arc<Physical>, Error> {
    with(|tables| tables.handles.get(&handle).map(|(physical, _)| Arc::clone(physical)))
        .ok_or(INVALID_HANDLE)
}

extern "C" fn granularity(to: Out<usize>, _properties: usize, _which: c_int) -> Code {
    driver_code(to.set(LARGE_PAGE))
}

extern "C" fn create(
    to: Out<u64>,
    bytes: usize,
    properties: In<AllocationProperties>,
    _flags: c_ulonglong,
) -> Code {
    driver_code(properties.get().and_then(|properties| {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let file = sys::memory_file(c"nccldiag-virtual-vmm", bytes)?;
        to.set(new_handle(file, properties))
    }))
}

/// The memory itself stays as long as it is mapped.
extern "C" fn release(handle: u64) -> Code {
    let gone = with(|tables| {
        let (_, references) = tables.handles.get_mut(&handle)?;
        *references -= 1;
        let last = *references == 0;
        if last { tables.handles.remove(&handle).map(Some) } else { Some(None) }
    });
    driver_code(gone.map(drop).ok_or(INVALID_HANDLE))
}

extern "C" fn address_reserve(
    to: Out<usize>,
    bytes: usize,
    alignment: usize,
    _wish: usize,
    _flags: c_ulonglong,
) -> Code {
    driver_code(reserve(bytes, alignment.max(LARGE_PAGE)).and_then(|at| to.set(at)))
}

fn reserve(bytes: usize, alignment: usize) -> Result<usize, Error> {
    if bytes == 0 || !alignment.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let all = bytes.checked_add(alignment).ok_or(OUT_OF_MEMORY)?;
    let pages = sys::map(all, Backing::Reserved)?;
    let at = pages.at.next_multiple_of(alignment);
    let end = pages.at + all;
    // Both ends that alignment did not need are given back when dropped.
    drop(Pages { at: pages.at, bytes: at - pages.at });
    drop(Pages { at: at + bytes, bytes: end - at - bytes });
    std::mem::forget(pages);
    with(|tables| tables.reserved.insert(at, Pages { at, bytes }));
    Ok(at)
}

extern "C" fn address_free(at: usize, _bytes: usize) -> Code {
    let gone = with(|tables| tables.reserved.remove(&at));
    driver_code(gone.map(drop).ok_or(INVALID_VALUE))
}

extern "C" fn map(at: usize, bytes: usize, from: usize, handle: u64, _flags: c_ulonglong) -> Code {
    driver_code(physical(handle).and_then(|physical| map_at(at, bytes, from, physical)))
}

fn map_at(at: usize, bytes: usize, from: usize, physical: Arc<Physical>) -> Result<(), Error> {
    if !is_reserved(at, bytes) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the range is inside a reservation, which belongs to the caller.
    let mapped = unsafe { sys::map_over(at, bytes, Backing::Shared(&physical.file, from)) };
    mapped.map_err(|error| refused("map device memory", &error))?;
    let device = if physical.on_host() { 0 } else { physical.properties.location.id };
    let kind = Kind::Mapped(physical, from);
    memory::ranges().insert(at, Range { bytes, device, kind, _pages: None });
    Ok(())
}

fn is_reserved(at: usize, bytes: usize) -> bool {
    with(|tables| {
        let before = tables.reserved.range(..=at).next_back();
        before.is_some_and(|(start, pages)| {
            at.checked_add(bytes).is_some_and(|end| end <= start + pages.bytes)
        })
    })
}

extern "C" fn unmap(at: usize, bytes: usize) -> Code {
    driver_code(unmap_all(at, bytes))
}

/// Takes every mapping out of a range and leaves it reserved.
fn unmap_all(at: usize, bytes: usize) -> Result<(), Error> {
    let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let mut all = memory::ranges();
    let mapped = |range: &Range| matches!(range.kind, Kind::Mapped(..));
    let inside = all.range(at..end).filter(|(_, range)| mapped(range));
    let inside: Vec<usize> = inside.map(|(&start, _)| start).collect();
    for start in inside {
        let Some(range) = all.remove(&start) else { continue };
        // SAFETY: this range was mapped here, and its user gives it up.
        unsafe { sys::map_over(start, range.bytes, Backing::Reserved) }
            .map_err(|_| OPERATING_SYSTEM)?;
    }
    Ok(())
}

/// Every device of the node may reach all memory.
extern "C" fn set_access(_at: usize, _bytes: usize, _list: usize, _count: usize) -> Code {
    0
}

extern "C" fn export(to: Out<c_int>, handle: u64, kind: c_int, _flags: c_ulonglong) -> Code {
    if kind != DESCRIPTOR {
        return driver_code(Err(NOT_SUPPORTED));
    }
    driver_code(physical(handle).and_then(|physical| {
        let copy = physical.file.try_clone().map_err(|_| OPERATING_SYSTEM)?;
        to.set(copy.into_raw_fd()) // the caller's from now on
    }))
}

/// The descriptor travels in the place of a pointer.
extern "C" fn import(to: Out<u64>, descriptor: usize, kind: c_int) -> Code {
    if kind != DESCRIPTOR {
        return driver_code(Err(NOT_SUPPORTED));
    }
    let Ok(descriptor @ 0..) = c_int::try_from(descriptor) else {
        return driver_code(Err(INVALID_VALUE));
    };
    // SAFETY: the caller owns the descriptor and keeps it open during the call.
    let theirs = unsafe { BorrowedFd::borrow_raw(descriptor) };
    driver_code(theirs.try_clone_to_owned().map_err(|_| INVALID_VALUE).and_then(|own| {
        let location = super::abi::Location { kind: ON_DEVICE, id: 0 };
        let properties = AllocationProperties {
            kind: 1, // pinned
            handle_types: kind,
            location,
            ..AllocationProperties::default()
        };
        to.set(new_handle(own.into(), properties))
    }))
}

/// The same handle as before, with one more reference.
extern "C" fn retain(to: Out<u64>, at: usize) -> Code {
    let found = match memory::holding(&memory::ranges(), at) {
        Some((_, Range { kind: Kind::Mapped(physical, _), .. })) => Ok(Arc::clone(physical)),
        _ => Err(INVALID_VALUE),
    };
    driver_code(found.and_then(|physical| {
        let handle = physical.handle;
        with(|tables| tables.handles.entry(handle).or_insert((physical, 0)).1 += 1);
        to.set(handle)
    }))
}

extern "C" fn properties(to: Out<AllocationProperties>, handle: u64) -> Code {
    driver_code(physical(handle).and_then(|physical| to.set(physical.properties)))
}

extern "C" fn multicast_granularity(to: Out<usize>, _properties: usize, which: c_int) -> Code {
    driver_code(to.set(if which == 0 { LARGE_PAGE } else { MULTICAST_PAGE }))
}

extern "C" fn multicast_create(to: Out<u64>, properties: In<MulticastProperties>) -> Code {
    driver_code(properties.get().and_then(|wish| {
        let name = c"nccldiag-virtual-multicast";
        let file = sys::memory_file(name, wish.bytes)?;
        let location = super::abi::Location { kind: ON_DEVICE, id: 0 };
        let properties = AllocationProperties { location, ..AllocationProperties::default() };
        to.set(new_handle(file, properties))
    }))
}

extern "C" fn multicast_add_device(handle: u64, _device: c_int) -> Code {
    driver_code(physical(handle).map(drop))
}

extern "C" fn multicast_bind_memory(handle: u64, _offset: usize, memory: u64) -> Code {
    driver_code(physical(handle).and_then(|_| physical(memory)).map(drop))
}

extern "C" fn multicast_bind_address(handle: u64) -> Code {
    driver_code(physical(handle).map(drop))
}

extern "C" fn multicast_unbind(handle: u64, _device: c_int) -> Code {
    driver_code(physical(handle).map(drop))
}
