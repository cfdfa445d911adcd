//! GPUs that do not exist: the unmodified libnccl runs on them in processes of
//! our own and decides as it would on the described machine. What comes out is
//! a prediction, never a measurement. `runtime` answers NCCL; the rest here
//! describes machines and runs ranks. Explaining the outcome is not done here.

mod conf;
pub mod describe;
mod error;
pub mod models;
pub mod node;
mod process;
pub mod runtime;
mod talk;
pub mod topology;
pub mod worker;

/// The runtime as a shared object, for processes that are not ours: see
/// `probes/vruntime.rs` for its two functions.
pub const RUNTIME_LIBRARY: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/libnccldiag_vruntime.so"));

#[cfg(test)]
mod enabled_tests;
#[cfg(test)]
mod known_tests;
#[cfg(test)]
mod leftover_tests;
/// What strace may see of a node; the tests of the program use it too.
#[cfg(test)]
#[path = "../../tests/nccldiag/harness/node_trace.rs"]
mod node_trace;
#[cfg(test)]
mod profiler_tests;
#[cfg(test)]
mod setting_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod truth_tests;
