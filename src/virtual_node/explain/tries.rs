//! Tries settings against a finding: asks NCCL again with each, and says what
//! is different then. Nothing is recommended that was not tried.

use super::ask::{Asked, Asker, Side};
use super::compare::graph_in_words;
use super::settings::{bare, same_outcome};
use super::why::RING;
use crate::model::{Code, ExplainFinding, Prediction, Tried};
use crate::virtual_node::node::NodeError;
use crate::virtual_node::topology::Topology;

/// A change to try.
enum Change {
    /// These variables.
    Variables(&'static [(&'static str, &'static str)]),
    /// The topology with its CPUs called by another name, which NCCL takes for
    /// faster connected (topo.cc: 40 GB/s for Intel's 6/207, 16 for AMD's).
    FasterCpus,
}

const FASTER: [(&str, &str); 3] =
    [("vendor", "GenuineIntel"), ("familyid", "6"), ("modelid", "207")];

/// What is tried against a finding.
fn changes(code: Code) -> &'static [Change] {
    use Change::{FasterCpus, Variables};
    match code {
        Code::NoChannelsFound => &[
            Variables(&[("NCCL_MIN_NCHANNELS", "8")]),
            Variables(&[("NCCL_P2P_LEVEL", "SYS")]),
            Variables(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_P2P_LEVEL", "SYS")]),
            FasterCpus,
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
    side: &Side,
    asked: &Asked,
    prediction: &Prediction,
    step: &dyn Fn(&str),
) -> Result<(), NodeError> {
    let few = Asked { sizes: some(&asked.sizes), ..asked.clone() };
    let before = only(prediction, &few, side.spec.ranks);
    let mut known: Vec<(String, Prediction)> = Vec::new();
    for one in found {
        for change in changes(one.finding.code) {
            let Some((changed, settings)) = change.apply(side) else { continue };
            if !known.iter().any(|(other, _)| *other == settings) {
                step(&format!("what {settings} changes"));
                let then = bare(&changed, &asker.ask(&changed, &few)?);
                known.push((settings.clone(), then));
            }
            let then = known.iter().find(|(other, _)| *other == settings).map(|(_, then)| then);
            // What changes nothing at all helps nobody.
            if let Some(then) = then.filter(|then| !same_outcome(then, &before)) {
                one.tried.push(tried(settings, then, &before));
            }
        }
    }
    Ok(())
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
    fn apply(&self, side: &Side) -> Option<(Side, String)> {
        let mut changed = side.clone();
        match self {
            Self::Variables(all) => {
                let variables = &mut changed.spec.variables;
                for (name, value) in *all {
                    if variables.iter().any(|(known, _)| known == name) {
                        return None;
                    }
                    variables.push(((*name).into(), (*value).into()));
                }
                let words: Vec<_> =
                    all.iter().map(|(name, value)| format!("{name}={value}")).collect();
                Some((changed, words.join(" ")))
            }
            Self::FasterCpus => {
                let text = with_cpus(&side.spec.topology.text, &FASTER)?;
                changed.spec.topology = Topology::parse(&text, &side.spec.topology.origin).ok()?;
                let words = FASTER.map(|(name, value)| format!("{name}=\"{value}\"")).join(" ");
                Some((changed, format!("NCCL_TOPO_FILE with all CPUs as {words}")))
            }
        }
    }
}

/// The topology with these attributes in each `cpu` element; `None` when one of
/// them is not there.
fn with_cpus(text: &str, attributes: &[(&str, &str)]) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut found = false;
    while let Some(at) = rest.find("<cpu ") {
        let end = at + rest[at..].find('>')?;
        let mut element = rest[at..end].to_owned();
        for (name, value) in attributes {
            let start = element.find(&format!(" {name}=\""))? + name.len() + 3;
            let stop = start + element[start..].find('"')?;
            element.replace_range(start..stop, value);
        }
        out.push_str(&rest[..at]);
        out.push_str(&element);
        rest = &rest[end..];
        found = true;
    }
    out.push_str(rest);
    (found && out != text).then_some(out)
}

fn tried(settings: String, then: &Prediction, before: &Prediction) -> Tried {
    let ring = then.graph.iter().find(|graph| graph.pattern == RING);
    let last = |side: &Prediction| {
        side.choices.iter().max_by_key(|choice| choice.bytes).map(|one| (one.bytes, one.time_us))
    };
    let ratio = last(then)
        .zip(last(before))
        .filter(|(then, before)| then.0 == before.0)
        .and_then(|(then, before)| Some(then.1? / before.1?));
    Tried {
        settings,
        channels: then.communicator.as_ref().and_then(|one| one.channels),
        ring: ring.map(graph_in_words),
        via: then.transports.iter().map(|one| one.via.clone()).collect(),
        choices: then.choices.clone(),
        time_ratio: ratio,
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
mod tests {
    use super::*;

    #[test]
    fn each_cpu_gets_the_attributes_and_nothing_else_changes() {
        let text = "<system><cpu numaid=\"0\" vendor=\"A\" familyid=\"1\" modelid=\"2\"><pci \
                    vendor=\"x\"/></cpu><cpu numaid=\"1\" vendor=\"A\" familyid=\"1\" \
                    modelid=\"2\"/></system>";
        let found = with_cpus(text, &FASTER).expect("they are there");
        assert_eq!(
            found.matches("vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"207\"").count(),
            2
        );
        assert!(found.contains("<pci vendor=\"x\"/>"));
        assert_eq!(with_cpus(&found, &FASTER), None, "it is there already");
        assert_eq!(with_cpus("<system/>", &FASTER), None);
        assert_eq!(with_cpus("<cpu numaid=\"0\"/>", &FASTER), None);
    }
}
