//! The comparison on made-up predictions.

use super::*;
use crate::model::{Failure, FailureKind};

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
    Prediction { choices, ..Prediction::default() }
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
    assert_eq!(found[0].other, "Tree/LL, 1 channel");
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
