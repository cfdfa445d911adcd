//! CSV: one row a range of sizes; one without sizes for a side that has none.

use crate::model::{Explain, PredictedRange, Prediction};
use crate::render::escape;
use anyhow::Result;
use std::io::Write;

const HEADER: [&str; 20] = [
    "side",
    "provenance",
    "nccl",
    "gpus",
    "model",
    "topology",
    "settings",
    "collective",
    "from_bytes",
    "to_bytes",
    "algo",
    "proto",
    "channels_min",
    "channels_max",
    "threads_min",
    "threads_max",
    "time_us_from",
    "time_us_to",
    "busbw_from",
    "busbw_to",
];

/// Writes the ranges of one or both sides. What is not available is empty.
///
/// # Errors
/// The writer's own.
pub fn write(result: &Explain, to: &mut dyn Write) -> Result<()> {
    let mut csv = ::csv::Writer::from_writer(to);
    csv.write_record(HEADER)?;
    let this = std::iter::once(("this", &result.prediction));
    for (side, prediction) in this.chain(result.vs.iter().map(|vs| ("vs", vs))) {
        let asked = asked(side, &result.provenance, prediction);
        if prediction.ranges.is_empty() {
            csv.write_record(asked.iter().chain(&nothing()))?;
        }
        for range in &prediction.ranges {
            csv.write_record(asked.iter().chain(&told(range)))?;
        }
    }
    Ok(csv.flush()?)
}

fn asked(side: &str, provenance: &str, prediction: &Prediction) -> [String; 7] {
    let node = &prediction.node;
    [
        side.to_owned(),
        escape(provenance),
        escape(&prediction.nccl.version),
        node.gpus.to_string(),
        escape(&node.model),
        escape(&node.topology),
        settings(prediction),
    ]
}

/// As a shell takes them.
fn settings(prediction: &Prediction) -> String {
    let setting = prediction.settings.iter().map(|setting| {
        let value = escape(&setting.value);
        // Nothing that cannot be quoted is left after escaping.
        let quoted = shlex::try_quote(&value).unwrap_or_else(|_| (&*value).into());
        format!("{}={quoted}", escape(&setting.name))
    });
    setting.collect::<Vec<_>>().join(" ")
}

fn nothing() -> [String; 13] {
    std::array::from_fn(|_| String::new())
}

fn told(range: &PredictedRange) -> [String; 13] {
    let text = |text: &Option<String>| text.as_deref().map(escape).unwrap_or_default();
    let [channels_min, channels_max] = both(range.channels);
    let [threads_min, threads_max] = both(range.threads);
    let [time_from, time_to] = both(range.time_us);
    let [busbw_from, busbw_to] = both(range.busbw);
    [
        escape(&range.collective),
        range.from.to_string(),
        range.to.to_string(),
        text(&range.algo),
        text(&range.proto),
        channels_min,
        channels_max,
        threads_min,
        threads_max,
        time_from,
        time_to,
        busbw_from,
        busbw_to,
    ]
}

fn both<T: ToString>(pair: Option<[T; 2]>) -> [String; 2] {
    pair.map(|pair| pair.map(|one| one.to_string())).unwrap_or_default()
}
