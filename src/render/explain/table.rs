//! The table for people: what NCCL would choose first, then why, then what to
//! do. Fits the look's width, except words that are longer than a line.

use super::block::{Block, Cell, Grid, Text, Tone, Width};
use super::document;
use crate::model::Explain;
use crate::render::escape;
use crate::render::text::{Look, borderless, paragraph, write_finding};
use anstyle::{AnsiColor, Style};
use comfy_table::{Attribute, Color, ColumnConstraint, ContentArrangement};
use std::io::{self, Write};

/// Between columns.
const GAP: usize = 2;
/// A longer word is broken where space is short.
const WORD: usize = 32;
/// No column is made narrower than this.
const NARROWEST: usize = 3;

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

/// A width for each column. Where not all fit, what wraps gets what is left.
fn widths(grid: &Grid, width: usize) -> Vec<usize> {
    let gaps = GAP * grid.columns.len().saturating_sub(1);
    let space = width.saturating_sub(grid.indent + gaps);
    let needs: Vec<[usize; 2]> = (0..grid.columns.len()).map(|nth| needs(grid, nth)).collect();
    let mut widths: Vec<usize> = needs.iter().map(|[least, _]| *least).collect();
    while widths.iter().sum::<usize>() > space {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROWEST) else {
            break;
        };
        *widest -= 1;
    }
    let mut left = space.saturating_sub(widths.iter().sum());
    while left > 0 {
        let mut open: Vec<_> =
            widths.iter_mut().zip(&needs).filter(|(width, [_, most])| **width < *most).collect();
        let Some((width, _)) = open.iter_mut().min_by_key(|(width, _)| **width) else { break };
        **width += 1;
        left -= 1;
    }
    widths
}

/// The least that a column looks well with, and the most that it can use.
fn needs(grid: &Grid, nth: usize) -> [usize; 2] {
    let column = &grid.columns[nth];
    let title = escape(&column.title);
    let cells = || grid.rows.iter().filter_map(|row| row.get(nth)).map(|cell| escape(&cell.text));
    let whole = |text: &str| textwrap::core::display_width(text);
    let word = |text: &str| text.split(' ').map(whole).max().unwrap_or(0).min(WORD);
    let least = |text: String| match column.width {
        Width::Whole => whole(&text),
        Width::Wraps => word(&text),
    };
    [
        cells().map(least).max().unwrap_or(0).max(word(&title)).max(1),
        cells().map(|text| whole(&text)).max().unwrap_or(0).max(whole(&title)).max(1),
    ]
}
