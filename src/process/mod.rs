//! Reads other processes from outside: exec block, live environ, maps, memory.
//! Nothing here stops, attaches to or writes into a process that is observed;
//! only `pidfd` sends signals, to what its caller names. What NCCL keeps in the
//! memory of a process is not known here.

pub mod auxv;
pub mod child;
pub mod elf_mem;
pub mod environ;
pub mod live;
pub mod maps;
pub mod memory;
pub mod paged;
pub mod pidfd;
mod reason;
mod scan;
pub mod slot;
pub mod snapshot;
pub mod stat;
pub mod symtab;
pub mod tree;

pub use child::{Descendants, NEVER, POLL, die_with_parent, end_tree, is_ignored, output, spawn};
pub use environ::{EnvBlock, exec_block};
pub use live::live_environ;

#[cfg(test)]
mod fake_elf;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod slot_tests;
#[cfg(test)]
mod targets;
