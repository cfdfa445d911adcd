//! Two answers side by side.

use super::{answer, ask, asking, finding};
use crate::harness::{Sandbox, finish, library, main_library};
use nccldiag::model::ChoiceDifference;
use std::ffi::OsString;

#[test]
fn a_damaged_bridge_shows_in_a_comparison() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let whole = include_str!("../../../matrix/topologies/a100x2-bridge.xml");
    let damaged = whole.replacen("count=\"12\"", "count=\"1\"", 1);
    assert_ne!(whole, damaged);
    let damaged = sandbox.file("damaged.xml", damaged);
    let args: Vec<OsString> =
        ["--topology", "a100x2-bridge", "--format", "json", "--vs-topology"].map(Into::into).into();
    let ended = finish(&mut asking(&sandbox, &library, args.iter().chain([&damaged.into()])));
    let result = answer(&ended);
    let differences = result.differences.expect("two sides");
    let channels = differences.facts.iter().find(|one| one.what == "channels");
    let channels = channels.expect("that is what the damage costs");
    assert_eq!((&*channels.this, &*channels.other), ("24", "2"));
    let slower = differences.choices.last().expect("choices differ");
    assert!(slower.time_ratio.expect("estimates")[1] > 5.0, "{slower:?}");
    let args = ["--format", "json", "--topology"].map(OsString::from);
    let only = finish(&mut asking(
        &sandbox,
        &library,
        args.iter().chain([&sandbox.path().join("damaged.xml").into()]),
    ));
    assert!(finding(&answer(&only), "ND0208").finding.message.contains("NVLinks"));
}

#[test]
fn two_settings_and_two_versions_are_compared() {
    let Some(library) = main_library() else { return };
    let result =
        ask(&library, &["--topology", "h100x8", "-e", "NCCL_ALGO=Ring", "--vs", "NCCL_ALGO="]);
    let differences = result.differences.expect("two sides");
    let other = |one: &ChoiceDifference| (one.other.algo.clone(), one.other.proto.clone());
    let nvls = (Some("NVLS".into()), Some("Simple".into()));
    assert!(differences.choices.iter().any(|one| other(one) == nvls));
    assert!(differences.choices.iter().all(|one| one.from >= 1 << 20), "small ones are alike");
    assert!(result.vs.expect("the other side").settings.is_empty());
    let same = ask(&library, &["--topology", "h100x8", "--vs", ""]);
    let none = same.differences.expect("two sides");
    assert!(none.choices.is_empty() && none.facts.is_empty(), "{none:?}");
    let Some(newest) = self::library("2.32.3+cu12") else { return };
    let newest = newest.to_str().expect("a plain path");
    let result = ask(&library, &["--topology", "h100x8", "--vs-nccl", newest]);
    assert_eq!(result.vs.expect("the other side").nccl.version, "2.32.3");
    assert!(!result.differences.expect("two sides").choices.is_empty());
}
