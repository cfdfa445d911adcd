//! The list of fetched libraries.

use super::escape;
use crate::cli::Format;
use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// One fetched library.
#[derive(Debug, Serialize)]
pub struct CachedLibrary {
    /// As in `2.27.7`.
    pub version: String,
    /// `cu12` or `cu13`.
    pub cuda: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// The file.
    pub path: String,
}

#[derive(Serialize)]
struct List<'a> {
    schema: &'static str,
    libraries: &'a [CachedLibrary],
}

/// Writes the list.
///
/// # Errors
/// The writer's own.
pub fn write(list: &[CachedLibrary], format: Format, to: &mut dyn Write) -> Result<()> {
    match format {
        Format::Json => {
            super::json::write(&List { schema: "nccldiag/cache/1", libraries: list }, to)?;
        }
        Format::Csv => {
            let mut csv = ::csv::Writer::from_writer(to);
            for library in list {
                csv.serialize(library)?;
            }
            csv.flush()?;
        }
        Format::Table if list.is_empty() => writeln!(to, "no fetched libraries")?,
        Format::Table => {
            for library in list {
                let (mib, path) = (library.bytes >> 20, escape(&library.path));
                writeln!(to, "{:<14} {} {mib:>5} MiB  {path}", library.version, library.cuda)?;
            }
        }
        Format::Markdown => {
            writeln!(to, "| version | cuda | bytes | path |\n|---|---|---|---|")?;
            for l in list {
                let path = escape(&l.path);
                writeln!(to, "| {} | {} | {} | {path} |", l.version, l.cuda, l.bytes)?;
            }
        }
    }
    Ok(())
}
