//! Which function of ours stands for which name of the CUDA runtime. Each
//! module lists its own; here is only the order of asking.

use super::{device, driver, errors, graph, ipc, launch, memory, stream};

/// Suffixes of variants for the per-thread default stream, which need no other
/// function here: no stream ever has work left.
const VARIANTS: [&str; 2] = ["_ptsz", "_ptds"];

/// The function that stands for a symbol.
pub(super) fn find(name: &str) -> Option<*const ()> {
    let plain = VARIANTS.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    let lists = [
        device::find,
        memory::find,
        ipc::find,
        stream::find,
        graph::find,
        launch::find,
        driver::find_runtime,
        errors::find,
        find_support,
    ];
    lists.iter().find_map(|find| find(plain))
}

mod support {
    use super::{init_module, unregister};
    functions! {
        "__cudaInitModule" => init_module,
        "__cudaUnregisterFatBinary" => unregister,
    }
}
use support::find as find_support;

/// Modules need no initialisation: kernels are never executed.
extern "C" fn init_module(_module: usize) -> u8 {
    1
}

/// At the end of the process NVIDIA's runtime, which was never initialised,
/// must not be asked to clean up.
extern "C" fn unregister(_module: usize) {}
