//! What libnccl imports from the C library and must get from us: the loader,
//! so that NVIDIA's driver and management libraries are answered by our
//! functions and never loaded; the few calls with which it makes shared memory
//! under a name (see [`super::shm`]); those with which it waits
//! ([`super::waiting`]); and the one with which it looks at this machine's PCI
//! devices ([`super::hardware`]).

use super::{InstallError, driver, hardware, nvml, shm, waiting};
use crate::nccl::got;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
}

/// A library that is not there: its handle is the address of its marker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pretended {
    Management,
    Driver,
}

static MANAGEMENT: u8 = 0;
static DRIVER: u8 = 1;

impl Pretended {
    fn handle(self) -> *mut c_void {
        let marker: *const u8 = match self {
            Self::Management => &raw const MANAGEMENT,
            Self::Driver => &raw const DRIVER,
        };
        marker.cast_mut().cast()
    }

    fn by_handle(handle: *mut c_void) -> Option<Self> {
        [Self::Management, Self::Driver].into_iter().find(|known| known.handle() == handle)
    }

    fn by_name(name: &CStr) -> Option<Self> {
        let name = Path::new(std::str::from_utf8(name.to_bytes()).ok()?).file_name()?.to_str()?;
        match name {
            _ if name.starts_with("libnvidia-ml.so") => Some(Self::Management),
            _ if name.starts_with("libcuda.so") => Some(Self::Driver),
            _ => None,
        }
    }
}

/// Points the library's entries for these functions at ours.
///
/// # Errors
/// [`InstallError::Imports`].
///
/// # Safety
/// As [`got::slots`]; nobody else uses the library meanwhile.
pub(super) unsafe fn redirect(handle: *mut c_void) -> Result<(), InstallError> {
    let needed: [(&CStr, *const ()); 2] =
        [(c"dlopen", open_library as *const ()), (c"dlsym", symbol as *const ())];
    let others: [(&CStr, *const ()); 8] = [
        (c"dlclose", close_library as *const ()),
        (c"mkstemp", shm::make as *const ()),
        (c"open", shm::open_file as *const ()),
        (c"unlink", shm::remove as *const ()),
        (c"recv", waiting::receive as *const ()),
        (c"accept", waiting::accept_one as *const ()),
        (c"poll", waiting::poll_some as *const ()),
        (c"realpath", hardware::resolve as *const ()),
    ];
    for (name, function) in needed {
        // SAFETY: the caller's promise.
        if unsafe { point(handle, name, function) }? == 0 {
            return Err(InstallError::Imports(format!("it does not import {name:?}")));
        }
    }
    for (name, function) in others {
        // SAFETY: the caller's promise.
        unsafe { point(handle, name, function) }?;
    }
    Ok(())
}

/// # Safety
/// As [`redirect`].
unsafe fn point(handle: *mut c_void, name: &CStr, to: *const ()) -> Result<usize, InstallError> {
    let failed = |error: got::GotError| InstallError::Imports(error.to_string());
    // SAFETY: the caller's promise.
    let slots = unsafe { got::slots(handle, name) }.map_err(failed)?;
    for &slot in &slots {
        // SAFETY: an entry of this library's table.
        unsafe { got::write(slot, to.addr()) }.map_err(failed)?;
    }
    Ok(slots.len())
}

/// # Safety
/// As `dlopen`.
unsafe extern "C" fn open_library(path: *const c_char, flags: c_int) -> *mut c_void {
    if !path.is_null() {
        // SAFETY: the caller passes what it would pass to dlopen.
        if let Some(known) = Pretended::by_name(unsafe { CStr::from_ptr(path) }) {
            return known.handle();
        }
    }
    // SAFETY: as above.
    unsafe { dlopen(path, flags) }
}

/// # Safety
/// As `dlsym`.
unsafe extern "C" fn symbol(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let Some(known) = Pretended::by_handle(handle) else {
        // SAFETY: the caller passes what it would pass to dlsym.
        return unsafe { dlsym(handle, name) };
    };
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = match known {
        Pretended::Management => nvml::find(&name),
        Pretended::Driver => driver::find(&name),
    };
    found.map_or(std::ptr::null_mut(), |function| function.cast_mut().cast())
}

/// # Safety
/// As `dlclose`.
unsafe extern "C" fn close_library(handle: *mut c_void) -> c_int {
    if Pretended::by_handle(handle).is_some() {
        return 0;
    }
    // SAFETY: the caller passes what it would pass to dlclose.
    unsafe { dlclose(handle) }
}
