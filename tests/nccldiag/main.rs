//! Drives the real program: real launches, a real libnccl where one is in the
//! cache, and the exit codes, streams and leftovers that a user would see.
//! `tests/run` fetches libraries and tools; what is missing is skipped aloud.

mod bad_input;
mod custom;
mod effect;
mod explain;
mod harness;
mod latched;
mod libraries;
mod nothing_left;
mod output;
mod privileges;
mod rows;
mod virtual_node;
