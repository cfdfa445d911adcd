//! What stands behind the choices: the search for channels, the cost table,
//! rings, trees and connections, from what the ranks logged.

use super::super::noise;
use super::ask::Outcome;
use crate::model::{
    Communicator, CostCell, GraphFound, Limits, Pair, Prediction, Reached, RingOrder, TreeShape,
};
use crate::nccl::log::{Cost, Level, RankLog};
use std::collections::{BTreeMap, BTreeSet};

/// NCCL's names for the patterns of its search, by number.
const PATTERNS: [(u32, &str); 6] = [
    (1, "balanced tree"),
    (2, "split tree"),
    (3, "tree"),
    (4, "ring"),
    (5, "NVLS"),
    (6, "CollNet direct"),
];

/// The ring's number.
pub(super) const RING: u32 = 4;

/// Fills in all that stands behind the choices.
pub(super) fn fill(prediction: &mut Prediction, outcome: &Outcome) {
    let Some(first) = outcome.ranks.first() else { return };
    prediction.graph = graphs(first);
    prediction.cost_table = costs(first, outcome);
    prediction.rings = rings(first);
    prediction.trees = trees(&outcome.ranks);
    prediction.transports = transports(&outcome.ranks);
    prediction.communicator = outcome.communicator.as_ref().map(in_force);
    prediction.warnings = warnings(&outcome.ranks);
}

fn graphs(rank: &RankLog) -> Vec<GraphFound> {
    let named = |pattern| PATTERNS.iter().find(|(number, _)| *number == pattern);
    let mut all: Vec<GraphFound> = Vec::new();
    for graph in &rank.graphs {
        let found = GraphFound {
            pattern: graph.pattern,
            name: named(graph.pattern)
                .map_or_else(|| format!("pattern {}", graph.pattern), |(_, name)| (*name).into()),
            channels: graph.channels,
            bw_intra: graph.bandwidth_intra,
            bw_inter: graph.bandwidth_inter,
            type_intra: graph.type_intra.clone(),
            type_inter: graph.type_inter.clone(),
        };
        // CollNet chain and tree share a pattern; equal ones say nothing new.
        if !all.contains(&found) {
            all.push(found);
        }
    }
    all
}

/// The cost table of the collectives that were asked for, one after the other.
fn costs(rank: &RankLog, outcome: &Outcome) -> Vec<CostCell> {
    let mut all = Vec::new();
    for calls in &outcome.calls {
        let name = calls.collective.name();
        let cells = rank.costs.iter().filter(|cost| cost.function == name);
        all.extend(cells.map(|cost| cell(cost, outcome.communicator.as_ref())));
    }
    all
}

fn cell(cost: &Cost, communicator: Option<&Communicator>) -> CostCell {
    let same = |pair: &&Pair| pair.algorithm == cost.algorithm && pair.protocol == cost.protocol;
    let pair = communicator.and_then(|one| one.pairs(&cost.function).iter().find(same));
    CostCell {
        collective: cost.function.clone(),
        algo: cost.algorithm.clone(),
        proto: cost.protocol.into(),
        latency_us: cost.latency.max(0.0),
        bandwidth: bandwidth(cost, pair),
        max_threads: cost.max_threads.or(pair.and_then(|pair| pair.max_threads)),
        // From 2.31 on a bandwidth says nothing about whether a pair is on.
        enabled: pair.map_or(cost.bandwidth > 0.0, |pair| pair.enabled),
        disabled_by: None,
        forced: false,
    }
}

/// The log has one decimal; what it rounds to nothing is in memory.
fn bandwidth(cost: &Cost, pair: Option<&Pair>) -> f64 {
    match pair {
        Some(pair) if cost.bandwidth == 0.0 => f64::from(pair.bandwidth),
        _ => cost.bandwidth,
    }
}

fn rings(rank: &RankLog) -> Vec<RingOrder> {
    let mut all: Vec<RingOrder> = Vec::new();
    for (channel, ranks) in (0..).zip(&rank.channels) {
        match all.iter_mut().find(|ring| ring.ranks == *ranks) {
            Some(ring) => ring.channels.push(channel),
            None => all.push(RingOrder { channels: vec![channel], ranks: ranks.clone() }),
        }
    }
    all
}

fn trees(ranks: &[RankLog]) -> Vec<TreeShape> {
    let mut parents: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
    for rank in ranks {
        for &(channel, parent, _) in &rank.trees {
            parents.entry(channel).or_default().push(parent);
        }
    }
    let mut all: Vec<TreeShape> = Vec::new();
    for (channel, parents) in parents {
        match all.iter_mut().find(|tree| tree.parents == parents) {
            Some(tree) => tree.channels.push(channel),
            // A cut line leaves a tree of fewer ranks, which would mislead.
            None if parents.len() == ranks.len() => {
                all.push(TreeShape { channels: vec![channel], parents });
            }
            None => {}
        }
    }
    all
}

fn transports(ranks: &[RankLog]) -> Vec<Reached> {
    let mut all: BTreeMap<&str, (BTreeSet<[u32; 2]>, usize)> = BTreeMap::new();
    for one in ranks.iter().flat_map(|rank| &rank.transports) {
        let entry = all.entry(&one.via).or_default();
        entry.0.insert([one.from, one.to]);
        entry.1 += 1;
    }
    let reached = |(via, (pairs, connections)): (&str, (BTreeSet<_>, usize))| Reached {
        via: via.into(),
        pairs: pairs.into_iter().collect(),
        connections,
    };
    all.into_iter().map(reached).collect()
}

fn in_force(one: &Communicator) -> Limits {
    Limits {
        channels: one.channels,
        buffers: one.buffers.map(|b| [b.ll, b.ll128, b.simple]),
        min_ctas: one.min_ctas,
        max_ctas: one.max_ctas,
    }
}

fn warnings(ranks: &[RankLog]) -> Vec<String> {
    let all = ranks.iter().flat_map(|rank| &rank.problems);
    let mut texts: Vec<String> = Vec::new();
    for problem in all.filter(|problem| problem.level == Level::Warn) {
        if !noise::is_ours(&problem.text) && !texts.contains(&problem.text) {
            texts.push(problem.text.clone());
        }
    }
    texts
}
