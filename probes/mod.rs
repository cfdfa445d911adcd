//! What runs inside the observed children: the probe that calls NCCL and
//! waits, and the small parents that start it in the ways of the exec family.
//!
//! `wire`, `channel`, `session` and the two NCCL files that they use are
//! std-only, because `probes/pyprobe.rs` compiles them a second time into the
//! shared object that Python children load. Nothing here reads another process.

pub mod channel;
pub mod native;
pub mod session;
pub mod wire;
