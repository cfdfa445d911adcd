//! Where a result goes: stdout or the file that `--output` names.

use crate::cli::Output;
use crate::render::table::Look;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

/// Where a result goes, opened before the work: a wrong path must not cost a
/// long run.
pub struct Destination(Option<(File, PathBuf)>);

impl Destination {
    /// Opens the file that `--output` names, without emptying it yet.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(output: &Output) -> Result<Self> {
        let Some(path) = &output.output else { return Ok(Self(None)) };
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("--output: open {}", path.display()))?;
        Ok(Self(Some((file, path.clone()))))
    }

    /// Calls `render` with the right writer, and flushes it.
    ///
    /// # Errors
    /// The result cannot be written, or `render` fails.
    pub fn write(self, render: impl FnOnce(&mut dyn Write, Look) -> Result<()>) -> Result<()> {
        let Some((file, path)) = self.0 else { return to_stdout(render) };
        let context = || format!("write {}", path.display());
        if file.metadata().is_ok_and(|meta| meta.is_file()) {
            file.set_len(0).with_context(context)?;
        }
        let mut to = BufWriter::new(file);
        render(&mut to, Look { terminal: false, colour: false, width: 80 })
            .and_then(|()| Ok(to.flush()?))
            .with_context(context)
    }
}

/// Calls `render` with stdout. A reader that has seen enough is no error.
///
/// # Errors
/// Stdout cannot be written, or `render` fails.
pub fn to_stdout(render: impl FnOnce(&mut dyn Write, Look) -> Result<()>) -> Result<()> {
    let stdout = io::stdout();
    let look = look(stdout.is_terminal());
    let mut to = BufWriter::new(stdout.lock());
    match render(&mut to, look).and_then(|()| Ok(to.flush()?)) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        other => other.context("write the result to stdout"),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let pipes = |io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe;
    let csv = |csv: &csv::Error| matches!(csv.kind(), csv::ErrorKind::Io(io) if pipes(io));
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(pipes) || cause.downcast_ref().is_some_and(csv)
    })
}

fn look(terminal: bool) -> Look {
    let colour = match anstream::stdout().current_choice() {
        anstream::ColorChoice::Never => false,
        anstream::ColorChoice::Auto => terminal,
        _ => true,
    };
    // Running text is hard to read in very long lines.
    let width = if terminal { textwrap::termwidth().clamp(40, 120) } else { 80 };
    Look { terminal, colour, width }
}
