//! The comparison on made-up predictions.

use super::*;
use crate::model::{Failure, FailureKind, Limits, NodeAsked, RingOrder, TreeShape};

fn choice(bytes: u64, algo: &str, channels: u32, time_us: Option<f64>) -> PredictedChoice {
    PredictedChoice {
        collective: "AllReduce".into(),
        bytes,
        algo: Some(algo.into()),
        proto: Some("LL".into()),
        channels: Some(channels),
        threads: None,
        time_us,
        algbw: None,
        busbw: None,
    }
}

fn side(choices: Vec<PredictedChoice>) -> Prediction {
    let node = NodeAsked { gpus: 8, ..NodeAsked::default() };
    Prediction { choices, node, ..Prediction::default() }
}

fn compare(this: &Prediction, other: &Prediction) -> Differences {
    let sizes = vec![8, 16, 32, 64];
    super::compare(this, other, &Asked { sizes, collectives: vec![Collective::AllReduce] })
}

#[test]
fn a_side_does_not_differ_from_itself() {
    let one = side(vec![choice(8, "Ring", 1, Some(10.0)), choice(16, "Ring", 2, None)]);
    assert_eq!(compare(&one, &one), Differences::default());
}

#[test]
fn neighbours_with_one_pair_of_choices_are_one_entry() {
    let this = [8, 16, 32, 64].map(|b| choice(b, "Ring", 1, Some(10.0)));
    let mut other = this.clone();
    other[0] = choice(8, "Tree", 1, Some(20.0));
    other[1] = choice(16, "Tree", 1, Some(5.0));
    other[3] = choice(64, "Tree", 1, None);
    let found = compare(&side(this.to_vec()), &side(other.to_vec())).choices;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].from, found[0].to), (8, 16));
    let algos = [&found[0].this, &found[0].other].map(|one| one.algo.as_deref());
    assert_eq!(algos, [Some("Ring"), Some("Tree")]);
    assert_eq!(found[0].time_ratio, Some([2.0, 0.5]));
    assert_eq!((found[1].from, found[1].time_ratio), (64, None));
}

#[test]
fn an_estimate_that_differs_is_a_difference() {
    let this = side(vec![choice(8, "Ring", 1, Some(10.0))]);
    let other = side(vec![choice(8, "Ring", 1, Some(11.0))]);
    assert_eq!(compare(&this, &other).choices[0].time_ratio, Some([1.1, 1.1]));
}

#[test]
fn a_failure_of_one_side_is_said() {
    let this = side(vec![choice(8, "Ring", 1, None)]);
    let failure = Failure {
        step: "communicator init".into(),
        message: "no".into(),
        kind: FailureKind::Refused,
    };
    let other = Prediction { failure: Some(failure), ..Prediction::default() };
    let found = compare(&this, &other).facts;
    assert_eq!(found[0].what, "answer");
    assert_eq!(found[0].other, "communicator init: no");
}

#[test]
fn sizes_are_paired_by_what_was_asked_for() {
    let gather = |bytes, algo| PredictedChoice {
        collective: "AllGather".into(),
        ..choice(bytes, algo, 1, Some(10.0))
    };
    // 12 bytes cannot be split into eight equal parts, and into four they can.
    let this = side(vec![gather(16, "Ring"), gather(24, "Ring")]);
    let mut other = side(vec![gather(12, "PAT"), gather(20, "PAT"), gather(24, "Ring")]);
    other.node.gpus = 4;
    let asked = Asked { sizes: vec![12, 20, 24], collectives: vec![Collective::AllGather] };
    let found = super::compare(&this, &other, &asked);
    assert_eq!(found.choices.len(), 1, "{found:?}");
    assert_eq!((found.choices[0].from, found.choices[0].to), (12, 20));
    let unit = &found.facts[0];
    assert_eq!(
        [&unit.what, &unit.this, &unit.other],
        ["AllGather sizes are multiples of", "8 B", "4 B"]
    );
    let whole = Asked { sizes: vec![24], collectives: vec![Collective::AllGather] };
    assert_eq!(super::compare(&this, &other, &whole), Differences::default());
}

#[test]
fn what_stands_behind_the_choices_is_compared() {
    let reached = |pairs: &[[u32; 2]]| Reached {
        via: "SHM".into(),
        pairs: pairs.to_vec(),
        connections: pairs.len(),
    };
    let limits = |max_ctas| Limits {
        channels: Some(2),
        buffers: None,
        min_ctas: Some(1),
        max_ctas: Some(max_ctas),
    };
    let one = Prediction {
        rings: vec![RingOrder { channels: vec![0, 1], ranks: vec![0, 1, 2] }],
        trees: vec![TreeShape { channels: vec![0, 1], parents: vec![-1, 0, 1] }],
        transports: vec![reached(&[[0, 1], [1, 2]])],
        communicator: Some(limits(32)),
        ..side(Vec::new())
    };
    let other = Prediction {
        rings: vec![RingOrder { channels: vec![0, 1], ranks: vec![0, 2, 1] }],
        trees: vec![TreeShape { channels: vec![0, 1], parents: vec![-1, 0, 0] }],
        transports: vec![reached(&[[0, 1], [0, 2]])],
        communicator: Some(limits(64)),
        ..side(Vec::new())
    };
    assert_eq!(compare(&one, &one), Differences::default());
    let found = compare(&one, &other).facts;
    let found: Vec<_> = found.iter().map(|f| [&*f.what, &*f.this, &*f.other]).collect();
    assert_eq!(
        found,
        [
            ["CTAs (fewest-most)", "1-32", "1-64"],
            ["ring orders", "2x 0 1 2", "2x 0 2 1"],
            ["trees (the rank above each)", "2x -1 0 1", "2x -1 0 0"],
            ["SHM only between", "1->2", "0->2"],
        ]
    );
}
