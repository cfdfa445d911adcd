//! GPUs that do not exist: the unmodified libnccl runs on them in processes of
//! our own and decides as it would on the described machine. What comes out is
//! a prediction, never a measurement. `runtime` answers NCCL; the rest here
//! describes machines and runs ranks. Explaining the outcome is not done here.

pub mod describe;
pub mod models;
pub mod node;
mod process;
pub mod runtime;
pub mod topology;
pub mod worker;

#[cfg(test)]
mod leftover_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod truth_tests;
