//! The functions of NVIDIA's management library that NCCL looks up by name in
//! `libnvidia-ml.so.1`, which is never loaded: topology questions about the
//! same GPUs that the runtime shows.

use super::abi::{FieldValue, Out, fill};
use super::description::bus_numbers;
use super::device::{c_text, reaches};
use super::errors::Error;
use super::state::{self, node};
use std::ffi::{c_char, c_int, c_uint, c_void};

type Result<T> = std::result::Result<T, Error>;

const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
/// `NVML_P2P_STATUS_OK` and `..._DISABLED_BY_REGKEY`'s neighbour: not supported.
const PEER_OK: c_int = 0;
const PEER_NOT_SUPPORTED: c_int = 5;
/// `NVML_FI_DEV_NVLINK_LINK_COUNT`, `NVML_FI_DEV_NVLINK_GET_STATE`.
const FIELD_LINK_COUNT: u32 = 91;
const FIELD_LINK_STATE: u32 = 165;
const UNSIGNED_INT: u32 = 1;

functions! {
    "nvmlInit" => succeed,
    "nvmlInit_v2" => succeed,
    "nvmlShutdown" => succeed,
    "nvmlDeviceGetCount" => count,
    "nvmlDeviceGetCount_v2" => count,
    "nvmlDeviceGetHandleByIndex" => by_index,
    "nvmlDeviceGetHandleByIndex_v2" => by_index,
    "nvmlDeviceGetHandleByPciBusId" => by_bus,
    "nvmlDeviceGetHandleByPciBusId_v2" => by_bus,
    "nvmlDeviceGetIndex" => index,
    "nvmlErrorString" => error_text,
    "nvmlDeviceGetCudaComputeCapability" => capability,
    "nvmlDeviceGetNvLinkState" => link_state,
    "nvmlDeviceGetNvLinkCapability" => link_capability,
    "nvmlDeviceGetNvLinkRemotePciInfo" => link_remote,
    "nvmlDeviceGetP2PStatus" => peer_status,
    "nvmlDeviceGetFieldValues" => field_values,
    "nvmlDeviceGetGpuFabricInfoV" => fabric_info,
    "nvmlDeviceGetPciInfo_v3" => pci_info,
    "nvmlDeviceGetPciInfoExt" => pci_info_extended,
    "nvmlDeviceGetCurrPcieLinkGeneration" => pcie_generation,
    "nvmlDeviceGetPcieLinkMaxSpeed" => pcie_generation,
    "nvmlDeviceGetCurrPcieLinkWidth" => pcie_width,
    "nvmlDeviceGetName" => name,
    "nvmlDeviceGetNvLinkRemoteDeviceType" => link_remote_type,
    "nvmlDeviceGetMemoryErrorCounter" => nothing,
    "nvmlDeviceGetPlatformInfo" => nothing,
    "nvmlSystemGetDriverVersion" => driver,
    "nvmlSystemGetConfComputeState" => confidential_state,
    "nvmlSystemGetConfComputeSettings" => confidential_settings,
}

fn code(result: Result<()>, otherwise: c_int) -> c_int {
    if result.is_ok() { 0 } else { otherwise }
}

/// Handles are device numbers from 1 on.
fn device(handle: usize) -> Result<c_int> {
    let device = c_int::try_from(handle).map_err(|_| super::errors::INVALID_DEVICE)? - 1;
    state::gpu(device).map(|_| device)
}

fn handle(device: c_int) -> usize {
    device.cast_unsigned() as usize + 1
}

fn links(of: usize) -> u32 {
    device(of).and_then(state::gpu).map_or(0, |gpu| gpu.links)
}

extern "C" fn succeed() -> c_int {
    0
}

extern "C" fn count(to: Out<c_uint>) -> c_int {
    code(to.set(state::count().cast_unsigned()), INVALID_ARGUMENT)
}

extern "C" fn by_index(index: c_uint, to: Out<usize>) -> c_int {
    let index = index.cast_signed();
    code(state::gpu(index).and_then(|_| to.set(handle(index))), INVALID_ARGUMENT)
}

extern "C" fn by_bus(text: *const c_char, to: Out<usize>) -> c_int {
    let found = c_text(text).and_then(|text| state::by_bus(&text));
    code(found.and_then(|device| to.set(handle(device))), NOT_FOUND)
}

extern "C" fn index(of: usize, to: Out<c_uint>) -> c_int {
    code(device(of).and_then(|device| to.set(device.cast_unsigned())), INVALID_ARGUMENT)
}

extern "C" fn error_text(code: c_int) -> *const c_char {
    match code {
        0 => c"success",
        INVALID_ARGUMENT => c"invalid argument (virtual device)",
        NOT_SUPPORTED => c"not supported (virtual device)",
        NOT_FOUND => c"not found (virtual device)",
        _ => c"unknown error (virtual device)",
    }
    .as_ptr()
}

extern "C" fn capability(of: usize, major: Out<c_int>, minor: Out<c_int>) -> c_int {
    let figures = &node().figures;
    let written = device(of).and_then(|_| major.set(figures.major));
    code(written.and_then(|()| minor.set(figures.minor)), INVALID_ARGUMENT)
}

extern "C" fn link_state(of: usize, link: c_uint, to: Out<c_uint>) -> c_int {
    if link < links(of) { code(to.set(1), INVALID_ARGUMENT) } else { NOT_SUPPORTED }
}

/// Every link that is there can do what is asked (peer access, above all).
extern "C" fn link_capability(of: usize, link: c_uint, _which: c_int, to: Out<c_uint>) -> c_int {
    link_state(of, link, to)
}

