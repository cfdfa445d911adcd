//! Markdown, for an issue or a wiki.

use super::escape::escape;
use super::table::{counts, expected, source, views};
use crate::model::{Effect, EnvCheck, Finding, Observation};
use std::io::{self, Write};

/// Writes the observations as a table, then findings and reasons.
///
/// # Errors
/// The writer's own.
pub fn write(result: &EnvCheck, to: &mut dyn Write) -> io::Result<()> {
    let version = result.nccl.version.as_deref().unwrap_or("none, so N was not checked");
    writeln!(to, "## env-check, NCCL {}\n", cell(version))?;
    writeln!(to, "effect: {}\n", cell(&source(&result.effect_source)))?;
    writeln!(to, "E exec block, L live environ, N taken by NCCL, effect and what is in force\n")?;
    writeln!(to, "| path | set in | variable | value | E | L | N | effect | in force | verdict |")?;
    writeln!(to, "|---|---|---|---|---|---|---|---|---|---|")?;
    for path in &result.paths {
        for o in &path.observations {
            let [exec, live, nccl, effect] = views(o);
            writeln!(
                to,
                "| {} | {} | {} | {} | {exec} | {live} | {nccl} | {effect} | {} | {} |",
                path.id,
                o.set_in,
                cell(&o.variable),
                cell(&expected(o)),
                cell(&in_force(o)),
                o.verdict
            )?;
        }
    }
    writeln!(to)?;
    for finding in &result.findings {
        writeln!(to, "{}", item(finding))?;
    }
    for path in &result.paths {
        if let Some(reason) = &path.reason {
            writeln!(to, "- {} {}: {}", path.status, path.id, cell(reason))?;
        }
    }
    writeln!(to, "\n{}", counts(result))
}

/// A finding as an item of a list.
pub(super) fn item(finding: &Finding) -> String {
    let mut out = format!("- **{}**: {}.", finding.code, cell(&finding.message));
    let places = finding.places.join(", ");
    for (lead, text, end) in [(" Fix: ", &finding.fix, "."), (" At: ", &places, "")] {
        if !text.is_empty() {
            out.extend([lead, &cell(text), end]);
        }
    }
    out
}

fn in_force(o: &Observation) -> String {
    match &o.effect {
        Some(Effect::Known { in_force, .. }) => in_force.to_string(),
        _ => String::new(),
    }
}

/// Text that cannot end a table cell or start markup of its own.
pub(super) fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in escape(text).chars() {
        if matches!(c, '|' | '`' | '*' | '_' | '<' | '>' | '[' | ']' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
