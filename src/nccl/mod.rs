//! What this tool knows about NCCL: finding a library, reading its file,
//! opening it, and reading what it latched in a running process.

pub mod cache;
pub mod collective;
pub mod effect;
pub mod find;
pub mod got;
pub mod image;
pub mod integer;
pub mod log;
pub mod progress;
mod python;
pub mod scope;
pub mod surroundings;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod wheel;
pub mod witness;
pub mod xray;
