//! GPUs that do not exist: the unmodified libnccl runs on them in processes of
//! our own and decides as it would on the described machine. What comes out is
//! a prediction, never a measurement. `runtime` answers NCCL; the rest here
//! describes machines and runs ranks. Explaining the outcome is not done here.

pub mod describe;
pub mod models;
pub mod node;
pub mod runtime;
pub mod topology;
pub mod worker;

#[cfg(test)]
mod testing;
