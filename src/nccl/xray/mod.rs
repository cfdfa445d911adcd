//! What NCCL holds inside a running process, read from outside: `locate` finds
//! the loaded libraries, `latched` reads their cached settings (view N). The
//! process is never stopped, attached to or written into.

pub mod latched;
pub mod locate;

pub use latched::{LatchedSet, latched};
pub use locate::{ImageCache, Loaded, loaded};

#[cfg(test)]
mod tests;
