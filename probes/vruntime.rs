//! Root of the shared object that puts a virtual node into any process that
//! loads libnccl, such as a Python child: the same runtime as in our own
//! workers, behind one C function.

#[path = "../src/nccl"]
mod nccl {
    #[expect(dead_code, reason = "the runtime writes entries and reads none")]
    pub mod got;
}
#[path = "../src/virtual_node/runtime/mod.rs"]
#[expect(dead_code, unused_imports, reason = "who enqueues here calls NCCL, not the runtime")]
mod runtime;

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Puts the node of this description (text, see `runtime::description`) in the
/// place of the CUDA runtime in the libnccl behind `handle`. 0, or 1 with the
/// reason on stderr.
///
/// # Safety
/// `description` is a C string; for `handle` see `runtime::install`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nccldiag_virtual_install(
    handle: *mut c_void,
    description: *const c_char,
) -> c_int {
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(description) }.to_string_lossy();
    let result = runtime::Description::parse(&text).map_err(|error| error.to_string());
    let result = result.and_then(|node| {
        // SAFETY: the caller's promise.
        unsafe { runtime::install(handle, node) }.map_err(|error| error.to_string())
    });
    match result {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("nccldiag virtual node: {error}");
            1
        }
    }
}

/// What NCCL called and the virtual node does not implement: names separated
/// by spaces, empty when all is well. The text stays until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn nccldiag_virtual_missing() -> *const c_char {
    // Names of C functions hold no NUL.
    CString::new(runtime::missing().join(" ")).unwrap_or_default().into_raw()
}
