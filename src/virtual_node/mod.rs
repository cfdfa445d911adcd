//! GPUs that do not exist: the unmodified libnccl runs on them in processes of
//! our own and decides as it would on the described machine. What comes out is
//! a prediction, never a measurement. `runtime` answers NCCL; the rest here
//! describes machines, runs ranks, and (`explain`) says what their answers mean.

mod conf;
pub mod describe;
mod error;
pub mod explain;
pub mod machine;
pub mod models;
pub mod node;
mod noise;
mod process;
pub mod runtime;
mod talk;
pub mod topology;
pub mod worker;
mod xml;

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
