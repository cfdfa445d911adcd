//! The subcommands that no help shows: what this binary does inside the
//! observed children, and as a rank of a virtual node.

use crate::launch::far;
use crate::probes::native::{self, PARENT, PROBE};
use crate::virtual_node::worker::{self, SUBCOMMAND};
use anyhow::Result;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs what `args` (without the program's name) asks for; `None` when that is
/// no hidden subcommand.
pub fn run(args: &[&OsStr]) -> Option<Result<()>> {
    let word = |index: usize| args.get(index).and_then(|word| word.to_str());
    match (word(0)?, args.len()) {
        (PROBE, 2) => Some(match args[1].as_bytes().strip_prefix(b"=") {
            Some(hex) => far::probe(hex),
            None => native::probe(Path::new(args[1])),
        }),
        (PARENT, 3) => Some(native::parent(word(1)?, Path::new(args[2]))),
        (SUBCOMMAND, 1) => worker::run(),
        _ => None,
    }
}
