//! The functions of the CUDA driver interface that NCCL asks the runtime for,
//! handed out by name. There is no driver library behind them, and none is
//! ever loaded.

use super::abi::{Out, Uuid};
use super::device::{attribute_of, c_text, uuid};
use super::errors::{
    Code, Error, INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND, code, describe, driver_code,
    unimplemented,
};
use super::state::{self, node};
use super::{launch, memory, vmm};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `cudaDriverEntryPointSymbolNotFound`, `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const SYMBOL_NOT_FOUND: c_int = 1;
/// The symbol is newer than the driver.
const VERSION_NOT_SUFFICIENT: c_int = 2;
/// Contexts are device numbers from here on.
const CONTEXT: usize = 0xc0_0000;

mod entry_points {
    use super::{entry_point, entry_point_by_version};
    functions! {
        "cudaGetDriverEntryPoint" => entry_point,
        "cudaGetDriverEntryPointByVersion" => entry_point_by_version,
    }
}
/// The runtime functions that hand out driver functions.
pub(super) use entry_points::find as find_runtime;

mod own {
    use super::*;
    functions! {
        "cuInit" => init,
        "cuDriverGetVersion" => version,
        "cuDeviceGet" => device_get,
        "cuDeviceGetCount" => device_count,
        "cuDeviceGetAttribute" => device_attribute,
        "cuDeviceGetUuid" => device_uuid,
        "cuCtxGetCurrent" => context_current,
        "cuCtxSetCurrent" => context_choose,
        "cuCtxGetDevice" => context_device,
        "cuDevicePrimaryCtxRetain" => primary_retain,
        "cuDevicePrimaryCtxRelease" => primary_release,
        "cuGetErrorString" => error_text,
        "cuGetErrorName" => error_text,
        "cuLaunchKernel" => launch::driver_launch_kernel,
        "cuLaunchKernelEx" => launch::driver_launch_configured,
        "cuMemGetAddressRange" => address_range,
        "cuPointerGetAttribute" => pointer_attribute,
    }
}

/// Known to NCCL, asked for at start, and not implemented: a call is recorded.
macro_rules! not_implemented {
    ($($name:literal = $function:ident),* $(,)?) => {
        mod missing {
            use super::{Code, unimplemented};
            functions! { $($name => $function,)* }
            $(extern "C" fn $function() -> Code { unimplemented($name) })*
        }
    };
}

not_implemented! {
    "cuCtxCreate" = context_create,
    "cuCtxDestroy" = context_destroy,
    "cuMemGetHandleForAddressRange" = handle_for_range,
    "cuPointerSetAttribute" = set_pointer_attribute,
    "cuStreamWriteValue32" = write_value_32,
    "cuStreamWriteValue64" = write_value_64,
}

/// The address of a driver function. Versions (`_v2`) share the function.
pub(super) fn find(name: &str) -> Option<*const ()> {
    let plain =
        |name: &str| own::find(name).or_else(|| vmm::find(name)).or_else(|| missing::find(name));
    let base = name.rsplit_once("_v").filter(|(_, digits)| digits.parse::<u8>().is_ok());
    plain(name).or_else(|| plain(base?.0)).or(match name {
        "cuGetProcAddress_v2" => Some(proc_address_2 as *const ()),
        "cuGetProcAddress" => Some(proc_address as *const ()),
        _ => None,
    })
}

/// Where a function is, or null, and what `CUdriverProcAddressQueryResult` says.
fn query(name: *const c_char, version: c_uint) -> Result<(*const (), c_int), Error> {
    let name = c_text(name)?;
    let newer = i64::from(version) > i64::from(node().driver);
    Ok(match (name.as_str(), find(&name)) {
        (_, None) => (std::ptr::null(), SYMBOL_NOT_FOUND),
        (_, Some(_)) if newer => (std::ptr::null(), VERSION_NOT_SUFFICIENT),
        ("cuGetProcAddress", _) if version >= 12000 => (proc_address_2 as *const (), 0),
        (_, Some(function)) => (function, 0),
    })
}

extern "C" fn entry_point(
    name: *const c_char,
    to: Out<*const ()>,
    flags: c_ulonglong,
    status: Out<c_int>,
) -> Code {
    entry_point_by_version(name, to, node().driver.cast_unsigned(), flags, status)
}

extern "C" fn entry_point_by_version(
    name: *const c_char,
    to: Out<*const ()>,
    version: c_uint,
    _flags: c_ulonglong,
    status: Out<c_int>,
) -> Code {
    code(query(name, version).and_then(|(function, found)| {
        to.set(function)?;
        status.offer(found);
        Ok(())
    }))
}

extern "C" fn proc_address(
    name: *const c_char,
    to: Out<*const ()>,
    version: c_int,
    _flags: c_ulonglong,
) -> Code {
    driver_code(query(name, version.cast_unsigned()).and_then(|(function, found)| {
        to.set(function)?;
        if found == 0 { Ok(()) } else { Err(NOT_FOUND) }
    }))
}

extern "C" fn proc_address_2(
    name: *const c_char,
    to: Out<*const ()>,
    version: c_int,
    _flags: c_ulonglong,
    status: Out<c_int>,
) -> Code {
    driver_code(query(name, version.cast_unsigned()).and_then(|(function, found)| {
        to.set(function)?;
        status.offer(found);
        if found == 0 { Ok(()) } else { Err(NOT_FOUND) }
    }))
}

extern "C" fn init(_flags: c_uint) -> Code {
    0
}

extern "C" fn version(to: Out<c_int>) -> Code {
    driver_code(to.set(node().driver))
}

extern "C" fn device_get(to: Out<c_int>, ordinal: c_int) -> Code {
    driver_code(state::gpu(ordinal).and_then(|_| to.set(ordinal)))
}

extern "C" fn device_count(to: Out<c_int>) -> Code {
    driver_code(to.set(state::count()))
}

extern "C" fn device_attribute(to: Out<c_int>, which: c_int, device: c_int) -> Code {
    driver_code(attribute_of(which, device).and_then(|value| to.set(value)))
}

extern "C" fn device_uuid(to: Out<Uuid>, device: c_int) -> Code {
    driver_code(uuid(device).and_then(|uuid| to.set(uuid)))
}

fn context_of(device: c_int) -> usize {
    CONTEXT + device.cast_unsigned() as usize
}

extern "C" fn context_current(to: Out<usize>) -> Code {
    driver_code(to.set(state::context().map_or(0, context_of)))
}

extern "C" fn context_choose(context: usize) -> Code {
    let device = context.checked_sub(CONTEXT).and_then(|device| c_int::try_from(device).ok());
    driver_code(match (context, device) {
        (0, _) => state::choose(None),
        (_, Some(device)) => state::choose(Some(device)),
        (_, None) => Err(INVALID_CONTEXT),
    })
}

extern "C" fn context_device(to: Out<c_int>) -> Code {
    driver_code(state::context().ok_or(INVALID_CONTEXT).and_then(|device| to.set(device)))
}

extern "C" fn primary_retain(to: Out<usize>, device: c_int) -> Code {
    driver_code(state::gpu(device).and_then(|_| to.set(context_of(device))))
}

extern "C" fn primary_release(device: c_int) -> Code {
    driver_code(state::gpu(device).map(drop))
}

extern "C" fn error_text(error: c_int, to: Out<*const c_char>) -> Code {
    driver_code(to.set(describe(error)))
}

extern "C" fn address_range(start: Out<usize>, bytes: Out<usize>, at: usize) -> Code {
    let found = memory::holding(&memory::ranges(), at).map(|(start, range)| (start, range.bytes));
    driver_code(found.ok_or(NOT_FOUND).map(|found| {
        start.offer(found.0);
        bytes.offer(found.1);
    }))
}

/// `cuPointerGetAttribute`, as far as NCCL asks.
extern "C" fn pointer_attribute(to: *mut c_void, which: c_int, at: usize) -> Code {
    driver_code(write_pointer_attribute(to, which, at))
}

fn write_pointer_attribute(to: *mut c_void, which: c_int, at: usize) -> Result<(), Error> {
    let all = memory::ranges();
    let (start, range) = memory::holding(&all, at).ok_or(INVALID_VALUE)?;
    let host = match &range.kind {
        memory::Kind::Host | memory::Kind::Registered => true,
        memory::Kind::Mapped(physical, _) => physical.on_host(),
        memory::Kind::Device(_) => false,
    };
    let ipc = c_int::from(matches!(range.kind, memory::Kind::Device(_)));
    let (size, value) = match which {
        1 => (8, context_of(range.device) as u64), // context
        2 => (4, if host { 1 } else { 2 }),        // memory type
        3 | 4 => (8, at as u64),                   // device pointer, host pointer
        7 => (8, start as u64 / 4096),             // buffer id
        9 => (4, u64::from(range.device.cast_unsigned())), // device ordinal
        10 => (4, u64::from(ipc.cast_unsigned())), // legacy IPC possible
        11 => (8, start as u64),
        12 => (8, range.bytes as u64),
        _ => {
            unimplemented(&format!("cuPointerGetAttribute({which})"));
            return Err(super::errors::NOT_SUPPORTED);
        }
    };
    super::abi::fill(to, size, &[(0, &value.to_le_bytes()[..size])])
}
