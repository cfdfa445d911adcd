//! What NCCL makes of a value, read from a communicator on the virtual node.

use crate::harness::{Sandbox, finish, has_tools, library, main_library, versions};
use nccldiag::model::{Code, Effect, EnvCheck, InForce, Latched, Observation, Outcome, Provenance};
use std::path::Path;

/// The observations of one short run with these arguments.
fn run(library: &Path, path: &str, more: &[&str]) -> EnvCheck {
    let sandbox = Sandbox::new();
    let mut command = sandbox.env_check(["--format", "json", "--path", path, "--nccl"]);
    let result = finish(command.arg(library).args(more)).exits(0).result();
    sandbox.assert_nothing_left();
    result
}

fn only(result: &EnvCheck) -> &Observation {
    let all: Vec<&Observation> = result.paths.iter().flat_map(|p| &p.observations).collect();
    let [one] = all[..] else { panic!("one observation: {result:?}") };
    one
}

fn known(o: &Observation) -> (String, Option<Outcome>) {
    match &o.effect {
        Some(Effect::Known { in_force, outcome }) => (in_force.to_string(), *outcome),
        other => panic!("no effect of {}: {other:?}", o.variable),
    }
}

fn message(result: &EnvCheck, code: Code) -> Option<&str> {
    result.findings.iter().find(|f| f.code == code).map(|f| f.message.as_str())
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|n| n.parse().ok()).expect("a version such as 2.27.7")
}

#[test]
fn a_name_that_nccl_does_not_know_is_refused_or_passed_over() {
    for version in versions() {
        let Some(library) = library(&version) else { continue };
        let result = run(&library, "nohup", &["-e", "NCCL_ALGO=bogus"]);
        let o = only(&result);
        if minor(&version) >= 24 {
            let why = message(&result, Code::RefusedByNccl).expect("ND0122");
            assert!(why.contains("NCCL_ALGO=bogus") && why.contains("Unrecognized"), "{why}");
            assert!(matches!(o.effect, Some(Effect::Unreadable { .. })), "{version}: {o:?}");
            assert_eq!(message(&result, Code::NcclCallFailed), None, "{version}");
        } else {
            let (in_force, outcome) = known(o);
            assert_eq!(outcome, Some(Outcome::Adjusted), "{version}");
            assert!(in_force.contains("Ring"), "{version}: {in_force}");
            assert!(message(&result, Code::AdjustedByNccl).is_some(), "{version}");
        }
    }
}

/// Variable and value, what is in force, how that compares, and a version from
/// which this holds.
const VALUES: [(&str, &str, Outcome, u32); 13] = [
    ("NCCL_NTHREADS=100", "512", Outcome::Adjusted, 18),
    ("NCCL_NTHREADS=256", "256", Outcome::AsSet, 18),
    ("NCCL_LL128_NTHREADS=128", "160", Outcome::Adjusted, 18),
    ("NCCL_MIN_NCHANNELS=2", "4", Outcome::AsSet, 18),
    ("NCCL_MAX_NCHANNELS=3", "3", Outcome::AsSet, 18),
    ("NCCL_LL_BUFFSIZE=65536", "65536", Outcome::AsSet, 18),
    ("NCCL_LL128_BUFFSIZE=1228800", "1228800", Outcome::AsSet, 18),
    ("NCCL_MIN_CTAS=6", "6", Outcome::AsSet, 18),
    ("NCCL_MAX_CTAS=3", "3", Outcome::AsSet, 18),
    ("NCCL_ALGO=^tree", "Ring", Outcome::AsSet, 18),
    ("NCCL_PROTO=^LL,LL128", "Simple", Outcome::AsSet, 18),
    ("NCCL_ALGO=allreduce:tree;broadcast:ring", "Tree", Outcome::AsSet, 24),
    ("NCCL_ALGO=ring,nvls", "Ring", Outcome::AsSet, 18),
];

#[test]
fn the_effect_of_a_value_is_what_nccl_makes_of_it() {
    for version in versions() {
        let Some(library) = library(&version) else { continue };
        for (given, in_force, outcome, since) in VALUES {
            if minor(&version) < since {
                continue;
            }
            let result = run(&library, "nohup", &["-e", given]);
            let expected = (in_force.to_owned(), Some(outcome));
            assert_eq!(known(only(&result)), expected, "{version} {given}");
            let told = message(&result, Code::AdjustedByNccl);
            assert_eq!(told.is_some(), outcome == Outcome::Adjusted, "{version} {given}: {told:?}");
        }
    }
}

/// The two GPUs of the virtual node have no NVLS: NCCL then has nothing, or (in
/// 2.21 and 2.23, measured) Ring.
#[test]
fn an_algorithm_that_the_gpus_cannot_do_leaves_nothing() {
    for version in ["2.18.3", "2.23.4", "2.27.7", "2.32.3"] {
        let Some(library) = library(&format!("{version}+cu12")) else { continue };
        let result = run(&library, "nohup", &["-e", "NCCL_ALGO=NVLS"]);
        let (left, fix) = match version {
            "2.23.4" => ("Ring", "NCCL before 2.24 passes over names"),
            _ => ("nothing", "refuses every all-reduce"),
        };
        assert_eq!(known(only(&result)), (left.into(), Some(Outcome::Adjusted)), "{version}");
        let found = result.findings.iter().find(|f| f.code == Code::AdjustedByNccl);
        let found = found.unwrap_or_else(|| panic!("{version}: {:?}", result.findings));
        assert!(found.message.ends_with(&format!("works with {left}")), "{version}: {found:?}");
        assert!(found.fix.contains(fix), "{version}: {found:?}");
    }
}

