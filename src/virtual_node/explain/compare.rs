//! Where two predictions differ: choices and estimates by size, then what
//! stands behind them. Pure.

use crate::model::{
    ChoiceDifference, CostCell, Differences, FactDifference, GraphFound, PredictedChoice,
    Prediction,
};
use std::collections::BTreeSet;

/// What one side has and the other has not.
const ABSENT: &str = "-";

/// All differences; none where the two are alike.
pub fn compare(this: &Prediction, other: &Prediction) -> Differences {
    Differences { choices: choices(this, other), facts: facts(this, other) }
}

/// A choice in words: `Ring/LL, 24 channels, 512 threads`.
pub(super) fn in_words(choice: &PredictedChoice) -> String {
    let name = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".into());
    let mut text = match (&choice.algo, &choice.proto) {
        (None, None) => "n/a".into(),
        (algo, proto) => format!("{}/{}", name(algo), name(proto)),
    };
    for (count, noun) in [(choice.channels, "channel"), (choice.threads, "thread")] {
        if let Some(count) = count {
            let s = if count == 1 { "" } else { "s" };
            text += &format!(", {count} {noun}{s}");
        }
    }
    text
}

fn choices(this: &Prediction, other: &Prediction) -> Vec<ChoiceDifference> {
    let mut all: Vec<ChoiceDifference> = Vec::new();
    let mut open = false;
    for choice in &this.choices {
        let same =
            |c: &&PredictedChoice| c.collective == choice.collective && c.bytes == choice.bytes;
        let Some(twin) = other.choices.iter().find(same) else {
            open = false;
            continue;
        };
        let ratio = twin.time_us.zip(choice.time_us).map(|(other, this)| other / this);
        let (this, other) = (in_words(choice), in_words(twin));
        if this == other && ratio.is_none_or(|ratio| (ratio - 1.0).abs() < 0.0005) {
            open = false;
            continue;
        }
        match all.last_mut() {
            Some(last)
                if open
                    && last.collective == choice.collective
                    && (&last.this, &last.other) == (&this, &other) =>
            {
                last.to = choice.bytes;
                last.time_ratio = last.time_ratio.zip(ratio).map(|(r, ratio)| [r[0], ratio]);
            }
            _ => all.push(ChoiceDifference {
                collective: choice.collective.clone(),
                from: choice.bytes,
                to: choice.bytes,
                this,
                other,
                time_ratio: ratio.map(|ratio| [ratio; 2]),
            }),
        }
        open = true;
    }
    all
}

fn facts(this: &Prediction, other: &Prediction) -> Vec<FactDifference> {
    let mut all = Vec::new();
    let mut add = |what: &str, this: String, other: String| {
        if this != other {
            all.push(FactDifference { what: what.into(), this, other });
        }
    };
    add("answer", failure(this), failure(other));
    for name in names(this, other, |p| p.graph.iter().map(|g| g.name.clone()).collect()) {
        add(&format!("{name} graph"), graph(this, &name), graph(other, &name));
    }
    add("channels", channels(this), channels(other));
    add("buffers (LL, LL128, Simple)", buffers(this), buffers(other));
    add("ring orders", rings(this), rings(other));
    add("connections", transports(this), transports(other));
    for name in names(this, other, cells) {
        add(&name, cost(this, &name), cost(other, &name));
    }
    all
}

/// The keys of both sides, in the order of this side, then what only the other
/// has.
fn names(
    this: &Prediction,
    other: &Prediction,
    of: impl Fn(&Prediction) -> Vec<String>,
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = of(this).into_iter().chain(of(other));
    all.filter(|name| seen.insert(name.clone())).collect()
}

fn failure(side: &Prediction) -> String {
    side.failure
        .as_ref()
        .map_or_else(|| "complete".into(), |f| format!("{}: {}", f.step, f.message))
}

fn graph(side: &Prediction, name: &str) -> String {
    let all: Vec<_> = side.graph.iter().filter(|g| g.name == name).map(graph_in_words).collect();
    if all.is_empty() { ABSENT.into() } else { all.join("; ") }
}

/// `12 channels, 20/20 GB/s, NVL/PIX`.
pub(super) fn graph_in_words(graph: &GraphFound) -> String {
    let s = if graph.channels == 1 { "" } else { "s" };
    format!(
        "{} channel{s}, {}/{} GB/s, {}/{}",
        graph.channels, graph.bw_intra, graph.bw_inter, graph.type_intra, graph.type_inter
    )
}

fn channels(side: &Prediction) -> String {
    let count = side.communicator.as_ref().and_then(|one| one.channels);
    count.map_or_else(|| ABSENT.into(), |count| count.to_string())
}

fn buffers(side: &Prediction) -> String {
    let sizes = side.communicator.as_ref().and_then(|one| one.buffers);
    sizes.map_or_else(|| ABSENT.into(), |sizes| sizes.map(|size| size.to_string()).join(", "))
}

fn rings(side: &Prediction) -> String {
    let order = |ring: &crate::model::RingOrder| {
        let ranks: Vec<_> = ring.ranks.iter().map(u32::to_string).collect();
        format!("{}x {}", ring.channels.len(), ranks.join(" "))
    };
    let all: Vec<_> = side.rings.iter().map(order).collect();
    if all.is_empty() { ABSENT.into() } else { all.join("; ") }
}

fn transports(side: &Prediction) -> String {
    let one = |one: &crate::model::Reached| {
        let s = if one.pairs.len() == 1 { "" } else { "s" };
        format!("{}: {} pair{s}", one.via, one.pairs.len())
    };
    let all: Vec<_> = side.transports.iter().map(one).collect();
    if all.is_empty() { ABSENT.into() } else { all.join("; ") }
}

/// The cells of the collectives that were asked for.
fn cells(side: &Prediction) -> Vec<String> {
    let asked = |cell: &&CostCell| side.choices.iter().any(|c| c.collective == cell.collective);
    side.cost_table.iter().filter(asked).map(cell_name).collect()
}

fn cell_name(cell: &CostCell) -> String {
    format!("{} {} {}", cell.collective, cell.algo, cell.proto)
}

fn cost(side: &Prediction, name: &str) -> String {
    match side.cost_table.iter().find(|cell| cell_name(cell) == name) {
        // The other version does not have this algorithm, or it is off there.
        None => "off".into(),
        Some(cell) if !cell.enabled => "off".into(),
        Some(cell) => format!("{} us, {} GB/s", cell.latency_us, cell.bandwidth),
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
