//! What went wrong, what follows, what was tried against it, and what has to be
//! known to read the rest.

use super::block::{Block, Cell, Grid, NOT_AVAILABLE, Section, Tone, Width};
use super::document;
use super::sizes::{bytes, figure, slower};
use crate::model::{Explain, ExplainFinding, Failure, Prediction, Tried};
use crate::render::text::FINDINGS;

/// A failure, so that it is seen.
pub fn failed<'a>(lead: &'static str, failure: &Failure) -> Block<'a> {
    Block::lead(lead, Tone::Bad, document::failure(failure))
}

/// NCCL's own warnings. What both sides warn of is there once, and what a
/// failure says already is not there again.
pub fn warnings<'a>(result: &Explain) -> Section<'a> {
    let this = &result.prediction;
    let known = |text: &String| this.warnings.contains(text) || fails_with(this, text);
    let other = result.vs.iter().flat_map(|vs| {
        vs.warnings.iter().filter(move |text| !known(text) && !fails_with(vs, text))
    });
    let warning = |lead, text: &String| Block::lead(lead, Tone::Bad, text);
    let this = this.warnings.iter().filter(|text| !fails_with(this, text));
    let this = this.map(|text| warning("NCCL warns: ", text));
    this.chain(other.map(|text| warning("NCCL warns, other side: ", text))).collect()
}

fn fails_with(side: &Prediction, text: &str) -> bool {
    side.failure.as_ref().is_some_and(|failure| failure.message.contains(text))
}

/// All findings, each with what was tried.
pub fn sections(result: &Explain) -> Vec<Section<'_>> {
    let mut sections: Vec<Section> = result.findings.iter().map(one).collect();
    if let Some(first) = sections.first_mut() {
        first.insert(0, Block::Heading(FINDINGS.into()));
    }
    sections
}

fn one(finding: &ExplainFinding) -> Section<'_> {
    let mut section = vec![Block::Finding(&finding.finding)];
    if finding.tried.iter().any(|tried| tried.failure.is_none()) {
        section.push(Block::Grid(tried(&finding.tried)));
    }
    section.extend(finding.tried.iter().filter_map(|tried| {
        let why = tried.failure.as_ref()?;
        let text = format!("{}: {why}", tried.settings);
        Some(Block::lead("  tried, failed: ", Tone::Bad, text))
    }));
    section
}

fn tried(all: &[Tried]) -> Grid {
    let largest = all.iter().flat_map(|t| &t.choices).map(|choice| choice.bytes).max();
    let time = match largest {
        Some(size) => format!("NCCL expects at {}", bytes(size)),
        None => "NCCL expects".into(),
    };
    let mut grid = Grid::new([
        ("tried", Width::Wraps),
        ("channels", Width::Whole),
        ("ring found", Width::Wraps),
        ("via", Width::Wraps),
        (&time, Width::Wraps),
    ]);
    grid.indent = 2;
    let worked = all.iter().filter(|tried| tried.failure.is_none());
    grid.rows = worked.map(tried_row).collect();
    grid
}

fn tried_row(tried: &Tried) -> Vec<Cell> {
    let none = || NOT_AVAILABLE.to_owned();
    let (expects, tone) = expected(tried);
    let via = if tried.via.is_empty() { none() } else { tried.via.join(", ") };
    vec![
        Cell::from(&*tried.settings),
        tried.channels.map_or_else(none, |n| n.to_string()).into(),
        tried.ring.clone().unwrap_or_else(none).into(),
        via.into(),
        Cell::toned(expects, tone),
    ]
}

/// NCCL's estimate for the largest size, where it counts.
fn expected(tried: &Tried) -> (String, Tone) {
    let largest = tried.choices.iter().max_by_key(|choice| choice.bytes);
    let busbw = largest.and_then(|choice| choice.busbw).map(|bw| format!("{} GB/s", figure(bw)));
    match (tried.counted, busbw, tried.time_ratio) {
        (false, _, _) => ("not counted".into(), Tone::Plain),
        (true, None, _) => (NOT_AVAILABLE.into(), Tone::Plain),
        (true, Some(busbw), None) => (busbw, Tone::Plain),
        (true, Some(busbw), Some(ratio)) => {
            let (words, tone) = slower([ratio; 2]);
            (format!("{busbw}, {words}"), tone)
        }
    }
}

/// What has to be known to read the result.
pub fn notes<'a>(result: &Explain) -> Section<'a> {
    result.notes.iter().map(|note| Block::lead("note: ", Tone::Plain, note)).collect()
}
