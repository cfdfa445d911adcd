//! Known bad answers and useless settings, each with what may help. Whether it
//! does is found out in `tries`. Pure.

use super::ask::Side;
use super::compare::graph_in_words;
use super::why::RING;
use crate::model::{
    Code, ExplainFinding, FailureKind, Finding, GraphFound, InForce, Prediction, SettingAsked,
    SettingEffect,
};
use crate::nccl::effect;
use crate::nccl::integer::{Parsed, parse_like_nccl};

/// NCCL stores this where its search finds nothing.
pub(super) const NOTHING_FOUND: f64 = 0.1;

/// The slowest speed, in GB/s, that the search tries inside a machine of GPUs
/// of compute capability 10 and newer (search.cc, 2.26 to 2.30).
const SLOWEST_TRIED: f64 = 18.0;

/// What follows from a prediction, the worst first.
pub(super) fn findings(side: &Side, prediction: &Prediction) -> Vec<ExplainFinding> {
    let mut all: Vec<Finding> = Vec::new();
    all.extend(failed(prediction));
    all.extend(channels(side, prediction));
    all.extend(host_memory(side, prediction));
    all.extend(uneven(side));
    all.extend(ll128(prediction));
    all.extend(prediction.settings.iter().filter_map(|setting| useless(side, setting)));
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    all.into_iter().map(|finding| ExplainFinding { finding, tried: Vec::new() }).collect()
}

fn failed(prediction: &Prediction) -> Option<Finding> {
    let failure = prediction.failure.as_ref()?;
    let refused: Vec<String> = prediction
        .settings
        .iter()
        .filter(|s| matches!(s.effect, SettingEffect::Refused | SettingEffect::Crashes))
        .map(SettingAsked::to_string)
        .collect();
    let fix = match (failure.kind, refused.is_empty()) {
        (FailureKind::Ended, _) => "ask again: a rank was ended from outside, or ended itself",
        (FailureKind::TooLate, _) => "ask again with a longer --timeout, or fewer sizes",
        (_, true) => "ask again with other settings, or another NCCL version",
        (_, false) => "change the settings named here: without each of them NCCL gives an answer",
    };
    let list = |s: &SettingAsked| effect::is_refused(&s.name, s.value.as_bytes());
    let code = match failure.kind {
        FailureKind::Crashed => Code::NcclCrashed,
        FailureKind::Refused if prediction.settings.iter().any(list) => Code::RefusedByNccl,
        _ => Code::NoAnswer,
    };
    Some(Finding::new(code, failure.message.clone(), fix, refused))
}

/// The search for channels found nothing, or little.
fn channels(side: &Side, prediction: &Prediction) -> Option<Finding> {
    if prediction.failure.is_some() {
        return None;
    }
    let ring = prediction.graph.iter().find(|graph| graph.pattern == RING)?;
    let places = vec![side.spec.topology.origin.display().to_string()];
    if ring.bw_intra <= NOTHING_FOUND {
        let message = format!(
            "NCCL's search for rings found nothing and fell back to {}{}",
            graph_in_words(ring),
            blackwell(side, ring)
        );
        let fix = "try a newer NCCL or more channels (NCCL_MIN_NCHANNELS=8 helped owners of such \
                   machines), and measure: the estimates for this answer mean nothing, and \
                   NCCL's estimate never counts channels that are added by hand";
        return Some(Finding::new(Code::NoChannelsFound, message, fix, places));
    }
    let count = prediction.communicator.as_ref()?.channels?;
    let limits = |s: &SettingAsked| s.name.ends_with("NCHANNELS") || s.name.ends_with("_CTAS");
    let asked = prediction.settings.iter().any(limits);
    (count <= 2 && side.spec.ranks >= 4 && !asked).then(|| {
        let message = format!(
            "all-reduce uses {count} channels for {} GPUs: the best ring that NCCL found is {}",
            side.spec.ranks,
            graph_in_words(ring)
        );
        let fix = "try more channels (NCCL_MIN_NCHANNELS) and measure: NCCL's estimate does not \
                   count channels that are added by hand";
        Finding::new(Code::FewChannels, message, fix, places)
    })
}

/// Why nothing is found between the sockets of machines with Blackwell cards.
fn blackwell(side: &Side, ring: &GraphFound) -> String {
    let searched = (26..=30).contains(&side.library.image.version.minor);
    if side.spec.model.sm() < 100 || ring.type_intra != "SYS" || !searched {
        return String::new();
    }
    format!(
        ": for GPUs of compute capability 10 and newer this version tries only speeds from \
         {SLOWEST_TRIED} GB/s up, and takes some part of the way, mostly the connection between \
         the CPUs, to be slower"
    )
}

