//! Says why a launch failed, in the words that it printed last.

use anyhow::anyhow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much of a failed launch's output is worth reading, in bytes.
const TAIL: u64 = 64 << 10;

/// Adds the end of what a launch printed.
pub(super) fn with_tail(error: anyhow::Error, output: &Path) -> anyhow::Error {
    let bytes = tail(output).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().rev().find(|l| !l.trim().is_empty()) {
        Some(last) => {
            let last: String = last.trim().chars().take(400).collect();
            // It goes into every format, also those that are not escaped.
            let last: String = last.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            anyhow!("{error:#}; it printed last: {last}")
        }
        None => error,
    }
}

/// The last bytes of a file that may be huge.
fn tail(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(bytes)
}
