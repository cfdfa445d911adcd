//! What became of each setting: as NCCL understood it, and what differs when
//! NCCL is asked again without it.

use super::ask::{Asked, Asker, Outcome, Side};
use super::disabled::{self, Machine};
use super::{choices, ranges, why};
use crate::model::Outcome::Adjusted;
use crate::model::{
    CostCell, FailureKind, InForce, NcclAsked, NodeAsked, Prediction, Seen, SettingAsked,
    SettingEffect,
};
use crate::nccl::effect;
use crate::nccl::image::Known;
use crate::nccl::integer::{Parsed, parse_like_nccl};
use crate::nccl::log::RankLog;
use crate::virtual_node::node::NodeError;
use std::ffi::{OsStr, OsString};

/// Makes predictions out of what runs brought back, and asks again where that
/// tells more.
pub(super) struct Teller<'a> {
    pub(super) asked: &'a Asked,
    pub(super) asker: &'a mut Asker,
    /// Whether each setting is taken away once.
    pub(super) try_more: bool,
    /// Is told what is being asked next.
    pub(super) step: &'a dyn Fn(&str),
    /// What could not be asked again, and why.
    pub(super) notes: Vec<String>,
}

/// More settings than this are not taken away one by one: each costs a run.
const MOST_TRIED: usize = 24;

impl Teller<'_> {
    /// The prediction for a side, given what its run brought back.
    pub(super) fn prediction(&mut self, side: &Side, outcome: &Outcome) -> Prediction {
        let mut prediction = bare(side, outcome);
        let variables = &side.spec.variables;
        prediction.settings = variables.iter().map(|pair| setting(side, outcome, pair)).collect();
        if self.try_more && variables.len() > MOST_TRIED {
            self.notes.push(format!("more than {MOST_TRIED} settings: none was taken away"));
        } else if self.try_more
            && let Err(error) = self.take_away(side, &mut prediction)
        {
            // What is known already stays.
            self.notes.push(format!("not every setting was taken away: {error}"));
        }
        let machine = Machine {
            multicast: side.spec.model.figures.multicast && side.spec.topology.switched(),
            alone: prediction.settings.iter().all(|s| s.effect != SettingEffect::NotTried),
        };
        disabled::by_machine(&mut prediction, machine);
        if !machine.alone && names_ll128(&prediction) {
            self.notes.push(
                "NCCL_PROTO is set and LL128 is enabled; whether NCCL would use it by itself was \
                 not asked, and where it would not, results may be wrong (ND0206)"
                    .into(),
            );
        }
        prediction
    }

    /// Asks once without each setting, and without all of them.
    fn take_away(&mut self, side: &Side, prediction: &mut Prediction) -> Result<(), NodeError> {
        let variables = &side.spec.variables;
        for at in 0..variables.len() {
            let setting = &prediction.settings[at];
            let what = setting.to_string();
            (self.step)(&format!("what differs without {}", setting.name));
            let mut rest = variables.clone();
            rest.remove(at);
            let without = self.with(side, rest)?;
            prediction.settings[at].effect = judge(prediction, &without, at);
            disabled::by_setting(prediction, &without, &what);
        }
        let off = prediction.cost_table.iter().any(|c| !c.enabled && c.disabled_by.is_none());
        if variables.len() > 1 && off {
            (self.step)("what differs without all settings");
            let without = self.with(side, Vec::new())?;
            disabled::by_setting(prediction, &without, "the settings together");
        }
        Ok(())
    }

    fn with(
        &mut self,
        side: &Side,
        variables: Vec<(OsString, OsString)>,
    ) -> Result<Prediction, NodeError> {
        let mut side = side.clone();
        side.spec.variables = variables;
        Ok(bare(&side, &self.asker.ask(&side, self.asked)?))
    }
}

/// A setting may be what enables LL128.
fn names_ll128(prediction: &Prediction) -> bool {
    let set = prediction.settings.iter().any(|setting| setting.name == "NCCL_PROTO");
    set && prediction.cost_table.iter().any(|cell| cell.enabled && cell.proto == "LL128")
}

/// The prediction without what became of the settings.
pub(super) fn bare(side: &Side, outcome: &Outcome) -> Prediction {
    let spec = &side.spec;
    let choices = choices::choices(outcome, side.library.image.version, spec.ranks);
    let mut prediction = Prediction {
        nccl: NcclAsked {
            version: side.library.image.version.to_string(),
            cuda: side.library.image.cuda.clone(),
            path: spec.library.display().to_string(),
        },
        node: NodeAsked {
            gpus: spec.ranks,
            model: spec.model.name.clone(),
            topology: spec.topology.origin.display().to_string(),
            is_virtual: true,
        },
        ranges: ranges::ranges(&choices),
        choices,
        failure: outcome.failure.clone(),
        ..Prediction::default()
    };
    why::fill(&mut prediction, outcome);
    prediction
}

