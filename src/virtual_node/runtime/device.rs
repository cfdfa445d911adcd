//! Devices: their number, attributes, properties and who can reach whom.

use super::abi::{Out, Uuid, fill};
use super::description::bus_numbers;
use super::errors::{Code, Error, INVALID_DEVICE, INVALID_VALUE, PEER_UNSUPPORTED, code};
use super::state::{self, node};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

functions! {
    "cudaSetDevice" => set_device,
    "cudaGetDevice" => get_device,
    "cudaGetDeviceCount" => device_count,
    "cudaDriverGetVersion" => driver_version,
    "cudaRuntimeGetVersion" => runtime_version,
    "cudaDeviceGetAttribute" => attribute,
    "cudaDeviceGetPCIBusId" => bus_id,
    "cudaDeviceGetByPCIBusId" => by_bus_id,
    "cudaDeviceCanAccessPeer" => can_access_peer,
    "cudaDeviceEnablePeerAccess" => enable_peer,
    "cudaDeviceDisablePeerAccess" => disable_peer,
    "cudaDeviceSetLimit" => set_limit,
    "cudaDeviceSynchronize" => synchronize,
    "cudaGetDeviceProperties" => properties,
    "cudaGetDeviceProperties_v2" => properties_12,
}

/// `cudaSetDevice`.
pub extern "C" fn set_device(device: c_int) -> Code {
    code(state::choose(Some(device)))
}

extern "C" fn get_device(to: Out<c_int>) -> Code {
    code(to.set(state::device()))
}

extern "C" fn device_count(to: Out<c_int>) -> Code {
    code(to.set(state::count()))
}

extern "C" fn driver_version(to: Out<c_int>) -> Code {
    code(to.set(node().driver))
}

extern "C" fn runtime_version(to: Out<c_int>) -> Code {
    code(to.set(node().runtime))
}

extern "C" fn attribute(to: Out<c_int>, which: c_int, device: c_int) -> Code {
    code(attribute_of(which, device).and_then(|value| to.set(value)))
}

/// The value of `cudaDeviceAttr` / `CUdevice_attribute` (same numbers). What
/// is not listed is a feature that the virtual device does not have: 0.
pub(super) fn attribute_of(which: c_int, device: c_int) -> Result<c_int, Error> {
    let [domain, bus, slot, _] = bus_numbers(&state::gpu(device)?.bus).ok_or(INVALID_DEVICE)?;
    if which <= 0 {
        return Err(INVALID_VALUE);
    }
    let place = match which {
        33 => Some(bus),
        34 => Some(slot),
        50 => Some(domain),
        _ => None,
    };
    Ok(match place {
        Some(number) => number.cast_signed(),
        None => model_attribute(which).unwrap_or_else(|| general_attribute(which)),
    })
}

/// Attributes that differ between models.
fn model_attribute(which: c_int) -> Option<c_int> {
    let figures = &node().figures;
    let hopper = c_int::from(figures.major >= 9);
    Some(match which {
        13 => figures.clock_khz,
        16 => figures.processors,
        36 => figures.memory_khz,
        37 => figures.bus_bits,
        38 => figures.cache,
        75 => figures.major,
        76 => figures.minor,
        81 => figures.shared_processor,
        97 => figures.shared_block,
        120 | 127 => hopper,   // cluster launch, tensor maps
        126 => 1 + 3 * hopper, // memory synchronisation domains
        132 => c_int::from(figures.multicast),
        _ => return None,
    })
}

/// Attributes that all models from Ampere on share.
fn general_attribute(which: c_int) -> c_int {
    match which {
        1..=3 | 111 => 1024, // threads a block; x; y; reserved shared memory
        4 => 64,
        5 | 11 => c_int::MAX,
        6 | 7 => 65535,
        8 => 49152,
        9 | 12 | 82 => 65536,
        10 | 106 => 32,
        14 => 512,
        39 => 2048,
        40 => 3,
        // Overlap, mapped host memory, concurrent kernels, ECC, unified
        // addressing, stream priorities, L1 caches, managed memory.
        15 | 19 | 31 | 32 | 41 | 78..=80 | 83 => 1,
        // Preemption, registered host pointers, stream memory operations,
        // cooperative launch, host register.
        89..=96 | 98 | 99 => 1,
        // Virtual memory with file descriptors, memory pools.
        102 | 103 | 115 | 119 | 121..=123 | 129 => 1,
        // Not here: fabric handles (128), DMA-BUF (124), GPUDirect RDMA (116).
        _ => 0,
    }
}

extern "C" fn bus_id(to: *mut c_char, room: c_int, device: c_int) -> Code {
    code(state::gpu(device).and_then(|gpu| {
        let text = gpu.bus.to_ascii_uppercase();
        let room = usize::try_from(room).unwrap_or(0);
        if room <= text.len() {
            return Err(INVALID_VALUE);
        }
        fill(to.cast(), text.len() + 1, &[(0, text.as_bytes())])
    }))
}

extern "C" fn by_bus_id(to: Out<c_int>, text: *const c_char) -> Code {
    code(c_text(text).and_then(|text| to.set(state::by_bus(&text)?)))
}

