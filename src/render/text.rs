//! Pieces of text for a person at a terminal that several results share:
//! paragraphs, columns, a finding. Which result has which pieces is said in its
//! own file.

use super::escape::escape;
use crate::model::{Finding, Severity};
use comfy_table::{Table, TableStyle};
use std::io::{self, Write};

/// Stands above a list of findings.
pub const FINDINGS: &str = "Findings (docs/findings.md explains the codes)";

/// How the reader sees the text.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// A terminal: symbols instead of words, and colour unless NO_COLOR is set.
    pub terminal: bool,
    /// Colour.
    pub colour: bool,
    /// Columns for running text.
    pub width: usize,
}

/// Columns that line up, and nothing else: neither lines nor the terminal's
/// width.
pub fn borderless() -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).force_no_tty();
    table
}

/// Writes text in lines of the look's width, escaped. `lead`, which is not
/// escaped, stands before the first line.
///
/// # Errors
/// The writer's own.
pub fn paragraph(lead: &str, text: &str, look: Look, to: &mut dyn Write) -> io::Result<()> {
    // Paths stay whole, so that they can be copied.
    let options = textwrap::Options::new(look.width)
        .initial_indent(lead)
        .subsequent_indent("    ")
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    for line in textwrap::wrap(&escape(text), options) {
        writeln!(to, "{line}")?;
    }
    Ok(())
}

/// Writes a finding: code and severity, then what is known of it.
///
/// # Errors
/// The writer's own.
pub fn write_finding(finding: &Finding, look: Look, to: &mut dyn Write) -> io::Result<()> {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    writeln!(to, "{} ({severity})", finding.code)?;
    let texts = [
        ("  ", &finding.message),
        ("  fix: ", &finding.fix),
        ("  at: ", &finding.places.join(", ")),
    ];
    for (lead, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        paragraph(lead, text, look, to)?;
    }
    Ok(())
}
