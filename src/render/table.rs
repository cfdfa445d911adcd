//! The table for people: paths by family, then findings, skipped paths and a
//! line of counts. Symbols and colour on a terminal, plain words otherwise;
//! fits 80 columns.

use super::escape::{escape, value};
use super::marks::{Mark, Marks};
pub use super::text::Look;
use super::text::{FINDINGS, borderless, paragraph, write_finding};
use crate::model::{
    Code, EffectSource, EnvCheck, Family, Finding, Observation, PathResult, Provenance, Status,
    Verdict, counted,
};
use comfy_table::{Cell, Color, Row, Table};
use std::io::{self, Write};

/// Writes the whole result.
///
/// # Errors
/// The writer's own.
pub fn write(result: &EnvCheck, look: Look, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "{}", heading(result))?;
    if result.nccl.path.is_some() {
        paragraph("effect: ", &effect_line(result), look, to)?;
    }
    let words = look.terminal.then_some("✓ the value set there, ✗ absent, ≠ another value");
    let words = words.unwrap_or("yes: the value set there, no: absent, other: another value");
    writeln!(to, "E exec block, L live environ, N taken by NCCL")?;
    writeln!(to, "{words}")?;
    writeln!(
        to,
        "{}: not read yet, {}: could not be read, {}: NCCL has no such variable",
        Mark::Unread.text(look),
        Mark::Unknown.text(look),
        Mark::NoNcclValue.text(look)
    )?;
    if shows_effect(result) {
        writeln!(
            to,
            "effect {}: NCCL works by it, {}: by another value, {}: it never took it",
            Mark::Yes.text(look),
            Mark::Other.text(look),
            Mark::No.text(look)
        )?;
    }
    writeln!(to)?;
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

/// Whether there is an effect to show.
fn shows_effect(result: &EnvCheck) -> bool {
    result.effect_source.provenance != Provenance::None
}

/// Where the effect comes from; a long reason is in the finding below.
fn effect_line(result: &EnvCheck) -> String {
    match result.findings.iter().find(|f| f.code == Code::EffectNotChecked) {
        Some(finding) if !shows_effect(result) => format!("none, see {}", finding.code),
        _ => source(&result.effect_source),
    }
}

/// Where the effect comes from, in words.
pub fn source(source: &EffectSource) -> String {
    let detail = escape(&source.detail);
    match source.provenance {
        Provenance::Virtual => format!("virtual node ({detail})"),
        Provenance::Measured => format!("measured ({detail})"),
        Provenance::None => format!("none ({detail})"),
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
    let style = Style { look, effect: shows_effect(result) };
    let mut table = family_table(family, &style);
    for path in paths {
        add_path(&mut table, path, &style);
    }
    set_widths(&mut table, &style);
    for line in table.lines() {
        writeln!(to, "{}", line.trim_end())?;
    }
    writeln!(to)
}

/// A table with its heading, and no rows.
fn family_table(family: Family, style: &Style) -> Table {
    let mut table = borderless();
    if style.look.colour {
        table.enforce_styling();
    }
    let mut header = vec![family.word(), "set in", "E", "L", "N", "verdict"];
    if style.effect {
        header.insert(5, "effect");
    }
    table.set_header(header);
    table
}

/// One family lines up with the next, and all of it fits 80 columns.
fn set_widths(table: &mut Table, style: &Style) {
    let mut widths = vec![26, 9, 5, 5, 5, 18];
    if style.effect {
        widths.insert(5, 6);
    }
    let padding = if style.effect { 1 } else { 2 };
    for (index, width) in widths.into_iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, padding));
            column.set_constraint(comfy_table::ColumnConstraint::LowerBoundary(
                comfy_table::Width::Fixed(width + padding),
            ));
        }
    }
}

/// What rows depend on besides their marks.
struct Style {
    look: Look,
    /// There is a column for the effect.
    effect: bool,
}

/// One row for each place when its variables agree, else one for each group of
/// variables that do.
/// Places that one process had together are joined by a plus. Processes that
/// look alike are shown once, with their number.
fn add_path(table: &mut Table, path: &PathResult, style: &Style) {
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
            add_group(table, std::mem::take(&mut id), &place, group, style);
        }
        let count = processes.iter().filter(|other| alike(other, process)).count();
        if count > 1 {
            table.add_row([format!("  {count} processes alike")]);
        }
    }
}

fn add_group(table: &mut Table, id: &str, place: &str, group: &[Observation], style: &Style) {
    let parts = merged(group);
    if let [(_, marks, _)] = parts[..] {
        table.add_row(row(id, place, marks, style));
        return;
    }
    table.add_row([id, place]);
    for (variable, marks, count) in parts {
        let more = if count > 1 { format!("& {} more", count - 1) } else { String::new() };
        table.add_row(row(&format!("  {variable}"), &more, marks, style));
    }
}

/// Variables with the same marks together: the first one, the marks, how many.
fn merged(group: &[Observation]) -> Vec<(&str, Marks, usize)> {
    let mut parts: Vec<(&str, Marks, usize)> = Vec::new();
    for o in group {
        let marks = Marks::of(o);
        let with = |part: &(&str, Marks, usize)| part.1.merged(marks);
        match parts.iter_mut().find_map(|part| with(part).map(|both| (part, both))) {
            Some((part, both)) => (part.1, part.2) = (both, part.2 + 1),
            None => parts.push((&o.variable, marks, 1)),
        }
    }
    parts
}

fn alike(a: &[Observation], b: &[Observation]) -> bool {
    let unnumbered = |o: &Observation| Observation { process: 0, ..o.clone() };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| unnumbered(a) == unnumbered(b))
}

fn row(id: &str, place: &str, marks: Marks, style: &Style) -> Row {
    let colour = match marks.verdict {
        Verdict::Delivered => Color::Green,
        Verdict::LiveOnly | Verdict::ExecOverwritten => Color::Cyan,
        Verdict::SetAfterLatched | Verdict::ParsedDifferently | Verdict::UnknownVariable => {
            Color::Red
        }
        _ => Color::Yellow,
    };
    let mut views = vec![marks.exec, marks.live, marks.nccl];
    if style.effect {
        views.push(marks.effect.unwrap_or(Mark::Unread));
    }
    let mut cells = vec![Cell::new(id), Cell::new(place)];
    cells.extend(views.into_iter().map(|mark| Cell::new(mark.text(style.look))));
    cells.push(Cell::new(marks.verdict.word()).fg(colour));
    Row::from(cells)
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
pub fn views(o: &Observation) -> [String; 4] {
    let plain = Look { terminal: false, colour: false, width: 80 };
    let marks = Marks::of(o);
    let effect = marks.effect.unwrap_or(Mark::Unread);
    [marks.exec, marks.live, marks.nccl, effect].map(|mark| mark.text(plain).to_owned())
}

/// The value that was set, short.
pub fn expected(o: &Observation) -> String {
    value(&o.expected, 40)
}
