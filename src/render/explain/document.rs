//! The order in which a result is told: the answer, why, what to do about it.

use super::block::{Block, Section};
use super::{findings, side, versus, why};
use crate::model::{Explain, Failure, Prediction};

/// All of a result.
pub fn of(result: &Explain) -> Vec<Section<'_>> {
    let mut sections = match &result.vs {
        Some(other) => versus::sections(result, other),
        None => alone(&result.prediction),
    };
    // Right below the title: they qualify all that follows.
    sections.insert(1, findings::notes(result));
    sections.push(findings::warnings(result));
    sections.extend(findings::sections(result));
    sections.retain(|section| !section.is_empty());
    sections
}

fn alone(prediction: &Prediction) -> Vec<Section<'_>> {
    let title = format!("{}: predicted, no GPU took part", side::asked_shortly(prediction));
    let mut sections = vec![vec![Block::Title(title)], side::settings(&[prediction])];
    sections.push(prediction.failure.iter().map(|f| findings::failed("failed: ", f)).collect());
    sections.extend(side::choices(prediction));
    sections.extend(why::sections(prediction));
    sections
}

/// A failure in words.
pub fn failure(failure: &Failure) -> String {
    format!("at {}: {}", failure.step, failure.message)
}
