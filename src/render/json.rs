//! JSON: the schema of record, which other commands read.

use serde::Serialize;
use std::io::{self, Write};

/// Writes any result, indented, with a final newline.
///
/// # Errors
/// The writer's own.
pub fn write(result: &impl Serialize, to: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, result)?;
    to.write_all(b"\n")
}
