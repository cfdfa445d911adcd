//! What NCCL chose for each size, from three witnesses: its log (algorithm,
//! protocol), the kernels that it would start (channels, threads), and its own
//! estimate (time). What a version does not tell stays absent.

use super::ask::{Asked, Outcome};
use crate::model::PredictedChoice;
use crate::nccl::log::Choice;

/// One choice for each size, in the order in which they were asked.
pub(super) fn choices(outcome: &Outcome, asked: &Asked) -> Vec<PredictedChoice> {
    let mut logged = outcome.ranks.first().map_or(&[][..], |rank| &rank.choices).iter();
    let ranks = outcome.ranks.first().and_then(|rank| rank.member).map_or(0, |m| m.ranks);
    let one = |&bytes: &u64| {
        // In order, so that a repeated size would not be taken for another.
        let choice = logged.clone().position(|choice| choice.bytes == bytes);
        let choice = choice.and_then(|at| logged.nth(at));
        predicted(outcome, bytes, choice, ranks)
    };
    let all: Vec<PredictedChoice> = asked.sizes.iter().map(one).collect();
    // Behind a failure nothing was asked.
    all.into_iter().filter(|choice| choice.algo.is_some() || choice.channels.is_some()).collect()
}

fn predicted(
    outcome: &Outcome,
    bytes: u64,
    choice: Option<&Choice>,
    ranks: u32,
) -> PredictedChoice {
    let launch = outcome.launches.iter().find(|one| one.bytes == bytes && one.device == 0);
    let simulated = outcome.times.iter().find(|one| one.bytes == bytes).map(|one| one.time_us);
    let time_us = simulated.or(choice.and_then(|one| one.time_us)).filter(|time| *time > 0.0);
    let algbw = time_us.map(|time| bytes as f64 / time / 1e3);
    PredictedChoice {
        collective: "AllReduce".into(),
        bytes,
        algo: choice.map(|one| one.algorithm.clone()),
        proto: choice.map(|one| one.protocol.clone()),
        channels: choice
            .and_then(|one| one.channels)
            .map(|(first, last)| last - first + 1)
            .or_else(|| launch.and_then(|one| width(&one.grid))),
        threads: launch.and_then(|one| width(&one.block)),
        time_us,
        algbw,
        busbw: algbw.map(|algbw| algbw * factor("AllReduce", ranks)),
    }
}

/// Bus bandwidth by algorithm bandwidth, as nccl-tests defines it.
fn factor(collective: &str, ranks: u32) -> f64 {
    let ranks = f64::from(ranks.max(1));
    match collective {
        "AllReduce" => 2.0 * (ranks - 1.0) / ranks,
        "AllGather" | "ReduceScatter" => (ranks - 1.0) / ranks,
        _ => 1.0,
    }
}

/// The first number of `24x1x1`.
fn width(dimensions: &str) -> Option<u32> {
    dimensions.split('x').next()?.parse().ok()
}
