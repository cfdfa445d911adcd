//! What NCCL holds inside a running process, read from outside: `locate` finds
//! the loaded libraries, `latched` reads their cached settings (view N), `comm`
//! their communicators. The process is never stopped, attached to or written
//! into.

pub mod comm;
mod dwarf;
pub mod latched;
pub mod locate;

pub use comm::{LayoutCache, communicators};
pub use latched::{LatchedSet, latched};
pub use locate::{ImageCache, Loaded, loaded};

#[cfg(test)]
mod tests;
