//! Two sides against each other: what was asked differently, and only what
//! differs in the answers.

use super::block::{Block, Cell, Grid, NOT_AVAILABLE, Section, Tone, Width};
use super::sizes::{bytes_span, slower};
use super::{findings, side};
use crate::model::{
    ChoiceDifference, Chosen, Differences, Explain, FactDifference, Prediction, counted,
};

/// Heading, settings, failures and differences.
pub fn sections<'a>(result: &Explain, other: &Prediction) -> Vec<Section<'a>> {
    let this = &result.prediction;
    let title = "Two sides compared: predicted, no GPU took part".into();
    let mut head = vec![Block::Title(title)];
    let same = this.node.topology == other.node.topology;
    let asked = if same { side::asked_shortly } else { side::asked };
    head.push(Block::lead("this:  ", Tone::Plain, asked(this)));
    head.push(Block::lead("other: ", Tone::Plain, asked(other)));
    head.push(Block::text(asked_differently(this, other)));
    let mut failed = Vec::new();
    failed.extend(this.failure.iter().map(|f| findings::failed("failed on this side: ", f)));
    failed.extend(other.failure.iter().map(|f| findings::failed("failed on the other side: ", f)));
    let partly = !failed.is_empty();
    let mut sections = vec![head, side::settings(&[this, other]), failed];
    match &result.differences {
        Some(found) => sections.extend(differences(found, partly)),
        None => sections.push(vec![Block::text("the two sides were not compared")]),
    }
    let how = "Only differences are shown; explain one side alone for cost table, rings and \
               transports";
    sections.push(vec![Block::text(how)]);
    sections
}

fn asked_differently(this: &Prediction, other: &Prediction) -> String {
    let given = |side: &Prediction| -> Vec<(String, String)> {
        side.settings.iter().map(|s| (s.name.clone(), s.value.clone())).collect()
    };
    let parts = [
        ("settings", given(this) != given(other)),
        ("NCCL version", this.nccl != other.nccl),
        ("topology", this.node.topology != other.node.topology),
        ("GPU model", this.node.model != other.node.model),
        ("number of GPUs", this.node.gpus != other.node.gpus),
    ];
    let words: Vec<_> = parts.iter().filter(|(_, differs)| *differs).map(|(w, _)| *w).collect();
    if words.is_empty() {
        "both sides were asked the same".into()
    } else {
        format!("asked with different: {}", words.join(", "))
    }
}

fn differences<'a>(found: &Differences, partly: bool) -> Vec<Section<'a>> {
    if found.choices.is_empty() && found.facts.is_empty() {
        let what = if partly { "no differences in what both sides told" } else { NONE };
        return vec![vec![Block::text(what)]];
    }
    let groups = found.choices.chunk_by(|a, b| a.collective == b.collective);
    let mut sections: Vec<Section> = groups.map(|g| vec![Block::Grid(choices(g))]).collect();
    if sections.is_empty() && !partly {
        sections.push(vec![Block::text("no differences in choices and estimates")]);
    }
    if !found.facts.is_empty() {
        sections.push(vec![Block::Grid(facts(&found.facts))]);
    }
    sections
}

const NONE: &str = "no differences: NCCL chooses and expects the same on both sides";

fn choices(differences: &[ChoiceDifference]) -> Grid {
    let mut grid = Grid::new([
        (differences.first().map_or("", |d| &d.collective), Width::Whole),
        ("this", Width::Wraps),
        ("other", Width::Wraps),
        ("other's time (NCCL's estimate)", Width::Wraps),
    ]);
    let row = |difference: &ChoiceDifference| {
        let ratio = difference.time_ratio.map(slower);
        let (text, tone) = ratio.unwrap_or_else(|| (NOT_AVAILABLE.into(), Tone::Plain));
        vec![
            bytes_span(difference.from, difference.to).into(),
            in_words(&difference.this).into(),
            in_words(&difference.other).into(),
            Cell::toned(text, tone),
        ]
    };
    grid.rows = differences.iter().map(row).collect();
    grid
}

/// `Ring/LL, 24 channels, 512 threads`.
fn in_words(choice: &Chosen) -> String {
    let mut parts = match (&choice.algo, &choice.proto) {
        (None, None) => Vec::new(),
        (algo, proto) => {
            let [algo, proto] = [algo, proto].map(|part| part.as_deref().unwrap_or("?"));
            vec![format!("{algo}/{proto}")]
        }
    };
    parts.extend(choice.channels.map(|n| counted(n as usize, "channel")));
    parts.extend(choice.threads.map(|n| counted(n as usize, "thread")));
    if parts.is_empty() { NOT_AVAILABLE.into() } else { parts.join(", ") }
}

fn facts(facts: &[FactDifference]) -> Grid {
    let mut grid =
        Grid::new([("also", Width::Wraps), ("this", Width::Wraps), ("other", Width::Wraps)]);
    let row = |fact: &FactDifference| [&*fact.what, &*fact.this, &*fact.other].map(Cell::from);
    grid.rows = facts.iter().map(|fact| row(fact).into()).collect();
    grid
}
