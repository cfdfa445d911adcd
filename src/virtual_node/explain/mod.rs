//! Asks NCCL what it would do on a described machine and puts the answer
//! together: what it chose for each size, what stands behind that, what each
//! setting did, and what helps against known bad answers. `ask` runs a virtual
//! node; everything else works on what it brought back. Printing is not done
//! here.

mod ask;
mod choices;
mod compare;
mod disabled;
mod findings;
mod ranges;
mod settings;
mod tries;
mod why;

pub use ask::{Asked, Side};

use super::node::NodeError;
use crate::model::{EXPLAIN_SCHEMA, Explain, ExplainFinding, PREDICTED};
use crate::nccl::find::Fetched;
use crate::nccl::image::Image;
use ask::Asker;
use compare::compare;

/// One or two sides to ask about.
pub struct Question {
    /// The side in question.
    pub side: Side,
    /// The other side of a comparison.
    pub vs: Option<Side>,
    /// What is asked of each.
    pub asked: Asked,
    /// Whether settings are taken away one by one, and others tried.
    pub try_more: bool,
    /// A library that is newer than this one, to try where that may help.
    pub newer: fn(&Image) -> Option<Fetched>,
}

/// Answers a question. `step` is told what is being asked next.
///
/// # Errors
/// The virtual node cannot be had, or NCCL called what it does not have. What
/// NCCL itself refuses is part of the answer.
pub fn explain(question: &Question, step: &dyn Fn(&str)) -> Result<Explain, NodeError> {
    let asked = &question.asked;
    let mut asker = Asker::default();
    step("what NCCL chooses");
    let outcome = asker.ask(&question.side, asked)?;
    let vs = match &question.vs {
        Some(side) => {
            step("what it chooses on the other side");
            Some(asker.ask(side, asked)?)
        }
        None => None,
    };
    let try_more = question.try_more;
    let mut tell = settings::Teller { asked, asker: &mut asker, try_more, step, notes: Vec::new() };
    let prediction = tell.prediction(&question.side, &outcome);
    let other = question.vs.as_ref().zip(vs).map(|(side, outcome)| tell.prediction(side, &outcome));
    let mut notes = notes(question);
    notes.append(&mut tell.notes);
    let differences = other.as_ref().map(|other| compare(&prediction, other, asked));
    let mut found = findings::findings(&question.side, &prediction);
    // Where NCCL gives no answer there is nothing to compare with.
    if try_more && prediction.failure.is_none() {
        let tried = tries::fill(&mut found, &mut asker, question, &prediction, step);
        if let Err(error) = tried {
            notes.push(format!("not every setting was tried: {error}"));
        }
    }
    if let Some((side, other)) = question.vs.as_ref().zip(other.as_ref()) {
        found.extend(only_there(&found, findings::findings(side, other)));
    }
    Ok(Explain {
        schema: EXPLAIN_SCHEMA.into(),
        provenance: PREDICTED.into(),
        prediction,
        vs: other,
        differences,
        findings: found,
        notes,
    })
}

/// What has to be known about both sides, each once.
fn notes(question: &Question) -> Vec<String> {
    let mut notes = question.side.notes.clone();
    for note in question.vs.iter().flat_map(|side| &side.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes
}

/// The findings of the other side that this side does not have, marked as such.
fn only_there(here: &[ExplainFinding], there: Vec<ExplainFinding>) -> Vec<ExplainFinding> {
    let new = |one: &ExplainFinding| !here.iter().any(|other| other.finding == one.finding);
    let marked = |mut one: ExplainFinding| {
        for place in &mut one.finding.places {
            place.insert_str(0, "other side: ");
        }
        if one.finding.places.is_empty() {
            one.finding.places.push("other side".into());
        }
        one
    };
    there.into_iter().filter(new).map(marked).collect()
}
