//! `nccldiag cache list|clean`: the libraries that `--nccl pip:` fetched.

use super::output::{self, Destination};
use crate::cli::{Cache as Options, CacheAction};
use crate::exit::{Exit, UsageError};
use crate::nccl::cache::{Cache, Entry};
use crate::nccl::wheel::Wheel;
use crate::render::rows::{self, Listed};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;

/// One fetched library.
#[derive(Debug, Serialize)]
struct CachedLibrary {
    /// As in `2.27.7`.
    version: String,
    /// `cu12` or `cu13`.
    cuda: String,
    /// Size of the file in bytes.
    bytes: u64,
    /// The file.
    path: String,
}

impl Listed for CachedLibrary {
    const SCHEMA: &'static str = "nccldiag/cache/1";
    const NOUN: &'static str = "fetched libraries";
    const COLUMNS: &'static [&'static str] = &["version", "cuda", "bytes", "path"];

    fn cells(&self) -> Vec<String> {
        let bytes = self.bytes.to_string();
        vec![self.version.clone(), self.cuda.clone(), bytes, self.path.clone()]
    }
}

/// Runs the command.
///
/// # Errors
/// The cache cannot be read or changed.
pub fn run(options: Options) -> Result<ExitCode> {
    let cache = Cache::user()?;
    match options.action {
        CacheAction::List { output } => {
            let list: Vec<CachedLibrary> = cache.list()?.iter().map(library).collect();
            let to = Destination::open(&output)?;
            to.write(|to, _| rows::write(&list, output.format, to))?;
        }
        CacheAction::Clean { versions } => clean(&cache, &versions)?,
    }
    Ok(Exit::Ran.into())
}

fn library(entry: &Entry) -> CachedLibrary {
    CachedLibrary {
        version: entry.wheel.version(),
        cuda: entry.wheel.cuda().to_string(),
        bytes: entry.bytes,
        path: entry.path.display().to_string(),
    }
}

fn clean(cache: &Cache, versions: &[String]) -> Result<()> {
    let wheels: Vec<Wheel> = versions
        .iter()
        .map(|v| v.parse().map_err(|e| UsageError(format!("{e}"))))
        .collect::<Result<_, _>>()?;
    let which: Vec<Option<&Wheel>> =
        if wheels.is_empty() { vec![None] } else { wheels.iter().map(Some).collect() };
    output::to_stdout(|to, _| {
        for wheel in which {
            let cleaned = cache.clean(wheel)?;
            for removed in &cleaned.removed {
                writeln!(to, "removed NCCL {}", removed.spelling())?;
            }
            for kept in &cleaned.in_use {
                writeln!(to, "kept NCCL {}: another run uses it", kept.spelling())?;
            }
            let nothing = cleaned.removed.is_empty() && cleaned.in_use.is_empty();
            match wheel {
                Some(wheel) if nothing => {
                    writeln!(to, "NCCL {} is not in the cache", wheel.spelling())?;
                }
                _ => writeln!(to, "{} MiB freed", cleaned.freed >> 20)?,
            }
        }
        Ok(())
    })
}
