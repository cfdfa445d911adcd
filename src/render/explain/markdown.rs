//! Markdown, for an issue or a wiki. The same blocks as in the table.

use super::block::{Block, Grid, Text, Tone};
use super::document;
use crate::model::Explain;
use crate::render::markdown::{cell, item};
use std::io::{self, Write};

/// Writes the whole result.
///
/// # Errors
/// The writer's own.
pub fn write(result: &Explain, to: &mut dyn Write) -> io::Result<()> {
    let mut first = true;
    for block in document::of(result).iter().flatten() {
        // A table ends at an empty line only.
        if !std::mem::take(&mut first) {
            writeln!(to)?;
        }
        write_block(block, to)?;
    }
    Ok(())
}

fn write_block(block: &Block, to: &mut dyn Write) -> io::Result<()> {
    match block {
        Block::Title(text) => writeln!(to, "## {}", cell(text)),
        Block::Heading(text) => writeln!(to, "### {}", cell(text)),
        Block::Text(Text { lead, tone, text }) => {
            let lead = lead.trim();
            match tone {
                _ if lead.is_empty() => writeln!(to, "{}", cell(text)),
                Tone::Bad => writeln!(to, "**{lead}** {}", cell(text)),
                _ => writeln!(to, "{lead} {}", cell(text)),
            }
        }
        Block::Finding(finding) => writeln!(to, "{}", item(finding)),
        Block::Grid(grid) => write_grid(grid, to),
    }
}

fn write_grid(grid: &Grid, to: &mut dyn Write) -> io::Result<()> {
    row(grid.columns.iter().map(|column| cell(&column.title)), to)?;
    writeln!(to, "|{}", "---|".repeat(grid.columns.len()))?;
    grid.rows.iter().try_for_each(|cells| row(cells.iter().map(|c| cell(&c.text)), to))
}

fn row(cells: impl Iterator<Item = String>, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "| {} |", cells.collect::<Vec<_>>().join(" | "))
}
