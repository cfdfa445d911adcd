//! What NCCL chose for each size, from three witnesses: its log (algorithm,
//! protocol), the kernels that it would start (channels, threads), and its own
//! estimate (time). What a version does not tell stays absent.

use super::ask::{Calls, Outcome};
use crate::model::PredictedChoice;
use crate::nccl::image::NcclVersion;
use crate::nccl::log::Choice;

/// One choice for each collective and size that was asked, in order.
pub(super) fn choices(
    outcome: &Outcome,
    version: NcclVersion,
    ranks: usize,
) -> Vec<PredictedChoice> {
    // All ranks choose alike; where they end in a crash, one came further.
    let furthest = outcome.ranks.iter().map(|rank| &rank.choices[..]).max_by_key(|all| all.len());
    let mut logged = furthest.unwrap_or_default().iter();
    let mut all = Vec::new();
    for calls in &outcome.calls {
        for &bytes in &calls.sizes {
            let size = calls.collective.call(bytes, ranks as u64).logged(version);
            let same = |one: &Choice| {
                let named = one.collective.as_deref();
                one.bytes == size && named.is_none_or(|name| name == calls.collective.name())
            };
            // In order, so that a repeated size would not be taken for another.
            let choice = logged.clone().position(same).and_then(|at| logged.nth(at));
            all.push(predicted(calls, bytes, choice, ranks));
        }
    }
    // Behind a failure nothing was asked.
    all.retain(|choice| choice.algo.is_some() || choice.channels.is_some());
    all
}

fn predicted(calls: &Calls, bytes: u64, choice: Option<&Choice>, ranks: usize) -> PredictedChoice {
    let launch = calls.launches.iter().find(|one| one.bytes == bytes && one.device == 0);
    let simulated = calls.times.iter().find(|one| one.bytes == bytes).map(|one| one.time_us);
    let time_us = simulated.or(choice.and_then(|one| one.time_us)).filter(|time| *time > 0.0);
    let algbw = time_us.map(|time| bytes as f64 / time / 1e3);
    let logged = choice.and_then(|one| one.channels);
    PredictedChoice {
        collective: calls.collective.name().into(),
        bytes,
        algo: choice.map(|one| one.algorithm.clone()),
        proto: choice.map(|one| one.protocol.clone()),
        channels: logged
            .and_then(|(first, last)| last.checked_sub(first)?.checked_add(1))
            .or_else(|| launch.and_then(|one| width(&one.grid))),
        threads: launch.and_then(|one| width(&one.block)),
        time_us,
        algbw,
        busbw: algbw.map(|algbw| algbw * calls.collective.bus_factor(ranks)),
    }
}

/// The first number of `24x1x1`.
fn width(dimensions: &str) -> Option<u32> {
    dimensions.split('x').next()?.parse().ok()
}
