//! Where a result goes: stdout or the file that `--output` names.

use crate::cli::Output;
use crate::render::table::Look;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};

/// Calls `render` with the right writer, and flushes it.
///
/// # Errors
/// The file cannot be written, or `render` fails.
pub fn write(
    output: &Output,
    render: impl FnOnce(&mut dyn Write, Look) -> Result<()>,
) -> Result<()> {
    match &output.output {
        Some(path) => {
            let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
            let mut to = BufWriter::new(file);
            render(&mut to, Look { terminal: false, colour: false, width: 80 })?;
            to.flush().with_context(|| format!("write {}", path.display()))
        }
        None => to_stdout(render),
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
        other => other,
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