/// NCCL asks who is at the other end only where the topology does not say it:
/// platform templates of machines with NVSwitches. Their virtual machines show
/// a switch under this address. Without a suffix the function has the first
/// `nvmlPciInfo_t`: 52 bytes that begin with the bus id.
extern "C" fn link_remote(of: usize, link: c_uint, to: *mut c_void) -> c_int {
    if link >= links(of) {
        return NOT_SUPPORTED;
    }
    code(fill(to, 52, &[(0, b"fffffff:ffff:ff")]), INVALID_ARGUMENT)
}

extern "C" fn peer_status(one: usize, other: usize, _which: c_int, to: Out<c_int>) -> c_int {
    let status = device(one).and_then(|one| reaches(one, device(other)?));
    let status = status.map(|yes| if yes { PEER_OK } else { PEER_NOT_SUPPORTED });
    code(status.and_then(|status| to.set(status)), INVALID_ARGUMENT)
}

/// Each value carries its own result.
extern "C" fn field_values(of: usize, count: c_int, values: *mut FieldValue) -> c_int {
    let Ok(count @ 0..=1024) = usize::try_from(count) else { return INVALID_ARGUMENT };
    if values.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: NVML's contract: an array of so many values.
    let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
    let links = links(of);
    for value in values {
        let answer = match value.field {
            FIELD_LINK_COUNT => Some(u64::from(links)),
            FIELD_LINK_STATE if value.scope < links => Some(1),
            _ => None,
        };
        value.result = if answer.is_some() { 0 } else { NOT_SUPPORTED };
        value.value_type = UNSIGNED_INT;
        value.value = answer.unwrap_or(0);
    }
    0
}

/// `nvmlPciInfo_t` up to the subsystem, which is all that NCCL has room for.
extern "C" fn pci_info(of: usize, to: *mut c_void) -> c_int {
    code(device(of).and_then(|device| write_pci(device, to, 52, 16)), INVALID_ARGUMENT)
}

/// `nvmlPciInfoExt_t`: a version, which stays, then the same numbers, then the
/// class (a 3D controller).
extern "C" fn pci_info_extended(of: usize, to: *mut u32) -> c_int {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: NVML's contract: a structure of 64 bytes, whose version the
    // caller has set.
    let rest: *mut c_void = unsafe { to.add(1) }.cast();
    code(device(of).and_then(|device| write_pci(device, rest, 60, 0)), INVALID_ARGUMENT)
}

/// Domain, bus, device, device id, subsystem (none) from `at` on, then, for
/// the longer structure, the class.
fn write_pci(device: c_int, to: *mut c_void, bytes: usize, at: usize) -> Result<()> {
    let gpu = state::gpu(device)?;
    let [domain, bus, slot, _] = bus_numbers(&gpu.bus).ok_or(super::errors::INVALID_DEVICE)?;
    let numbers = [domain, bus, slot, node().figures.pci_id].map(u32::to_ne_bytes);
    let class = [3u32, 2].map(u32::to_ne_bytes);
    let mut values: Vec<(usize, &[u8])> =
        numbers.iter().enumerate().map(|(i, number)| (at + 4 * i, &number[..])).collect();
    match at {
        0 => values.extend([(20, &class[0][..]), (24, &class[1]), (28, gpu.bus.as_bytes())]),
        _ => values.push((0, &gpu.bus.as_bytes()[..gpu.bus.len().min(15)])),
    }
    fill(to, bytes, &values)
}

/// The generation of the model's slot; the codes of speeds are the same numbers.
extern "C" fn pcie_generation(of: usize, to: Out<c_uint>) -> c_int {
    let generation = if node().figures.major >= 9 { 5 } else { 4 };
    code(device(of).and_then(|_| to.set(generation)), INVALID_ARGUMENT)
}

extern "C" fn pcie_width(of: usize, to: Out<c_uint>) -> c_int {
    code(device(of).and_then(|_| to.set(16)), INVALID_ARGUMENT)
}

extern "C" fn name(of: usize, to: *mut c_void, room: c_uint) -> c_int {
    code(device(of).and_then(|_| write_text(&node().model, to, room)), INVALID_ARGUMENT)
}

extern "C" fn driver(to: *mut c_void, room: c_uint) -> c_int {
    code(write_text("virtual", to, room), INVALID_ARGUMENT)
}

fn write_text(text: &str, to: *mut c_void, room: c_uint) -> Result<()> {
    let bytes = text.as_bytes();
    if room as usize <= bytes.len() {
        return Err(super::errors::INVALID_VALUE);
    }
    fill(to, bytes.len() + 1, &[(0, bytes)])
}

/// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`.
extern "C" fn link_remote_type(of: usize, link: c_uint, to: Out<c_uint>) -> c_int {
    if link < links(of) { code(to.set(255), INVALID_ARGUMENT) } else { NOT_SUPPORTED }
}

/// For what a virtual device does not have, as some real ones do not.
extern "C" fn nothing() -> c_int {
    NOT_SUPPORTED
}

/// One node, no fabric of several.
extern "C" fn fabric_info(_of: usize, _to: usize) -> c_int {
    NOT_SUPPORTED
}

/// Off: three integers.
extern "C" fn confidential_state(to: *mut c_void) -> c_int {
    code(fill(to, 12, &[]), INVALID_ARGUMENT)
}

/// Off: the structure begins with its version, which stays.
extern "C" fn confidential_settings(to: *mut u32) -> c_int {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: NVML's contract: a structure of five integers, the first of
    // which the caller has set.
    let rest = unsafe { to.add(1) };
    code(fill(rest.cast(), 16, &[]), INVALID_ARGUMENT)
}
