//! Error codes as the headers of CUDA have them, the last error of each
//! thread, and the record of what NCCL asked for and nobody here implements.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

/// A code that is not success. `cudaError_t` and `CUresult` agree on all codes
/// that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Error(pub(super) c_int);

pub(super) const INVALID_VALUE: Error = Error(1);
pub(super) const OUT_OF_MEMORY: Error = Error(2);
pub(super) const INVALID_DEVICE: Error = Error(101);
pub(super) const INVALID_CONTEXT: Error = Error(201);
pub(super) const PEER_UNSUPPORTED: Error = Error(217);
pub(super) const INVALID_HANDLE: Error = Error(400);
pub(super) const ILLEGAL_STATE: Error = Error(401);
pub(super) const NOT_FOUND: Error = Error(500);
pub(super) const ALREADY_REGISTERED: Error = Error(712);
pub(super) const NOT_SUPPORTED: Error = Error(801);
pub(super) const OPERATING_SYSTEM: Error = Error(304);

/// `cudaError_t` or `CUresult` on its way to C.
pub(super) type Code = c_int;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

/// The code of a runtime call; an error is also kept for `cudaGetLastError`.
pub(super) fn code(result: Result<(), Error>) -> Code {
    match result {
        Ok(()) => 0,
        Err(error) => {
            LAST.set(error.0);
            error.0
        }
    }
}

/// The code of a driver call, which keeps no last error.
pub(super) fn driver_code(result: Result<(), Error>) -> Code {
    result.map_or_else(|error| error.0, |()| 0)
}

/// The names of functions that were called and are not implemented, in the
/// order of the first call.
static UNIMPLEMENTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What the system refused to the virtual devices.
static REFUSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Remembers that `name` was called, and gives the code to return.
pub(super) fn unimplemented(name: &str) -> Code {
    remember(&UNIMPLEMENTED, name);
    code(Err(NOT_SUPPORTED))
}

/// Remembers why the virtual device is "out of memory", and gives that error.
pub(super) fn refused(what: &str, why: &std::io::Error) -> Error {
    remember(&REFUSED, &format!("{what}: {why}"));
    OUT_OF_MEMORY
}

/// Keeps a text once, and few of them.
fn remember(list: &Mutex<Vec<String>>, text: &str) {
    let mut known = list.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() < 64 && !known.iter().any(|known| known == text) {
        known.push(text.to_owned());
    }
}

/// What was called so far without being implemented. Whatever NCCL decided
/// after such a call is not to be trusted.
pub fn missing() -> Vec<String> {
    UNIMPLEMENTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What the system refused so far (open files, address space): NCCL was told
/// "out of memory" for it.
pub fn refusals() -> Vec<String> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

functions! {
    "cudaGetErrorString" => describe,
    "cudaGetErrorName" => name,
    "cudaGetLastError" => take_last,
    "cudaPeekAtLastError" => peek_last,
}

extern "C" fn take_last() -> Code {
    LAST.replace(0)
}

extern "C" fn peek_last() -> Code {
    LAST.get()
}

/// NCCL prints the text, so it says where it comes from.
pub(super) extern "C" fn describe(code: c_int) -> *const c_char {
    let text: &CStr = match Error(code) {
        Error(0) => c"no error",
        INVALID_VALUE => c"invalid argument (virtual device)",
        OUT_OF_MEMORY => c"out of memory (virtual device)",
        INVALID_DEVICE => c"invalid device ordinal (virtual device)",
        INVALID_CONTEXT => c"invalid context (virtual device)",
        PEER_UNSUPPORTED => c"peer access is not supported (virtual device)",
        INVALID_HANDLE => c"invalid resource handle (virtual device)",
        ILLEGAL_STATE => c"illegal state (virtual device)",
        NOT_FOUND => c"named symbol not found (virtual device)",
        NOT_SUPPORTED => c"operation not supported (virtual device)",
        OPERATING_SYSTEM => c"the operating system refused (virtual device)",
        _ => c"unknown error (virtual device)",
    };
    text.as_ptr()
}

extern "C" fn name(code: c_int) -> *const c_char {
    let text: &CStr = match Error(code) {
        Error(0) => c"cudaSuccess",
        INVALID_VALUE => c"cudaErrorInvalidValue",
        OUT_OF_MEMORY => c"cudaErrorMemoryAllocation",
        INVALID_DEVICE => c"cudaErrorInvalidDevice",
        INVALID_CONTEXT => c"cudaErrorDeviceUninitialized",
        PEER_UNSUPPORTED => c"cudaErrorPeerAccessUnsupported",
        INVALID_HANDLE => c"cudaErrorInvalidResourceHandle",
        ILLEGAL_STATE => c"cudaErrorIllegalState",
        NOT_FOUND => c"cudaErrorSymbolNotFound",
        NOT_SUPPORTED => c"cudaErrorNotSupported",
        OPERATING_SYSTEM => c"cudaErrorOperatingSystem",
        _ => c"cudaErrorUnknown",
    };
    text.as_ptr()
}
