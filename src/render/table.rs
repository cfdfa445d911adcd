//! The table for people: paths by family, then findings, skipped paths and a
//! line of counts. Symbols and colour on a terminal, plain words otherwise;
//! fits 80 columns.

use super::escape::{escape, value};
pub use super::text::Look;
use super::text::{FINDINGS, borderless, counted, paragraph, write_finding};
use crate::model::{
    EnvCheck, Family, Finding, Latched, Observation, PathResult, Seen, Status, Verdict,
};
use comfy_table::{Cell, Color, Row, Table};
use std::io::{self, Write};

/// How one view compares with the value that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Yes,
    No,
    Other,
    Unread,
    Unknown,
    NoNcclValue,
}

impl Mark {
    fn text(self, look: Look) -> &'static str {
        let (word, symbol) = match self {
            Self::Yes => ("yes", "✓"),
            Self::No => ("no", "✗"),
            Self::Other => ("other", "≠"),
            Self::Unread => ("-", "-"),
            Self::Unknown => ("?", "?"),
            Self::NoNcclValue => ("none", "∅"),
        };
        if look.terminal { symbol } else { word }
    }

    fn of(seen: &Seen, expected: &Seen) -> Self {
        match seen {
            Seen::Unreadable(_) => Self::Unknown,
            Seen::Absent => Self::No,
            same if same == expected => Self::Yes,
            Seen::Value(_) => Self::Other,
        }
    }

    /// N: what NCCL's `getenv` was answered, and for an integer what it made of
    /// that.
    fn of_nccl(o: &Observation) -> Self {
        let read = Self::of(&o.read, &o.expected);
        match (&o.latched, read) {
            (_, Self::No | Self::Other) => read,
            (Latched::Value(_), _) if o.verdict == Verdict::ParsedDifferently => Self::Other,
            (_, Self::Yes) => Self::Yes,
            (Latched::Value(n), _) => Self::of_number(*n, o),
            (Latched::NotRead | Latched::NotCached, _) => Self::Unread,
            // Only names that begin so are listed in the library.
            (Latched::NoSuchParameter, _) if !o.variable.starts_with("NCCL_") => Self::Unread,
            (Latched::NoSuchParameter, _) => Self::NoNcclValue,
            (Latched::Unreadable(_), _) => Self::Unknown,
        }
    }

    /// Without a record of the read only the number is left.
    fn of_number(latched: i64, o: &Observation) -> Self {
        let written = |v: &[u8]| v == latched.to_string().as_bytes();
        match o.verdict {
            Verdict::Delivered | Verdict::LiveOnly | Verdict::ExecOverwritten => Self::Yes,
            _ if o.expected.value().is_some_and(written) => Self::Yes,
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Marks {
    exec: Mark,
    live: Mark,
    nccl: Mark,
    verdict: Verdict,
}

impl Marks {
    fn of(o: &Observation) -> Self {
        Self {
            exec: Mark::of(&o.exec, &o.expected),
            live: Mark::of(&o.live, &o.expected),
            nccl: Mark::of_nccl(o),
            verdict: o.verdict,
        }
    }
}

/// Writes the whole result.
///
/// # Errors
/// The writer's own.
pub fn write(result: &EnvCheck, look: Look, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "{}", heading(result))?;
    let words = look.terminal.then_some("✓ the value set there, ✗ absent, ≠ another value");
    let words = words.unwrap_or("yes: the value set there, no: absent, other: another value");
    writeln!(to, "E exec block, L live environ, N taken by NCCL")?;
    writeln!(to, "{words}")?;
    writeln!(
        to,
        "{}: not read yet, {}: could not be read, {}: NCCL has no such variable\n",
        Mark::Unread.text(look),
        Mark::Unknown.text(look),
        Mark::NoNcclValue.text(look)
    )?;
    for &family in Family::ALL {
        write_family(result, family, look, to)?;
    }
    write_findings(&result.findings, look, to)?;
    write_reasons(result, look, to)?;
    paragraph("", &counts(result), look, to)
}

fn heading(result: &EnvCheck) -> String {
    match (&result.nccl.version, &result.nccl.path) {
        (Some(version), Some(path)) => format!("NCCL {} {}", escape(version), escape(path)),
        (None, Some(path)) => format!("NCCL {}", escape(path)),
        _ => "NCCL: none, so N was not checked".into(),
    }
}

fn write_family(
    result: &EnvCheck,
    family: Family,
    look: Look,
    to: &mut dyn Write,
) -> io::Result<()> {
    let paths: Vec<_> =
        result.paths.iter().filter(|p| p.family == family && !p.observations.is_empty()).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let mut table = borderless();
    if look.colour {
        table.enforce_styling();
    }
    table.set_header([family.word(), "set in", "E", "L", "N", "verdict"]);
    for path in paths {
        add_path(&mut table, path, look);
    }
    // The columns are padded by two, so that one family lines up with the next.
    let widths = [26, 9, 5, 5, 5, 18];
    for (index, width) in widths.into_iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            column.set_constraint(comfy_table::ColumnConstraint::LowerBoundary(
                comfy_table::Width::Fixed(width + 2),
            ));
        }
    }
    for line in table.lines() {
        writeln!(to, "{}", line.trim_end())?;
    }
    writeln!(to)
}

