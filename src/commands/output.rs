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
        None => {
            let stdout = io::stdout();
            let look = look(stdout.is_terminal());
            let mut to = BufWriter::new(stdout.lock());
            render(&mut to, look)?;
            Ok(to.flush()?)
        }
    }
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
