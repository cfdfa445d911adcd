//! What the runtime knows about its node, and which device each thread uses.

use super::description::{Description, Gpu, bus_numbers};
use super::errors::{Error, INVALID_DEVICE};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

static NODE: OnceLock<Description> = OnceLock::new();

thread_local! {
    /// -1 while this thread has no context.
    static DEVICE: Cell<c_int> = const { Cell::new(-1) };
}

/// Sets the node of this process; false when it has one.
pub(super) fn set(node: Description) -> bool {
    NODE.set(node).is_ok()
}

/// The node; one without GPUs before it was set.
pub(super) fn node() -> &'static Description {
    NODE.get_or_init(Description::default)
}

/// The runtime linked into the library is 13.x, which gave some names the
/// signatures that had a suffix before.
pub(super) fn thirteen() -> bool {
    node().runtime >= 13000
}

/// How many GPUs there are.
pub(super) fn count() -> c_int {
    // `Description::parse` limits it to 64.
    node().gpus.len() as c_int
}

/// One GPU by device number.
pub(super) fn gpu(device: c_int) -> Result<&'static Gpu, Error> {
    usize::try_from(device).ok().and_then(|at| node().gpus.get(at)).ok_or(INVALID_DEVICE)
}

/// The device behind a PCI address, in whatever notation.
pub(super) fn by_bus(text: &str) -> Result<c_int, Error> {
    // "0000:1b:00" and "0000:1b:00.0" are both in use.
    let text = text.trim_end_matches('\0');
    let whole = if text.contains('.') { text.to_owned() } else { format!("{text}.0") };
    let asked = bus_numbers(&whole).ok_or(INVALID_DEVICE)?;
    let found = node().gpus.iter().position(|gpu| bus_numbers(&gpu.bus) == Some(asked));
    found.and_then(|at| c_int::try_from(at).ok()).ok_or(INVALID_DEVICE)
}

/// This thread's device, if it has chosen or used one.
pub(super) fn context() -> Option<c_int> {
    Some(DEVICE.get()).filter(|&device| device >= 0)
}

/// This thread's device; runtime calls take device 0 into use.
pub(super) fn device() -> c_int {
    if DEVICE.get() < 0 {
        DEVICE.set(0);
    }
    DEVICE.get()
}

/// Chooses this thread's device; `None` for no context.
pub(super) fn choose(device: Option<c_int>) -> Result<(), Error> {
    match device {
        Some(device) => gpu(device).map(|_| DEVICE.set(device)),
        None => {
            DEVICE.set(-1);
            Ok(())
        }
    }
}