fn setting(side: &Side, outcome: &Outcome, (name, value): &(OsString, OsString)) -> SettingAsked {
    let name = name.to_string_lossy().into_owned();
    let value = value.to_string_lossy().into_owned();
    let logged = outcome.ranks.iter().find_map(|rank| understood(rank, &name));
    // Not every read is logged.
    let read = outcome.reads.contains(OsStr::new(&name)).then(|| value.clone());
    let understood = logged.or(read);
    let unknown = understood.is_none()
        && name.starts_with("NCCL_")
        && side.library.image.kind_of(&name) == Known::Unknown;
    SettingAsked {
        effect: match () {
            () if unknown => SettingEffect::Unknown,
            () if is_refused(outcome, &name, &value) => SettingEffect::Refused,
            () => SettingEffect::NotTried,
        },
        messages: messages(outcome, &name),
        adjusted_to: understood.as_ref().and_then(|_| adjusted(outcome, &name, &value)),
        understood,
        name,
        value,
    }
}

/// NCCL gave no answer, and the value is one that it refuses.
fn is_refused(outcome: &Outcome, name: &str, value: &str) -> bool {
    outcome.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Refused)
        && effect::is_refused(name, value.as_bytes())
}

/// What is in force instead of a value that NCCL took. What it misread it did
/// not adjust.
fn adjusted(outcome: &Outcome, name: &str, value: &str) -> Option<String> {
    let now = effect::in_force(name, outcome.communicator.as_ref()?)?;
    let misread = matches!(
        parse_like_nccl(value.as_bytes()),
        Parsed::Prefix(_) | Parsed::Octal(_) | Parsed::Overflow
    );
    let number = matches!(now, InForce::Number(_));
    let read = Seen::Value(value.as_bytes().to_vec());
    let judged = effect::outcome(name, value.as_bytes(), &read, &now);
    (judged == Some(Adjusted) && !(number && misread)).then(|| now.to_string())
}

fn understood(rank: &RankLog, name: &str) -> Option<String> {
    rank.env.iter().find(|line| line.name == name).map(|line| line.value.clone())
}

/// What NCCL says about this variable, each text once.
fn messages(outcome: &Outcome, name: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for problem in outcome.ranks.iter().flat_map(|rank| &rank.problems) {
        if mentions(&problem.text, name) && !all.contains(&problem.text) {
            all.push(problem.text.clone());
        }
    }
    all
}

/// The name stands there as a whole word: `NCCL_ALGO`, not `NCCL_ALGORITHM`.
fn mentions(text: &str, name: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + name.len()..].starts_with(part))
}

fn judge(with: &Prediction, without: &Prediction, at: usize) -> SettingEffect {
    use FailureKind::{Crashed, Ended, Refused, TooLate};
    let setting = &with.settings[at];
    let kind = |side: &Prediction| side.failure.as_ref().map(|failure| failure.kind);
    match (kind(with), kind(without)) {
        // What time or somebody else ended says nothing about a setting.
        (_, Some(Ended | TooLate)) | (Some(Ended | TooLate), _) => return setting.effect,
        (Some(Crashed), None | Some(Refused)) => return SettingEffect::Crashes,
        (Some(Refused), None) => return SettingEffect::Refused,
        // Without it NCCL fails as well: nothing can be compared.
        (Some(Crashed | Refused), Some(_)) => return setting.effect,
        (None, _) => {}
    }
    match () {
        () if !same_outcome(with, without) => SettingEffect::Changes,
        () if setting.effect == SettingEffect::Unknown => SettingEffect::Unknown,
        () if setting.messages.iter().any(|text| text.starts_with("Invalid value")) => {
            SettingEffect::Refused
        }
        () if setting.understood.is_none() => SettingEffect::NotRead,
        () => SettingEffect::None,
    }
}

/// Everything that is shown is the same.
pub(super) fn same_outcome(a: &Prediction, b: &Prediction) -> bool {
    // Which rank tells of a failure first is chance.
    let failed = |all: &Prediction| all.failure.clone().map(|f| (f.step, f.kind));
    // Why a pair is off is found out later.
    let table = |all: &Prediction| -> Vec<CostCell> {
        let plain = |cell: &CostCell| CostCell { disabled_by: None, forced: false, ..cell.clone() };
        all.cost_table.iter().map(plain).collect()
    };
    a.choices == b.choices
        && a.graph == b.graph
        && a.rings == b.rings
        && a.trees == b.trees
        && a.transports == b.transports
        && a.communicator == b.communicator
        && failed(a) == failed(b)
        && table(a) == table(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_word() {
        assert!(mentions("Invalid value abc for NCCL_ALGO, using", "NCCL_ALGO"));
        assert!(!mentions("NCCL_ALGORITHM", "NCCL_ALGO"));
        assert!(!mentions("MY_NCCL_ALGO=1", "NCCL_ALGO"));
    }
}
