//! Reads NCCL's own debug log (`NCCL_DEBUG=INFO` or WARN): `line` splits what
//! several ranks wrote into one stream, `event` says what a line means, and
//! `collect` puts together what each rank said. Nothing here reads files or
//! runs NCCL, and nothing is copied until it is collected.
//!
//! The forms are those of NCCL 2.18.3 to 2.32.3. What a version does not log
//! (up to 2.19 no choices, 2.24 to 2.30 no times) stays absent.

mod collect;
mod event;
mod line;
mod parse;
mod scan;

pub use collect::{Choice, Cost, EnvLine, Graph, Problem, RankLog, Ring, Transport, collect};
pub use event::{ChannelCounts, Choose, Event, Kernel, Member, NcclRank, Place};
pub use line::{Level, Line, Lines, Record, lines};
pub use parse::event;

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