/// Data takes the way through host memory though GPUs could reach each other.
fn host_memory(side: &Side, prediction: &Prediction) -> Option<Finding> {
    let through = |kind: &str| -> usize {
        let kind = prediction.transports.iter().filter(|one| one.via.starts_with(kind));
        kind.map(|one| one.pairs.len()).sum()
    };
    let (pairs, way) = match (through("SHM"), through("NET")) {
        (0, 0) => return None,
        (pairs, 0) => (pairs, "host memory"),
        (0, pairs) => (pairs, "the network"),
        (host, net) => (host + net, "host memory or the network"),
    };
    let all: usize = prediction.transports.iter().map(|one| one.pairs.len()).sum();
    let model = &side.spec.model;
    let steers = |s: &&SettingAsked| {
        let named = s.name.starts_with("NCCL_P2P_") || s.name == "NCCL_SHM_DISABLE";
        named && s.effect != SettingEffect::None
    };
    let off = prediction.settings.iter().find(steers);
    let (why, fix) = match (off, model.figures.peer) {
        (Some(setting), _) => {
            (format!("because of {setting}"), "leave that setting out, or choose another value")
        }
        (None, false) => (
            format!("because the driver offers no peer access between {} cards", model.name),
            "none for this card with NVIDIA's driver; the model rtx4090-p2p shows what a kernel \
             module with peer access changes",
        ),
        (None, true) => (
            "because NCCL takes the path between them to be too long".to_owned(),
            "try NCCL_P2P_LEVEL=SYS, and test that results are right: some platforms cannot do \
             peer access over this path",
        ),
    };
    let message = format!("{pairs} of {all} connected pairs go through {way} {why}");
    Some(Finding::new(Code::ThroughHostMemory, message, fix, Vec::new()))
}

fn uneven(side: &Side) -> Option<Finding> {
    let gpus = &side.spec.topology.gpus[..side.spec.ranks.min(side.spec.topology.gpus.len())];
    let most = gpus.iter().filter_map(|gpu| gpu.links).max()?;
    let fewer: Vec<String> = gpus
        .iter()
        .filter(|gpu| gpu.links.is_some_and(|links| links < most))
        .map(|gpu| format!("{} ({} links)", gpu.bus, gpu.links.unwrap_or_default()))
        .collect();
    (!fewer.is_empty()).then(|| {
        let message =
            format!("GPUs have different numbers of NVLinks: the most is {most}, some have fewer");
        let fix = "look at nvidia-smi nvlink --status on that machine: a bridge or a link may be \
                   damaged, or switched off";
        Finding::new(Code::UnevenLinks, message, fix, fewer)
    })
}

/// Wrong results are possible where LL128 is forced.
fn ll128(prediction: &Prediction) -> Option<Finding> {
    let setting = prediction.settings.iter().find(|setting| setting.name == "NCCL_PROTO")?;
    let forced = prediction.cost_table.iter().any(|cell| cell.forced);
    forced.then(|| {
        let message = "NCCL_PROTO turns LL128 on where NCCL itself does not use it, and there \
                       LL128 can give wrong results without an error";
        let fix = "write NCCL_PROTO without LL128; ^LL means LL128 as well, ^LL,LL128 does not";
        Finding::new(Code::Ll128Forced, message.into(), fix, vec![setting.to_string()])
    })
}

/// A setting that does nothing, or something else than it says.
fn useless(side: &Side, setting: &SettingAsked) -> Option<Finding> {
    let SettingAsked { name, value, .. } = setting;
    let places = vec![setting.to_string()];
    if let Some(understood) = misread(setting) {
        let message = format!("NCCL takes {value} for {understood}: it reads only plain numbers");
        let fix = "write the number out, without a unit";
        return Some(Finding::new(Code::ParsedDifferently, message, fix, places));
    }
    if let Some(now) = &setting.adjusted_to {
        let message = format!("NCCL took {setting}, and works with {now}");
        let rule = effect::rule(name, now == InForce::NOTHING);
        return Some(Finding::new(Code::AdjustedByNccl, message, rule, places));
    }
    match setting.effect {
        SettingEffect::Unknown => {
            let near = side.library.image.suggest(name);
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let message = format!("NCCL {} knows no {name}{near}", side.library.image.version);
            let fix = "check the name, and the version that it needs";
            Some(Finding::new(Code::UnknownVariable, message, fix, places))
        }
        SettingEffect::NotRead => {
            let message = format!("NCCL did not read {name} on the way to these choices");
            let fix = "it is for something else (a network, another machine), or comes too late";
            Some(Finding::new(Code::NotRead, message, fix, places))
        }
        SettingEffect::None => {
            let message = format!("{name} was read, and everything is the same without it");
            let fix =
                "leave it out, or ask with --sizes, --collective or more GPUs where it counts";
            Some(Finding::new(Code::NoEffect, message, fix, places))
        }
        SettingEffect::Changes
        | SettingEffect::Refused
        | SettingEffect::Crashes
        | SettingEffect::NotTried => None,
    }
}

/// What NCCL made of a number that was not written plainly.
fn misread(setting: &SettingAsked) -> Option<&str> {
    let understood = setting.understood.as_deref()?;
    match parse_like_nccl(setting.value.as_bytes()) {
        Parsed::Prefix(n) | Parsed::Octal(n) if n.to_string() == understood => Some(understood),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit_is_misread_and_a_word_is_not() {
        let setting = |value: &str, understood: &str| SettingAsked {
            name: "NCCL_BUFFSIZE".into(),
            value: value.into(),
            understood: Some(understood.into()),
            adjusted_to: None,
            effect: SettingEffect::Changes,
            messages: Vec::new(),
        };
        assert_eq!(misread(&setting("8M", "8")), Some("8"));
        assert_eq!(misread(&setting("010", "8")), Some("8"));
        assert_eq!(misread(&setting("0x10", "16")), None);
        assert_eq!(misread(&setting("8388608", "8388608")), None);
        assert_eq!(misread(&setting("Ring", "Ring")), None);
    }
}