#[test]
fn a_number_that_is_cut_shows_as_cut() {
    let Some(library) = main_library() else { return };
    let result = run(&library, "nohup", &["-e", "NCCL_BUFFSIZE=8M"]);
    assert_eq!(known(only(&result)), ("8".into(), Some(Outcome::Adjusted)));
    assert!(message(&result, Code::ParsedDifferently).is_some());
    assert_eq!(message(&result, Code::AdjustedByNccl), None, "ND0110 says it");
}

#[test]
fn light_makes_no_communicator() {
    let Some(library) = main_library() else { return };
    let result = run(&library, "fork-exec,py-target-late", &["--light"]);
    assert_eq!(result.effect_source.provenance, Provenance::None);
    for o in result.paths.iter().flat_map(|path| &path.observations) {
        assert!(["NCCL_GDRCOPY_ENABLE", "NCCL_SOCKET_IFNAME"].contains(&o.variable.as_str()));
        assert_eq!(o.effect, None);
    }
    let given = run(&library, "nohup", &["--light", "-e", "NCCL_BUFFSIZE=1048576"]);
    assert_eq!((&only(&given).latched, &only(&given).effect), (&Latched::NotRead, &None));
    assert!(message(&given, Code::NotRead).is_some());
    assert_eq!(message(&given, Code::EffectNotChecked), None, "it was asked for");
}

/// Such a library runs on the virtual node, but nobody knows where it keeps
/// what.
#[test]
fn without_debug_information_n_is_seen_and_the_effect_is_not() {
    let Some(library) = main_library().filter(|_| has_tools(&["strip"])) else { return };
    let sandbox = Sandbox::new();
    let stripped = sandbox.path().join("libnccl.so.2");
    let mut strip = std::process::Command::new("strip");
    finish(strip.arg("-g").arg("-o").arg(&stripped).arg(&library)).exits(0);
    let result = run(&stripped, "nohup", &["-e", "NCCL_BUFFSIZE=1048576"]);
    let o = only(&result);
    assert_eq!((&o.read, &o.latched), (&o.expected, &Latched::Value(1 << 20)));
    assert!(matches!(o.effect, Some(Effect::Unreadable { .. })), "{o:?}");
    let why = message(&result, Code::EffectNotChecked).expect("ND0123");
    assert!(why.contains("debug information"), "{why}");
}

/// NCCL opens its topology at init, and opening a pipe waits for a writer.
#[test]
fn a_setting_that_makes_nccl_wait_for_ever_costs_only_its_effect() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let pipe = sandbox.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("make a pipe");
    let mut command = sandbox.env_check(["--format", "json", "--timeout", "8", "--path"]);
    command.args(["nohup,py-spawn,fork-only", "-e", "NCCL_BUFFSIZE=1048576", "-e"]);
    command.arg(format!("NCCL_TOPO_FILE={}", pipe.display())).arg("--nccl").arg(&library);
    let result = finish(&mut command).exits(0).result();
    for o in result.paths.iter().flat_map(|path| &path.observations) {
        assert_eq!(o.live, o.expected, "{o:?}");
        if o.variable == "NCCL_BUFFSIZE" {
            let Some(Effect::Unreadable { unreadable }) = &o.effect else { panic!("{o:?}") };
            assert!(unreadable.to_string().contains("had not ended after 4 s"), "{unreadable}");
        } else {
            assert_eq!(o.read, o.expected, "{o:?}");
        }
    }
    let why = message(&result, Code::NcclCallFailed).expect("ND0117");
    assert!(why.contains("had not ended"), "{why}");
    sandbox.assert_nothing_left();
}

/// Where the run's folder cannot be read the probe describes a node itself.
#[test]
fn a_probe_out_of_reach_makes_a_node_of_its_own() {
    if !crate::harness::is_root() || !has_tools(&["setpriv"]) {
        return;
    }
    let Some(copy) = crate::harness::OpenCopy::new() else { return };
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared(copy.program());
    command.args(["env-check", "--format", "json", "--nccl"]).arg(copy.library());
    command.args(["--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--bounding-set=-all", "--inh-caps=-all", "{probe}"]);
    let result = finish(&mut command).exits(0).result();
    let all = &result.paths[0].observations;
    let [algorithm, .., channels, _, _, _] = &all[..] else { panic!("{result:?}") };
    assert_eq!(known(algorithm), ("Ring".into(), Some(Outcome::AsSet)));
    assert_eq!(known(channels), ("10".into(), Some(Outcome::AsSet)));
    let Some(Effect::Known { in_force: InForce::Names(names), .. }) = &all[1].effect else {
        panic!("{all:?}")
    };
    assert_eq!(names, &["LL"]);
}

#[test]
fn every_format_says_where_the_effect_comes_from() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    for (format, words) in [
        ("table", "effect: virtual node (2 x NVIDIA A100 80GB PCIe, predicted"),
        ("markdown", "effect: virtual node (2 x NVIDIA A100 80GB PCIe, predicted"),
        ("json", "\"provenance\": \"virtual\""),
        ("csv", ",as_set,virtual\n"),
    ] {
        let mut command = sandbox.env_check(["--path", "nohup", "--format", format, "--nccl"]);
        let text = finish(command.arg(&library)).exits(0).out();
        assert!(text.contains(words), "{format}: {text}");
    }
}
