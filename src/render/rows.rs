//! Plain lists, such as the launch paths or the fetched libraries, in every
//! format.

use super::escape::escape;
use crate::cli::Format;
use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// Something that is shown in a list.
pub trait Listed: Serialize {
    /// Its JSON's `schema`.
    const SCHEMA: &'static str;
    /// What there is none of when the list is empty.
    const NOUN: &'static str;
    /// The columns' names.
    const COLUMNS: &'static [&'static str];

    /// One text for each column.
    fn cells(&self) -> Vec<String>;
}

#[derive(Serialize)]
struct List<'a, T> {
    schema: &'static str,
    entries: &'a [T],
}

/// Writes a list.
///
/// # Errors
/// The writer's own.
pub fn write<T: Listed>(list: &[T], format: Format, to: &mut dyn Write) -> Result<()> {
    match format {
        Format::Json => super::json::write(&List { schema: T::SCHEMA, entries: list }, to)?,
        Format::Csv => {
            let mut csv = ::csv::Writer::from_writer(to);
            csv.write_record(T::COLUMNS)?;
            for entry in list {
                csv.write_record(entry.cells())?;
            }
            csv.flush()?;
        }
        Format::Table if list.is_empty() => writeln!(to, "no {}", T::NOUN)?,
        Format::Table => {
            let mut table = super::text::borderless();
            table.add_rows(list.iter().map(escaped));
            for line in table.lines() {
                writeln!(to, "{}", line.trim())?;
            }
        }
        Format::Markdown => {
            writeln!(to, "| {} |", T::COLUMNS.join(" | "))?;
            writeln!(to, "|{}", "---|".repeat(T::COLUMNS.len()))?;
            for entry in list {
                writeln!(to, "| {} |", escaped(entry).join(" | ").replace('\n', " "))?;
            }
        }
    }
    Ok(())
}

fn escaped<T: Listed>(entry: &T) -> Vec<String> {
    entry.cells().iter().map(|cell| escape(cell)).collect()
}
