//! Says why a launch failed, in the words that it printed last.

use anyhow::anyhow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How many lines are worth showing.
const LINES: usize = 3;
/// How much of a failed launch's output is worth reading, in bytes.
const TAIL: u64 = 64 << 10;

/// Adds the end of what a launch printed into a file.
pub(super) fn with_tail(error: anyhow::Error, output: &Path) -> anyhow::Error {
    with_words(error, last_words(&tail(output).unwrap_or_default()))
}

/// Adds last words, when there are some.
pub(super) fn with_words(error: anyhow::Error, words: Option<String>) -> anyhow::Error {
    match words {
        Some(words) => anyhow!("{error:#}; it printed last: {words}"),
        None => error,
    }
}

/// The last few lines that say something, on one line: the very last one often
/// hides the cause. Without control characters, because it goes into every
/// format.
pub(super) fn last_words(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let mut lines: Vec<&str> =
        text.lines().rev().map(str::trim).filter(|l| !l.is_empty()).take(LINES).collect();
    lines.reverse();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let cut = |line: &&str| line.chars().take(200).map(plain).collect::<String>();
    let words = lines.iter().map(cut).collect::<Vec<_>>().join(" | ");
    (!words.is_empty()).then_some(words)
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