/// One row for each place when its variables agree, else one for each variable.
/// Places that one process had together are joined by a plus. Processes that
/// look alike are shown once, with their number.
fn add_path(table: &mut Table, path: &PathResult, look: Look) {
    let processes: Vec<&[Observation]> =
        path.observations.chunk_by(|a, b| a.process == b.process).collect();
    let mut id = path.id.as_str();
    for (index, process) in processes.iter().enumerate() {
        if processes[..index].iter().any(|earlier| alike(earlier, process)) {
            continue;
        }
        // Every place sets the same variables in the same order.
        let first = &process[0].variable;
        let places = process.chunk_by(|a, b| a.set_in == b.set_in && b.variable != *first);
        for (nth, group) in places.enumerate() {
            let plus = if nth > 0 { "+" } else { "" };
            let place = format!("{plus}{}", group[0].set_in);
            add_group(table, std::mem::take(&mut id), &place, group, look);
        }
        let count = processes.iter().filter(|other| alike(other, process)).count();
        if count > 1 {
            table.add_row([format!("  {count} processes alike")]);
        }
    }
}

fn add_group(table: &mut Table, id: &str, place: &str, group: &[Observation], look: Look) {
    let first = Marks::of(&group[0]);
    if group.iter().all(|o| Marks::of(o) == first) {
        table.add_row(row(id, place, first, look));
        return;
    }
    table.add_row([id, place]);
    for o in group {
        table.add_row(row(&format!("  {}", o.variable), "", Marks::of(o), look));
    }
}

fn alike(a: &[Observation], b: &[Observation]) -> bool {
    let unnumbered = |o: &Observation| Observation { process: 0, ..o.clone() };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| unnumbered(a) == unnumbered(b))
}

fn row(id: &str, place: &str, marks: Marks, look: Look) -> Row {
    let colour = match marks.verdict {
        Verdict::Delivered => Color::Green,
        Verdict::LiveOnly | Verdict::ExecOverwritten => Color::Cyan,
        Verdict::SetAfterLatched | Verdict::ParsedDifferently | Verdict::UnknownVariable => {
            Color::Red
        }
        _ => Color::Yellow,
    };
    Row::from([
        Cell::new(id),
        Cell::new(place),
        Cell::new(marks.exec.text(look)),
        Cell::new(marks.live.text(look)),
        Cell::new(marks.nccl.text(look)),
        Cell::new(marks.verdict.word()).fg(colour),
    ])
}

fn write_findings(findings: &[Finding], look: Look, to: &mut dyn Write) -> io::Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    writeln!(to, "{FINDINGS}")?;
    for finding in findings {
        write_finding(finding, look, to)?;
    }
    writeln!(to)
}

/// Skipped paths, those with the same reason together. Failed ones are findings.
fn write_reasons(result: &EnvCheck, look: Look, to: &mut dyn Write) -> io::Result<()> {
    let mut groups: Vec<(Status, &str, Vec<&str>)> = Vec::new();
    for path in result.paths.iter().filter(|p| p.status == Status::Skipped) {
        let reason = path.reason.as_deref().unwrap_or("no reason given");
        match groups.iter_mut().find(|(s, r, _)| *s == path.status && *r == reason) {
            Some((_, _, ids)) => ids.push(&path.id),
            None => groups.push((path.status, reason, vec![&path.id])),
        }
    }
    for (status, reason, ids) in &groups {
        paragraph(&format!("{status} "), &format!("{}: {reason}", ids.join(", ")), look, to)?;
    }
    if groups.is_empty() { Ok(()) } else { writeln!(to) }
}

/// The last line.
pub fn counts(result: &EnvCheck) -> String {
    let status = |s: Status| result.paths.iter().filter(|p| p.status == s).count();
    let all: Vec<_> = result.paths.iter().flat_map(|p| &p.observations).collect();
    let mut verdicts = String::new();
    for verdict in Verdict::ALL {
        let count = all.iter().filter(|o| o.verdict == *verdict).count();
        if count > 0 {
            let comma = if verdicts.is_empty() { ": " } else { ", " };
            verdicts += &format!("{comma}{count} {verdict}");
        }
    }
    format!(
        "{}: {} ran, {} skipped, {} failed; {}{verdicts}",
        counted(result.paths.len(), "path"),
        status(Status::Ran),
        status(Status::Skipped),
        status(Status::Failed),
        counted(all.len(), "observation")
    )
}

/// One observation in words, for the formats without a table.
pub fn views(o: &Observation) -> [String; 3] {
    let plain = Look { terminal: false, colour: false, width: 80 };
    let marks = Marks::of(o);
    [marks.exec, marks.live, marks.nccl].map(|mark| mark.text(plain).to_owned())
}

/// The value that was set, short.
pub fn expected(o: &Observation) -> String {
    value(&o.expected, 40)
}
