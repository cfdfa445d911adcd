//! CSV: one row an observation, one row a path without any.

use crate::model::{Effect, EnvCheck, Latched, Observation, PathResult, Seen};
use crate::render::escape::{escape, value};
use anyhow::Result;
use std::io::Write;

const HEADER: [&str; 17] = [
    "path",
    "family",
    "status",
    "reason",
    "process",
    "variable",
    "set_in",
    "expected",
    "exec",
    "live",
    "latched",
    "read",
    "verdict",
    "finding",
    "effect",
    "outcome",
    "effect_source",
];
/// Longer values are of no use in a spreadsheet.
const LIMIT: usize = 4096;

/// Writes the observations.
///
/// # Errors
/// The writer's own.
pub fn write(result: &EnvCheck, to: &mut dyn Write) -> Result<()> {
    let mut csv = ::csv::Writer::from_writer(to);
    csv.write_record(HEADER)?;
    for path in &result.paths {
        if path.observations.is_empty() {
            csv.write_record(row(result, path, None))?;
        }
        for observation in &path.observations {
            csv.write_record(row(result, path, Some(observation)))?;
        }
    }
    Ok(csv.flush()?)
}

fn row(
    result: &EnvCheck,
    path: &PathResult,
    observation: Option<&Observation>,
) -> [String; HEADER.len()] {
    let [effect, outcome] = effect(observation.and_then(|o| o.effect.as_ref()));
    let text = |seen: fn(&Observation) -> &Seen| {
        observation.map(|o| value(seen(o), LIMIT)).unwrap_or_default()
    };
    [
        path.id.clone(),
        path.family.to_string(),
        path.status.to_string(),
        path.reason.as_deref().map(escape).unwrap_or_default(),
        observation.map(|o| o.process.to_string()).unwrap_or_default(),
        observation.map(|o| o.variable.clone()).unwrap_or_default(),
        observation.map(|o| o.set_in.to_string()).unwrap_or_default(),
        text(|o| &o.expected),
        text(|o| &o.exec),
        text(|o| &o.live),
        observation.map(|o| latched(&o.latched)).unwrap_or_default(),
        text(|o| &o.read),
        observation.map(|o| o.verdict.to_string()).unwrap_or_default(),
        observation.and_then(|o| o.finding).map(|c| c.number().to_owned()).unwrap_or_default(),
        effect,
        outcome,
        result.effect_source.provenance.to_string(),
    ]
}

/// What is in force, and how that compares with the value.
fn effect(effect: Option<&Effect>) -> [String; 2] {
    match effect {
        None => Default::default(),
        Some(Effect::Unreadable { unreadable }) => {
            [format!("(unreadable: {})", escape(&unreadable.0)), String::new()]
        }
        Some(Effect::Known { in_force, outcome }) => {
            [in_force.to_string(), outcome.map(|o| o.to_string()).unwrap_or_default()]
        }
    }
}

/// N in words.
pub fn latched(latched: &Latched) -> String {
    match latched {
        Latched::Value(n) => n.to_string(),
        Latched::NotRead => "(not read)".into(),
        Latched::NoSuchParameter => "(no such parameter)".into(),
        Latched::NotCached => "(not cached)".into(),
        Latched::Unreadable(why) => format!("(unreadable: {})", escape(&why.0)),
    }
}
