//! Keeps this machine's conf files out of a described one, inside a rank.

use crate::nccl::got;
use crate::nccl::table::Library;
use anyhow::Result;
use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;

/// The conf file that the user named, if any: it is read.
static NAMED_CONF: OnceLock<Option<OsString>> = OnceLock::new();

/// Makes NCCL find no `/etc/nccl.conf` and no `~/.nccl.conf`: what it would do
/// on a described machine must not depend on this one.
pub(super) fn keep_out(library: &Library) -> Result<()> {
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
    if path.is_null() {
        return std::ptr::null_mut();
    }
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
