//! What was asked of NCCL and what it would choose: the answer itself.

use super::block::{Block, Cell, Grid, NOT_AVAILABLE, Section, Tone, Width};
use super::sizes::{bytes_span, figure, span};
use crate::model::{PredictedRange, Prediction, SettingAsked, SettingEffect, counted};

/// Which library on which machine. The topology as it was given.
pub fn asked(prediction: &Prediction) -> String {
    asked_with(prediction, &prediction.node.topology)
}

/// The same without the folders of the topology's files.
pub fn asked_shortly(prediction: &Prediction) -> String {
    // `Topology::named` joins the names of several files like this.
    const AND: &str = " + ";
    let files = prediction.node.topology.split(AND);
    let name = |file: &'_ str| file.rsplit('/').next().unwrap_or_default().to_owned();
    asked_with(prediction, &files.map(name).collect::<Vec<_>>().join(AND))
}

fn asked_with(prediction: &Prediction, topology: &str) -> String {
    let (nccl, node) = (&prediction.nccl, &prediction.node);
    let version = if nccl.version.is_empty() { "of unknown version" } else { &nccl.version };
    format!("NCCL {version} on {} x {} ({topology})", node.gpus, node.model)
}

/// The settings of one side, or of two that are compared.
pub fn settings<'a>(sides: &[&Prediction]) -> Section<'a> {
    let mut grid = Grid::new([
        ("", Width::Whole),
        ("setting", Width::Wraps),
        ("NCCL understood", Width::Wraps),
        ("effect", Width::Wraps),
    ]);
    let mut said = Vec::new();
    for (whose, setting) in with_sides(sides) {
        let row = [setting.name.clone() + "=" + &setting.value, understood(setting)];
        let (word, tone) = effect(setting.effect);
        let mut cells = vec![Cell::from(whose)];
        cells.extend(row.map(Cell::from));
        cells.push(Cell::toned(word, tone));
        grid.rows.push(cells);
        let message =
            |text: &String| Block::lead("  NCCL says: ", Tone::Plain, message(setting, text));
        said.extend(setting.messages.iter().map(message));
    }
    if grid.rows.is_empty() {
        return Vec::new();
    }
    if sides.len() == 1 {
        grid.columns.remove(0);
        grid.rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    std::iter::once(Block::Grid(grid)).chain(said).collect()
}

/// A message of NCCL with the setting that it is about, where it does not say.
fn message(setting: &SettingAsked, text: &str) -> String {
    if text.contains(&setting.name) { text.into() } else { format!("{}: {text}", setting.name) }
}

/// Each setting with the side that has it; what both have is there once.
fn with_sides<'p>(sides: &[&'p Prediction]) -> Vec<(&'static str, &'p SettingAsked)> {
    let [this, rest @ ..] = sides else { return Vec::new() };
    let others = || rest.iter().flat_map(|side| &side.settings);
    let whose = |setting| if others().any(|o| o == setting) { "both" } else { "this" };
    let mut all: Vec<_> = this.settings.iter().map(|s| (whose(s), s)).collect();
    all.extend(others().filter(|o| !this.settings.contains(o)).map(|o| ("other", o)));
    all
}

fn understood(setting: &SettingAsked) -> String {
    let understood = match &setting.understood {
        Some(same) if *same == setting.value => "as written".into(),
        Some(other) => other.clone(),
        None => "-".into(),
    };
    match &setting.adjusted_to {
        Some(now) => format!("{understood}, works with {now}"),
        None => understood,
    }
}

fn effect(effect: SettingEffect) -> (&'static str, Tone) {
    match effect {
        SettingEffect::Changes => ("changes the outcome", Tone::Good),
        SettingEffect::None => ("no effect here", Tone::Plain),
        SettingEffect::NotRead => ("not read", Tone::Bad),
        SettingEffect::Unknown => ("unknown to this NCCL", Tone::Bad),
        SettingEffect::Refused => ("refused", Tone::Bad),
        SettingEffect::Crashes => ("NCCL crashes with it", Tone::Bad),
        SettingEffect::NotTried => ("not tried again", Tone::Plain),
    }
}

/// What NCCL would choose, one grid for each collective.
pub fn choices<'a>(prediction: &Prediction) -> Vec<Section<'a>> {
    let groups = prediction.ranges.chunk_by(|a, b| a.collective == b.collective);
    let mut sections: Vec<Section> = groups.map(|g| vec![Block::Grid(ranges(g))]).collect();
    if sections.is_empty() && prediction.failure.is_none() {
        sections.push(vec![Block::text("NCCL chose nothing")]);
    } else if let Some(last) = sections.last_mut() {
        last.extend(not_told(prediction).map(Block::text));
        last.push(Block::text(between(prediction)));
    }
    sections
}

fn ranges(ranges: &[PredictedRange]) -> Grid {
    let mut grid = Grid::new([
        (ranges.first().map_or("", |r| &r.collective), Width::Whole),
        ("algo", Width::Wraps),
        ("proto", Width::Wraps),
        ("channels", Width::Whole),
        ("threads", Width::Whole),
        ("time, us (NCCL's estimate)", Width::Whole),
        ("busbw, GB/s", Width::Whole),
    ]);
    grid.rows = ranges.iter().map(|range| row(range).map(Cell::from).into()).collect();
    grid
}

fn row(range: &PredictedRange) -> [String; 7] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(none);
    let count = |c: Option<[u32; 2]>| c.map_or_else(none, |c| span(c.map(|n| n.to_string())));
    let figures = |f: Option<[f64; 2]>| f.map_or_else(none, |f| span(f.map(figure)));
    [
        bytes_span(range.from, range.to),
        text(&range.algo),
        text(&range.proto),
        count(range.channels),
        count(range.threads),
        figures(range.time_us),
        figures(range.busbw),
    ]
}

fn none() -> String {
    NOT_AVAILABLE.into()
}

/// Whether a range has no value for something.
type Lacks = fn(&PredictedRange) -> bool;

/// One sentence on all that is not available, and why.
fn not_told(prediction: &Prediction) -> Option<String> {
    let ranges = &prediction.ranges;
    let missing: [(&str, Lacks); 5] = [
        ("algorithm", |r| r.algo.is_none()),
        ("protocol", |r| r.proto.is_none()),
        ("channels", |r| r.channels.is_none()),
        ("threads", |r| r.threads.is_none()),
        ("time", |r| r.time_us.is_none()),
    ];
    let words = missing.iter().filter(|(_, is_none)| ranges.iter().any(is_none));
    let part = |(word, is_none): &(&str, Lacks)| {
        let all = ranges.iter().all(is_none);
        format!("{word}{}", if all { "" } else { " (in part)" })
    };
    let words: Vec<_> = words.map(part).collect();
    let words = (!words.is_empty()).then(|| words.join(", "))?;
    Some(match &prediction.failure {
        Some(failure) => {
            format!("n/a: the run ended (at {}) before NCCL told {words}", failure.step)
        }
        None => format!("n/a: NCCL {} did not tell {words}", prediction.nccl.version),
    })
}

fn between(prediction: &Prediction) -> String {
    let mut sizes: Vec<_> = prediction.choices.iter().map(|choice| choice.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let count = match sizes.len() {
        0 => "single sizes".into(),
        count => counted(count, "size"),
    };
    // Behind a failure nothing was asked.
    let asked = if prediction.failure.is_some() { "answered" } else { "asked for" };
    format!("{count} {asked}; what NCCL chooses between them was not asked")
}
