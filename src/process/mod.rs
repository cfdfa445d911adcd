//! Reads other processes from outside: exec block, live environ, maps, memory.
//! Nothing here stops, attaches to or writes into a process.

pub mod environ;
pub mod maps;
pub mod memory;
pub mod paged;
pub mod pidfd;
mod reason;
pub mod stat;
pub mod tree;

#[cfg(test)]
mod targets;
