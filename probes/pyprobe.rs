//! Root of the shared object that a Python child loads with ctypes: the same
//! probe as the binary's own, behind three C functions, because `fork`,
//! `spawn` and `forkserver` children never run our executable.

#[path = "../src/nccl"]
mod nccl {
    #[expect(dead_code, reason = "one of its errors is for other processors")]
    pub mod got;
    #[expect(dead_code, reason = "a probe calls a few of the functions")]
    pub mod table;
    pub mod witness;
}
#[path = "channel.rs"]
#[expect(dead_code, reason = "the driver's side reads messages, a probe only writes them")]
mod channel;
#[path = "pair.rs"]
mod pair;
#[path = "session.rs"]
mod session;
#[path = "../src/virtual_node"]
mod virtual_node {
    #[expect(dead_code, unused_imports, reason = "nothing is enqueued on a probe's node")]
    pub mod runtime;
}
#[path = "wire.rs"]
#[expect(dead_code, reason = "the driver's side uses the rest")]
mod wire;

use session::{Session, read_spec};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use wire::Fields;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// Connects to the driver of this launch folder. 0, or 1 with the reason on
/// stderr.
///
/// # Safety
/// `folder` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nccldiag_probe_open(folder: *const c_char) -> c_int {
    // SAFETY: the caller passes a C string.
    let folder = unsafe { CStr::from_ptr(folder) };
    let folder = Path::new(OsStr::from_bytes(folder.to_bytes()));
    match read_spec(folder).and_then(Session::open) {
        Ok(session) => {
            with_session(|slot| *slot = Some(session));
            0
        }
        Err(error) => {
            eprintln!("nccldiag probe: {error}");
            1
        }
    }
}

/// Lets NCCL read its settings in this process.
#[unsafe(no_mangle)]
pub extern "C" fn nccldiag_probe_latch() {
    with_session(|slot| {
        if let Some(session) = slot {
            session.latch();
        }
    });
}

/// Reports, with `length` bytes of extra fields, and waits until the driver
/// has observed this process. 0, or 1 when the driver is gone.
///
/// # Safety
/// `extra` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nccldiag_probe_report(extra: *const u8, length: usize) -> c_int {
    // SAFETY: the caller passes a buffer of that length.
    let extra = Fields::decode(unsafe { std::slice::from_raw_parts(extra, length) });
    let mut code = 1;
    with_session(|slot| {
        if let Some(session) = slot
            && session.report(&extra).is_ok()
        {
            session.wait();
            code = 0;
        }
    });
    code
}

fn with_session(act: impl FnOnce(&mut Option<Session>)) {
    // A poisoned lock means an earlier panic in this probe; the state is one
    // Option, which is whole in any case.
    act(&mut SESSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}
