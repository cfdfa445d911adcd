//! The table for people: what NCCL would choose first, then why, then what to
//! do. Fits the look's width, except words that are longer than a line.

use super::block::{Block, Cell, Grid, Text, Tone};
use super::document;
use super::widths::{GAP, widths};
use crate::model::Explain;
use crate::render::escape;
use crate::render::text::{Look, borderless, paragraph, write_finding};
use anstyle::{AnsiColor, Style};
use comfy_table::{Attribute, Color, ColumnConstraint, ContentArrangement};
use std::io::{self, Write};

/// Writes the whole result.
///
/// # Errors
/// The writer's own.
pub fn write(result: &Explain, look: Look, to: &mut dyn Write) -> io::Result<()> {
    for (nth, section) in document::of(result).iter().enumerate() {
        if nth > 0 {
            writeln!(to)?;
        }
        for block in section {
            write_block(block, look, to)?;
        }
    }
    Ok(())
}

fn write_block(block: &Block, look: Look, to: &mut dyn Write) -> io::Result<()> {
    match block {
        Block::Title(text) | Block::Heading(text) => paragraph("", text, look, to),
        Block::Text(Text { lead, tone, text }) => {
            paragraph(&styled(lead, *tone, look), text, look, to)
        }
        Block::Finding(finding) => write_finding(finding, look, to),
        Block::Grid(grid) => write_grid(grid, look, to),
    }
}

fn styled(lead: &str, tone: Tone, look: Look) -> String {
    let style = match tone {
        Tone::Bad => Style::new().fg_color(Some(AnsiColor::Red.into())).bold(),
        Tone::Plain | Tone::Good | Tone::Quiet => Style::new(),
    };
    if look.colour { format!("{style}{lead}{style:#}") } else { lead.to_owned() }
}

fn write_grid(grid: &Grid, look: Look, to: &mut dyn Write) -> io::Result<()> {
    let mut table = borderless();
    if look.colour {
        table.enforce_styling();
    }
    if grid.columns.iter().any(|column| !column.title.is_empty()) {
        table.set_header(grid.columns.iter().map(|column| escape(&column.title)));
    }
    for row in &grid.rows {
        table.add_row(row.iter().map(drawn));
    }
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::MAX);
    for (column, width) in table.column_iter_mut().zip(widths(grid, look.width)) {
        let width = u16::try_from(width + GAP).unwrap_or(u16::MAX);
        column.set_padding((0, 2));
        column.set_constraint(ColumnConstraint::Absolute(comfy_table::Width::Fixed(width)));
    }
    for line in table.lines() {
        writeln!(to, "{}", format!("{:indent$}{line}", "", indent = grid.indent).trim_end())?;
    }
    Ok(())
}

fn drawn(cell: &Cell) -> comfy_table::Cell {
    let plain = comfy_table::Cell::new(escape(&cell.text));
    match cell.tone {
        Tone::Plain => plain,
        Tone::Good => plain.fg(Color::Green),
        Tone::Bad => plain.fg(Color::Red),
        Tone::Quiet => plain.add_attribute(Attribute::Dim),
    }
}
