//! nccldiag shows the whole way of an NCCL setting: set, delivered by exec,
//! live in the process, latched by NCCL.
//!
//! The library exists so that the binary, the fuzz targets and the benchmarks
//! share one code; it is not a public interface. Arrows go one way:
//! `commands` -> (`launch`, `render`) -> (`nccl`, `process`) -> `model`.

#[cfg(not(target_env = "gnu"))]
compile_error!(
    "nccldiag needs a glibc target (such as x86_64-unknown-linux-gnu): \
     it loads NVIDIA's libnccl.so.2, which exists for glibc only"
);

pub mod cli;
pub mod commands;
pub mod exit;
pub mod launch;
pub mod model;
pub mod nccl;
#[path = "../probes/mod.rs"]
pub mod probes;
pub mod process;
pub mod render;
#[cfg(test)]
mod testing;
pub mod virtual_node;
