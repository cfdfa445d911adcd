//! Tries settings against a finding: asks NCCL again with each, and says what
//! is different then. Nothing is recommended that was not tried.

use super::Question;
use super::ask::{Asked, Asker, Side};
use super::compare::graph_in_words;
use super::findings::NOTHING_FOUND;
use super::settings::{bare, same_outcome};
use super::why::RING;
use crate::model::{Code, ExplainFinding, Prediction, Tried};
use crate::virtual_node::node::NodeError;
use crate::virtual_node::topology::Topology;
use crate::virtual_node::xml;
use std::sync::Arc;

/// A change to try.
enum Change {
    /// These variables.
    Variables(&'static [(&'static str, &'static str)]),
    /// The topology with its CPUs called by another name, which NCCL takes for
    /// faster connected (topo.cc: 40 GB/s for Intel's 6/207, 16 for AMD's).
    FasterCpus,
    /// The newest library at hand, if it is newer.
    NewerNccl,
}

const FASTER: [(&str, &str); 3] =
    [("vendor", "GenuineIntel"), ("familyid", "6"), ("modelid", "207")];

/// What is tried against a finding.
fn changes(code: Code) -> &'static [Change] {
    use Change::{FasterCpus, NewerNccl, Variables};
    match code {
        Code::NoChannelsFound => &[
            Variables(&[("NCCL_MIN_NCHANNELS", "8")]),
            Variables(&[("NCCL_P2P_LEVEL", "SYS")]),
            Variables(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_P2P_LEVEL", "SYS")]),
            FasterCpus,
            NewerNccl,
        ],
        Code::FewChannels => &[
            Variables(&[("NCCL_MIN_NCHANNELS", "4")]),
            Variables(&[("NCCL_MIN_NCHANNELS", "8")]),
            Variables(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_P2P_LEVEL", "SYS")]),
            FasterCpus,
        ],
        Code::ThroughHostMemory => &[Variables(&[("NCCL_P2P_LEVEL", "SYS")])],
        _ => &[],
    }
}

/// Tries what may help against each finding, with a few of the sizes; what
/// several findings share is asked once.
///
/// # Errors
/// As [`Asker::ask`].
pub(super) fn fill(
    found: &mut [ExplainFinding],
    asker: &mut Asker,
    question: &Question,
    prediction: &Prediction,
    step: &dyn Fn(&str),
) -> Result<(), NodeError> {
    let asked = &question.asked;
    let few = Asked { sizes: some(&asked.sizes), ..asked.clone() };
    let before = only(prediction, &few, question.side.spec.ranks);
    let mut known: Vec<(String, Prediction)> = Vec::new();
    for one in found {
        let mut shown: Vec<usize> = Vec::new();
        for change in changes(one.finding.code) {
            let Some((changed, settings)) = change.apply(question) else { continue };
            let at = match known.iter().position(|(other, _)| *other == settings) {
                Some(at) => at,
                None => {
                    step(&format!("what {settings} changes"));
                    let then = bare(&changed, &asker.ask(&changed, &few)?);
                    known.push((settings.clone(), then));
                    known.len() - 1
                }
            };
            let then = &known[at].1;
            if is_news(then, &before, shown.iter().map(|&at| &known[at].1)) {
                one.tried.push(tried(settings, then, &before));
                shown.push(at);
            }
        }
    }
    Ok(())
}

/// What changes nothing at all helps nobody, nor does what comes to the same as
/// a row that is there already.
fn is_news<'a>(
    then: &Prediction,
    before: &'a Prediction,
    shown: impl Iterator<Item = &'a Prediction>,
) -> bool {
    std::iter::once(before).chain(shown).all(|known| !same_outcome(then, known))
}

/// A prediction with these sizes only.
fn only(prediction: &Prediction, few: &Asked, ranks: usize) -> Prediction {
    let mut all = prediction.clone();
    all.choices.retain(|choice| {
        let asked = few.collectives.iter().find(|one| one.name() == choice.collective);
        asked.is_some_and(|&one| few.sizes_of(one, ranks).contains(&choice.bytes))
    });
    all
}

impl Change {
    /// The side with this change, and how a user makes it; `None` when it is
    /// there already, or cannot be made.
    fn apply(&self, question: &Question) -> Option<(Side, String)> {
        let side = question.side.clone();
        match self {
            Self::Variables(all) => with_variables(side, all),
            Self::FasterCpus => with_cpus(side, &FASTER),
            Self::NewerNccl => with_newer(side, question),
        }
    }
}

fn with_variables(mut side: Side, all: &[(&str, &str)]) -> Option<(Side, String)> {
    let variables = &mut side.spec.variables;
    for (name, value) in all {
        if variables.iter().any(|(known, _)| known == name) {
            return None;
        }
        variables.push(((*name).into(), (*value).into()));
    }
    let words: Vec<_> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some((side, words.join(" ")))
}

/// The topology with these attributes in each `cpu` element.
fn with_cpus(mut side: Side, attributes: &[(&str, &str)]) -> Option<(Side, String)> {
    let topology = &mut side.spec.topology;
    let text = xml::with_attributes(&topology.text, "cpu", attributes)?;
    *topology = Topology::parse(&text, &topology.origin).ok()?;
    let words: Vec<_> =
        attributes.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    // The machine stays what it is, and rows are read one by one.
    let text = format!(
        "NCCL_TOPO_FILE with all CPUs as {} (changes only NCCL's estimate and choice)",
        words.join(" ")
    );
    Some((side, text))
}

fn with_newer(mut side: Side, question: &Question) -> Option<(Side, String)> {
    let newer = (question.newer)(&side.library.image)?;
    let text = format!("NCCL {} (--nccl {})", newer.found.image.version, newer.spelling);
    side.spec.library.clone_from(&newer.found.path);
    side.library = Arc::new(newer.found);
    Some((side, text))
}

fn tried(settings: String, then: &Prediction, before: &Prediction) -> Tried {
    let ring = |side: &Prediction| side.graph.iter().find(|graph| graph.pattern == RING).cloned();
    let channels = |side: &Prediction| side.communicator.as_ref().and_then(|one| one.channels);
    let found = |side: &Prediction| ring(side).is_some_and(|ring| ring.bw_intra > NOTHING_FOUND);
    let by_hand = ring(then) == ring(before) && channels(then) != channels(before);
    let counted = found(then) && !by_hand;
    let last = |side: &Prediction| {
        side.choices.iter().max_by_key(|choice| choice.bytes).map(|one| (one.bytes, one.time_us))
    };
    let ratio = last(then)
        .zip(last(before))
        .filter(|(then, before)| then.0 == before.0 && counted)
        .and_then(|(then, before)| Some(then.1? / before.1?));
    Tried {
        settings,
        channels: channels(then),
        ring: ring(then).as_ref().map(graph_in_words),
        via: then.transports.iter().map(|one| one.via.clone()).collect(),
        choices: then.choices.clone(),
        counted,
        time_ratio: ratio.filter(|_| found(before)),
        failure: then.failure.as_ref().map(|failure| failure.message.clone()),
    }
}

/// The smallest, a middle and the largest.
fn some(sizes: &[u64]) -> Vec<u64> {
    let last = sizes.len().saturating_sub(1);
    let mut at = [0, last / 2, last].to_vec();
    at.dedup();
    at.into_iter().filter_map(|at| sizes.get(at).copied()).collect()
}

#[cfg(test)]
#[path = "tries_tests.rs"]
mod tests;