/// A C string of a caller, as text.
pub(super) fn c_text(from: *const c_char) -> Result<String, Error> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA's contract for such an argument is a string that ends in NUL.
    Ok(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

extern "C" fn can_access_peer(to: Out<c_int>, one: c_int, other: c_int) -> Code {
    code(reaches(one, other).and_then(|yes| to.set(c_int::from(yes))))
}

/// Whether one device can use the memory of another.
pub(super) fn reaches(one: c_int, other: c_int) -> Result<bool, Error> {
    state::gpu(one)?;
    state::gpu(other)?;
    Ok(one != other && node().figures.peer)
}

extern "C" fn enable_peer(peer: c_int, _flags: c_uint) -> Code {
    code(match reaches(state::device(), peer) {
        Ok(true) => Ok(()),
        Ok(false) => Err(PEER_UNSUPPORTED),
        Err(error) => Err(error),
    })
}

extern "C" fn disable_peer(peer: c_int) -> Code {
    code(state::gpu(peer).map(drop))
}

extern "C" fn set_limit(_which: c_int, _value: usize) -> Code {
    0
}

/// Everything that was enqueued is done: nothing is ever executed later.
extern "C" fn synchronize() -> Code {
    0
}

/// `cudaGetDeviceProperties` of CUDA 13. The structure that CUDA 12 has under
/// this name is older than 12.0, and NCCL does not ask for it.
extern "C" fn properties(to: *mut c_void, device: c_int) -> Code {
    if !state::thirteen() {
        return super::errors::unimplemented("cudaGetDeviceProperties");
    }
    code(write_properties(to, device, &THIRTEEN))
}

extern "C" fn properties_12(to: *mut c_void, device: c_int) -> Code {
    code(write_properties(to, device, &TWELVE))
}

/// Where members of `cudaDeviceProp` are, in bytes, as far as the two versions
/// differ.
struct Layout {
    size: usize,
    processors: usize,
    bus_bits: usize,
    bus: usize,
    unified: usize,
    cache: usize,
    threads: usize,
    shared_processor: usize,
    shared_block: usize,
    /// `clockRate`, which CUDA 13 dropped.
    clock: Option<usize>,
}

const TWELVE: Layout = Layout {
    size: 1032,
    processors: 388,
    bus_bits: 612,
    bus: 584,
    unified: 604,
    cache: 616,
    threads: 624,
    shared_processor: 640,
    shared_block: 696,
    clock: Some(348),
};
const THIRTEEN: Layout = Layout {
    size: 1008,
    processors: 384,
    bus_bits: 592,
    bus: 568,
    unified: 588,
    cache: 596,
    threads: 604,
    shared_processor: 624,
    shared_block: 672,
    clock: None,
};

fn write_properties(to: *mut c_void, device: c_int, at: &Layout) -> Result<(), Error> {
    let [domain, bus, slot, _] = bus_numbers(&state::gpu(device)?.bus).ok_or(INVALID_DEVICE)?;
    let (node, figures) = (node(), &node().figures);
    let name = &node.model.as_bytes()[..node.model.len().min(255)];
    let Uuid(uuid) = uuid(device)?;
    let number = |value: c_int| value.to_ne_bytes();
    let clock = number(figures.clock_khz);
    let mut values: Vec<(usize, &[u8])> = vec![(0, name), (256, &uuid)];
    if let Some(offset) = at.clock {
        values.push((offset, &clock));
    }
    let memory = (figures.memory, 49152u64, 65536u64);
    let bytes = [memory.0.to_ne_bytes(), memory.1.to_ne_bytes(), memory.2.to_ne_bytes()];
    values.extend([288, 296, 352].into_iter().zip(bytes.iter().map(|b| &b[..])));
    let numbers = [
        (304, 65536), // registers a block
        (308, 32),    // warp
        (320, 1024),  // threads a block
        (360, figures.major),
        (364, figures.minor),
        (at.processors, figures.processors),
        (at.bus_bits, figures.bus_bits),
        (at.bus, bus.cast_signed()),
        (at.bus + 4, slot.cast_signed()),
        (at.bus + 8, domain.cast_signed()),
        (at.unified, 1),
        (at.cache, figures.cache),
        (at.threads, 2048),
    ]
    .map(|(offset, value)| (offset, number(value)));
    values.extend(numbers.iter().map(|(offset, bytes)| (*offset, &bytes[..])));
    let shared = [figures.shared_processor, figures.shared_block];
    let shared = shared.map(|value| i64::from(value).to_ne_bytes());
    values.extend([(at.shared_processor, &shared[0][..]), (at.shared_block, &shared[1][..])]);
    fill(to, at.size, &values)
}

/// An id that says what it is: `vgpu`, then the device number.
pub(super) fn uuid(device: c_int) -> Result<Uuid, Error> {
    state::gpu(device)?;
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(b"vgpu");
    bytes[12..].copy_from_slice(&(device + 1).to_be_bytes());
    Ok(Uuid(bytes))
}
