//! Where two predictions differ: choices and estimates by size, then what
//! stands behind them. Pure.

use super::ask::Asked;
use crate::model::{
    ChoiceDifference, Chosen, CostCell, Differences, FactDifference, GraphFound, PredictedChoice,
    Prediction, Reached, counted,
};
use crate::nccl::collective::Collective;
use std::collections::BTreeSet;

/// What one side has and the other has not.
const ABSENT: &str = "-";

/// More pairs than these are counted only.
const MOST_PAIRS: usize = 8;

/// All differences in what both were asked; none where the two are alike.
pub(super) fn compare(this: &Prediction, other: &Prediction, asked: &Asked) -> Differences {
    let choices = |&collective: &Collective| {
        let sizes = asked.sizes.iter();
        let all: Vec<_> = sizes.map(|&size| choice(this, other, collective, size)).collect();
        folded(&all)
    };
    Differences {
        choices: asked.collectives.iter().flat_map(choices).collect(),
        facts: facts(this, other, asked),
    }
}

/// Where the choices for one size differ. A side without an answer for it
/// differs by its failure.
fn choice(
    this: &Prediction,
    other: &Prediction,
    collective: Collective,
    size: u64,
) -> Option<ChoiceDifference> {
    let (this, other) = (answer(this, collective, size)?, answer(other, collective, size)?);
    let ratio = other.time_us.zip(this.time_us).map(|(other, this)| other / this);
    let (this, other) = (chosen(this), chosen(other));
    let same = this == other && ratio.is_none_or(|ratio| (ratio - 1.0).abs() < 0.0005);
    (!same).then(|| ChoiceDifference {
        collective: collective.name().into(),
        from: size,
        to: size,
        this,
        other,
        time_ratio: ratio.map(|ratio| [ratio; 2]),
    })
}

/// What a side chose for a size that was asked for: it may have taken another,
/// because it depends on the number of ranks which sizes can be split.
fn answer(side: &Prediction, collective: Collective, size: u64) -> Option<&PredictedChoice> {
    let bytes = collective.call(size, side.node.gpus as u64).bytes;
    side.choices.iter().find(|one| one.collective == collective.name() && one.bytes == bytes)
}

fn chosen(choice: &PredictedChoice) -> Chosen {
    Chosen {
        algo: choice.algo.clone(),
        proto: choice.proto.clone(),
        channels: choice.channels,
        threads: choice.threads,
    }
}

/// Neighbours with the same pair of choices as one.
fn folded(all: &[Option<ChoiceDifference>]) -> Vec<ChoiceDifference> {
    let alike = |a: &Option<ChoiceDifference>, b: &Option<ChoiceDifference>| match (a, b) {
        (Some(a), Some(b)) => (&a.this, &a.other) == (&b.this, &b.other),
        _ => false,
    };
    let fold = |run: &[Option<ChoiceDifference>]| {
        let (first, last) = (run.first()?.as_ref()?, run.last()?.as_ref()?);
        let ratios = first.time_ratio.zip(last.time_ratio);
        let time_ratio = ratios.map(|(first, last)| [first[0], last[1]]);
        Some(ChoiceDifference { to: last.to, time_ratio, ..first.clone() })
    };
    all.chunk_by(alike).filter_map(fold).collect()
}

fn facts(this: &Prediction, other: &Prediction, asked: &Asked) -> Vec<FactDifference> {
    let mut all = Vec::new();
    let mut add = |what: &str, this: String, other: String| {
        if this != other {
            all.push(FactDifference { what: what.into(), this, other });
        }
    };
    add("answer", failure(this), failure(other));
    for &collective in
        asked.collectives.iter().filter(|one| splits_differ(this, other, **one, asked))
    {
        let what = format!("{} sizes are multiples of", collective.name());
        add(&what, unit(this, collective), unit(other, collective));
    }
    for name in names(this, other, |p| p.graph.iter().map(|g| g.name.clone()).collect()) {
        add(&format!("{name} graph"), graph(this, &name), graph(other, &name));
    }
    add("channels", channels(this), channels(other));
    add("CTAs (fewest-most)", ctas(this), ctas(other));
    add("buffers (LL, LL128, Simple)", buffers(this), buffers(other));
    add("ring orders", rings(this), rings(other));
    add("trees (the rank above each)", trees(this), trees(other));
    add("connections", transports(this), transports(other));
    for (via, [this, other]) in one_sided(this, other) {
        add(&format!("{via} only between"), this, other);
    }
    for name in names(this, other, cells) {
        add(&name, cost(this, &name), cost(other, &name));
    }
    all
}

