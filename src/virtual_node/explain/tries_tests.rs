//! What is tried against findings, on real libraries.

use super::*;
use crate::model::RingOrder;
use crate::nccl::collective::Collective;
use crate::nccl::find::{Choice, Fetched, Found, resolve};
use crate::nccl::image::Image;
use crate::virtual_node::explain::findings;
use crate::virtual_node::machine::presets;
use crate::virtual_node::node::NodeSpec;
use crate::virtual_node::testing::{library, through_this_program};
use std::ops::ControlFlow;
use std::path::Path;

const NEWEST: &str = "2.32.3-cu12";

fn found(name: &str) -> Option<Found> {
    let entry = library(name)?;
    Some(
        resolve(&Choice::Path(entry.path), None, &mut |_| ControlFlow::Continue(()))
            .expect("a libnccl"),
    )
}

/// What a user would be told of a preset; `None` without the library.
fn told(
    preset: &str,
    name: &str,
    newer: fn(&Image) -> Option<Fetched>,
) -> Option<Vec<ExplainFinding>> {
    let library = Arc::new(found(name)?);
    let preset = presets::find(preset).expect("a preset");
    let topology = Topology::parse(preset.text, Path::new(preset.name)).expect("a topology");
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(library.path.clone(), topology, model).expect("this program");
    through_this_program(&mut spec);
    let asked =
        Asked { sizes: vec![8, 1 << 20, 1 << 30], collectives: vec![Collective::AllReduce] };
    let side = Side { spec, library, notes: Vec::new() };
    let question = Question { side, vs: None, asked, try_more: true, newer };
    let mut asker = Asker::default();
    let outcome = asker.ask(&question.side, &question.asked).expect("it answers");
    let prediction = bare(&question.side, &outcome);
    let mut all = findings::findings(&question.side, &prediction);
    fill(&mut all, &mut asker, &question, &prediction, &|_| {}).expect("all were tried");
    Some(all)
}

fn settings(all: &[ExplainFinding], code: Code) -> Vec<&str> {
    let one = all.iter().find(|one| one.finding.code == code).expect("it is found");
    one.tried.iter().map(|tried| tried.settings.as_str()).collect()
}

#[test]
fn a_newer_nccl_is_tried_where_the_search_found_nothing() {
    let newest = |_: &Image| {
        let found = found(NEWEST)?;
        Some(Fetched { found, spelling: "pip:2.32.3+cu12".into() })
    };
    if library(NEWEST).is_none() {
        return;
    }
    let Some(all) = told("rtxpro6000x8", "2.27.7-cu12", newest) else { return };
    let one = all.iter().find(|one| one.finding.code == Code::NoChannelsFound);
    let tried = one.and_then(|one| one.tried.last()).expect("it was tried");
    assert_eq!(tried.settings, "NCCL 2.32.3 (--nccl pip:2.32.3+cu12)");
    assert_eq!(tried.ring.as_deref(), Some("2 channels, 15/15 GB/s, SYS/PIX"));
    let cpus = settings(&all, Code::NoChannelsFound);
    let cpus = cpus.iter().find(|text| text.starts_with("NCCL_TOPO_FILE")).expect("tried as well");
    assert!(cpus.ends_with("(changes only NCCL's estimate and choice)"), "{cpus}");
}

/// There NVIDIA's driver has no peer access, so that NCCL_P2P_LEVEL adds nothing.
#[test]
fn what_comes_to_the_same_as_an_earlier_try_is_left_out() {
    let Some(all) = told("rtx4090x8", "2.27.7-cu12", |_| None) else { return };
    let tried = settings(&all, Code::FewChannels);
    assert!(tried.contains(&"NCCL_MIN_NCHANNELS=8"), "{tried:?}");
    assert!(!tried.iter().any(|text| text.contains("NCCL_P2P_LEVEL")), "{tried:?}");
}

#[test]
fn only_another_outcome_is_news() {
    let with = |rank| Prediction {
        rings: vec![RingOrder { channels: vec![0], ranks: vec![rank] }],
        ..Prediction::default()
    };
    let (before, shown) = (with(0), with(1));
    let is_news = |then: u32| is_news(&with(then), &before, [&shown].into_iter());
    assert_eq!([0, 1, 2].map(is_news), [false, false, true]);
}
