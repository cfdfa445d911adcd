//! What NCCL would read of this machine's own hardware. It looks each PCI
//! address of a topology up below `/sys`, and what it finds there outranks the
//! described machine when both have a device of that address.

use super::sys;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

/// `/sys/class/pci_bus/0000:17/../../0000:17:00.0`
const DEVICES: &[u8] = b"/sys/class/pci_bus/";
const ENOENT: i32 = 2;

unsafe extern "C" {
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char;
}

/// Lets NCCL see this machine's devices: its network cards are among them.
pub const SHOW: &str = "NCCLDIAG_SHOW_DEVICES";

/// Stands for `realpath`: this machine has no such PCI device.
///
/// # Safety
/// As `realpath`.
pub(super) unsafe extern "C" fn resolve(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a string that ends in NUL, or null, for which
    // the C library has an error.
    let device = !path.is_null() && unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(DEVICES);
    if device && std::env::var_os(SHOW).is_none() {
        sys::set_errno(ENOENT);
        return null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { realpath(path, resolved) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_are_not_there() {
        let mut room = [0; 4096];
        // SAFETY: a C string, and as much room as the longest path needs.
        let found = unsafe { resolve(c"/proc/..".as_ptr(), room.as_mut_ptr()) };
        assert!(!found.is_null());
        // SAFETY: as above.
        let bus = unsafe { resolve(c"/sys/class/pci_bus/../../class".as_ptr(), room.as_mut_ptr()) };
        assert!(bus.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(ENOENT));
    }
}