/// Whether some size that was asked for is another one on the other side.
fn splits_differ(
    this: &Prediction,
    other: &Prediction,
    collective: Collective,
    asked: &Asked,
) -> bool {
    let on = |side: &Prediction, size| collective.call(size, side.node.gpus as u64).bytes;
    asked.sizes.iter().any(|&size| on(this, size) != on(other, size))
}

/// The smallest size, of which all others are multiples.
fn unit(side: &Prediction, collective: Collective) -> String {
    format!("{} B", collective.call(1, side.node.gpus as u64).bytes)
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
    let all = side.graph.iter().filter(|g| g.name == name);
    joined(all.map(graph_in_words))
}

/// `12 channels, 20/20 GB/s, NVL/PIX`.
pub(super) fn graph_in_words(graph: &GraphFound) -> String {
    let channels = counted(graph.channels as usize, "channel");
    format!(
        "{channels}, {}/{} GB/s, {}/{}",
        graph.bw_intra, graph.bw_inter, graph.type_intra, graph.type_inter
    )
}

fn channels(side: &Prediction) -> String {
    let count = side.communicator.as_ref().and_then(|one| one.channels);
    count.map_or_else(|| ABSENT.into(), |count| count.to_string())
}

fn ctas(side: &Prediction) -> String {
    let number = |count: Option<i32>| count.map_or_else(|| "?".into(), |count| count.to_string());
    let limits = side.communicator.as_ref().map(|one| (one.min_ctas, one.max_ctas));
    match limits {
        None | Some((None, None)) => ABSENT.into(),
        Some((fewest, most)) => format!("{}-{}", number(fewest), number(most)),
    }
}

fn buffers(side: &Prediction) -> String {
    let sizes = side.communicator.as_ref().and_then(|one| one.buffers);
    sizes.map_or_else(|| ABSENT.into(), |sizes| sizes.map(|size| size.to_string()).join(", "))
}

fn rings(side: &Prediction) -> String {
    listed(side.rings.iter().map(|ring| (ring.channels.len(), &ring.ranks)))
}

fn trees(side: &Prediction) -> String {
    listed(side.trees.iter().map(|tree| (tree.channels.len(), &tree.parents)))
}

/// `24x 0 1 2 3`: on how many channels, and ranks.
fn listed<'a, T: ToString + 'a>(all: impl Iterator<Item = (usize, &'a Vec<T>)>) -> String {
    let one = |(count, ranks): (usize, &Vec<T>)| {
        let ranks: Vec<_> = ranks.iter().map(T::to_string).collect();
        format!("{count}x {}", ranks.join(" "))
    };
    joined(all.map(one))
}

fn joined(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    if all.is_empty() { ABSENT.into() } else { all.join("; ") }
}

fn transports(side: &Prediction) -> String {
    let one = |one: &Reached| {
        let (pairs, connections) = (one.pairs.len(), one.connections);
        format!("{}: {}, {}", one.via, counted(pairs, "pair"), counted(connections, "connection"))
    };
    joined(side.transports.iter().map(one))
}

/// For each way that both sides have: the pairs that only one of them connects
/// so. What only one side has stands with its pairs' number already.
fn one_sided(this: &Prediction, other: &Prediction) -> Vec<(String, [String; 2])> {
    let both = this.transports.iter().filter_map(|one| {
        let twin = other.transports.iter().find(|other| other.via == one.via)?;
        Some((one.via.clone(), [pairs_without(one, twin), pairs_without(twin, one)]))
    });
    both.collect()
}

/// `0->1 1->2`: the pairs of one that the other has not.
fn pairs_without(one: &Reached, other: &Reached) -> String {
    let only: Vec<_> = one.pairs.iter().filter(|pair| !other.pairs.contains(pair)).collect();
    if only.is_empty() {
        return ABSENT.into();
    }
    let shown = only.iter().take(MOST_PAIRS).map(|[from, to]| format!("{from}->{to}"));
    let more = only.len().saturating_sub(MOST_PAIRS);
    let more = (more > 0).then(|| format!("and {more} more"));
    shown.chain(more).collect::<Vec<_>>().join(" ")
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
        Some(cell) => {
            let forced = if cell.forced { ", forced" } else { "" };
            format!("{} us, {} GB/s{forced}", cell.latency_us, cell.bandwidth)
        }
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
