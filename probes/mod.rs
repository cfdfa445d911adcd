//! What runs inside the observed children: the probe that calls NCCL and
//! waits, and the small parents that start it in the ways of the exec family.
//!
//! `wire`, `channel`, `session`, `pair` and what they use of NCCL and of the
//! virtual node are std-only, because `probes/pyprobe.rs` compiles them a second time into the
//! shared object that Python children load. Nothing here reads another process.

pub mod channel;
pub mod native;
mod pair;
pub mod session;
pub mod wire;
