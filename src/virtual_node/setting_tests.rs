//! What the node does with what it is asked for: collectives and their sizes,
//! settings that share ranks, variables that would blind it, and settings that
//! bring NCCL down.

use super::node::{Node, NodeError, SUBSYSTEMS};
use super::testing::{all_wheels, library, rank_zero, some_libraries, spec, started, topology};
use crate::nccl::collective::Collective;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::log::{Choice, RankLog};
use crate::nccl::scope::{self, Scope};
use crate::nccl::testing::libraries;
use std::ffi::OsString;
use std::path::Path;

const H100: &str = "handmade-h100-nvswitch.xml";
const RTX: &str = "handmade-rtxpro6000-2socket.xml";
const SIZES: [u64; 5] = [8, 64 << 10, 1 << 20, 16 << 20, 1 << 30];

/// All that a setting can change: tables, graphs, rings, choices, estimates.
fn outcome(node: &mut Node) -> RankLog {
    let what = "a communicator works";
    node.enqueue(Collective::AllReduce, &SIZES).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut log = rank_zero(&node.logs_since_init()[0]);
    // Where and when it ran, and what is said once for a process.
    (log.pid, log.member, log.version) = (0, None, None);
    log.env.clear();
    log.problems.clear();
    log
}

/// In which parts two logs differ.
fn differences(one: &RankLog, other: &RankLog) -> Vec<&'static str> {
    let parts = [
        ("graphs", one.graphs == other.graphs),
        ("channels", one.channels == other.channels),
        ("rings", one.rings == other.rings && one.trees == other.trees),
        ("transports", one.transports == other.transports),
        ("thresholds", one.thresholds == other.thresholds),
        ("costs", one.costs == other.costs),
        ("enabled", one.enabled == other.enabled),
        ("choices", one.choices == other.choices),
        ("something else", one == other),
    ];
    parts.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// The settings that share ranks: each a list of variables.
fn settings(folder: &Path) -> Vec<Vec<(&'static str, String)>> {
    let damaged = topology(H100).expect("it was there").text.replace("count=\"18\"", "count=\"6\"");
    std::fs::write(folder.join("topology.xml"), damaged).expect("space for it");
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        vec![("NCCL_GRAPH_DUMP_FILE", file("graph.xml"))],
        vec![("NCCL_ALGO", "Ring".into())],
        vec![("NCCL_ALGO", "Tree".into()), ("NCCL_PROTO", "LL,Simple".into())],
        vec![("NCCL_PROTO", "^LL".into())],
        vec![("NCCL_THREAD_THRESHOLDS", "16 16 128 128 16 128".into())],
        vec![("NCCL_TOPO_FILE", file("topology.xml"))],
        vec![("NCCL_GRAPH_FILE", file("other.xml"))],
        vec![("NCCL_COLLNET_ENABLE", "1".into())],
        vec![],
    ]
}

/// The graphs that NCCL dumped, with other bandwidths.
fn other_graphs(folder: &Path) {
    let text = std::fs::read_to_string(folder.join("graph.xml")).expect("NCCL dumped its graphs");
    let other = text.replace("speedintra=\"", "speedintra=\"1");
    assert_ne!(other, text);
    std::fs::write(folder.join("other.xml"), other).expect("space for it");
}

#[test]
fn settings_that_share_ranks_come_out_as_in_fresh_ones() {
    let named = ["2.23.4-cu12", "2.27.7-cu12", "2.32.3-cu12"].into_iter().filter_map(library);
    let libraries = if all_wheels() { libraries() } else { named.collect() };
    for library in libraries {
        let name = library.wheel.to_string();
        let version = Image::open(&library.path).expect("it was listed").version;
        let Some(shared) = spec(&library, H100, &[]) else { return };
        let folder = tempfile::tempdir().expect("temp folder");
        let mut node = Node::start(&shared).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut before: Vec<(OsString, Option<OsString>)> = Vec::new();
        let mut different = Vec::new();
        for setting in settings(folder.path()) {
            let what = format!("{name} {setting:?}");
            assert!(
                setting.iter().all(|(name, _)| scope::of(name, version) == Scope::Communicator)
            );
            let change = setting.iter().map(|(name, value)| (name.into(), Some(value.into())));
            let change: Vec<_> = before.drain(..).chain(change).collect();
            node.set_variables(&change).unwrap_or_else(|error| panic!("{what}: {error}"));
            node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
            let together = outcome(&mut node);
            if setting.iter().any(|(name, _)| *name == "NCCL_GRAPH_DUMP_FILE") {
                other_graphs(folder.path());
            }
            node.destroy().unwrap_or_else(|error| panic!("{what}: {error}"));
            let variables: Vec<_> = setting.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let Some(fresh) = spec(&library, H100, &variables) else { return };
            let alone = outcome(&mut started(&fresh));
            assert_eq!(differences(&together, &alone), [""; 0], "{what}");
            before = setting.iter().map(|(name, _)| (name.into(), None)).collect();
            different.push((setting, together));
        }
        // The settings have an effect at all, and the last one, which has none,
        // brings back what was first.
        let (last, others) = different.split_last().expect("there are some");
        assert_eq!(differences(&others[0].1, &last.1), [""; 0], "{name}");
        for (setting, log) in &others[1..others.len() - 1] {
            let changed = differences(log, &last.1);
            println!("{name} {setting:?} changes {changed:?}");
            assert!(!changed.is_empty(), "{name}: {setting:?} has no effect");
        }
    }
}

#[test]
fn every_collective_runs_and_is_logged_with_a_known_size() {
    for library in some_libraries() {
        let version = Image::open(&library.path).expect("it was listed").version;
        let Some(spec) = spec(&library, H100, &[]) else { return };
        let mut node = started(&spec);
        let sizes = [1 << 10, 1 << 20, 256 << 20];
        for collective in Collective::ALL {
            let what = format!("{} {collective}", library.wheel);
            let before = rank_zero(&node.logs()[0]).choices.len();
            let done = node.enqueue(collective, &sizes);
            let launches = done.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(launches.len() >= sizes.len() * spec.ranks, "{what}: {launches:?}");
            let logged = rank_zero(&node.logs()[0]).choices.split_off(before);
            if version.minor <= 19 {
                continue; // it logs no choices
            }
            let known = |one: &Choice| one.collective.as_deref() == Some(collective.name());
            assert!(version.minor <= 22 || logged.iter().all(known), "{what}: {logged:?}");
            let logged: Vec<u64> = logged.into_iter().map(|choice| choice.bytes).collect();
            let expected = sizes.map(|bytes| collective.call(bytes, 8).logged(version));
            assert_eq!(logged, expected, "{what}");
        }
        for collective in Collective::ALL {
            let what = format!("{} {collective}", library.wheel);
            let before = rank_zero(&node.logs()[0]).choices.len();
            let times = node.simulate(collective, &sizes);
            if version < NcclVersion::new(2, 23, 4) {
                let error = times.expect_err("there are no estimates").to_string();
                assert!(error.contains("no ncclGroupSimulateEnd"), "{what}: {error}");
                continue;
            }
            let times = times.unwrap_or_else(|error| panic!("{what}: {error}"));
            let rising = times.is_sorted_by(|a, b| a.time_us < b.time_us);
            assert!(times.len() == sizes.len() && rising, "{what}: {times:?}");
            let logged = rank_zero(&node.logs()[0]).choices.len() - before;
            assert_eq!(logged, if version.minor == 23 { sizes.len() } else { 0 }, "{what}");
        }
    }
}

#[test]
fn a_size_that_has_no_equal_parts_becomes_the_next_larger_one() {
    let Some(library) = library("2.32.3-cu12") else { return };
    let Some(mut spec) = spec(&library, H100, &[]) else { return };
    spec.ranks = 3;
    let mut node = started(&spec);
    for collective in Collective::ALL {
        let before = rank_zero(&node.logs()[0]).choices.len();
        node.enqueue(collective, &[1, 1000]).unwrap_or_else(|error| panic!("{error}"));
        let logged = rank_zero(&node.logs()[0]).choices.split_off(before);
        let logged: Vec<u64> = logged.into_iter().map(|choice| choice.bytes).collect();
        let expected =
            [1, 1000].map(|bytes| collective.call(bytes, 3).logged(NcclVersion::new(2, 32, 3)));
        assert_eq!(logged, expected, "{collective}");
    }
}

#[test]
fn variables_that_would_blind_the_node_are_overridden_and_named() {
    for library in some_libraries() {
        let folder = tempfile::tempdir().expect("temp folder");
        let file = folder.path().join("log").display().to_string();
        let blinding = [
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_DEBUG_FILE", file.as_str()),
            ("NCCL_DEBUG_SUBSYS", "NET"),
            ("NCCL_DEBUG_TIMESTAMP_FORMAT", "x"),
        ];
        let Some(mut spec) = spec(&library, H100, &blinding) else { return };
        spec.ranks = 2;
        assert_eq!(spec.overridden(), blinding.map(|(name, _)| name));
        let mut node = started(&spec);
        let log = rank_zero(&node.logs()[0]);
        assert!(log.member.is_some_and(|member| member.complete), "{}", library.wheel);
        assert!(!log.graphs.is_empty() && !log.costs.is_empty(), "{}", library.wheel);
        assert!(!folder.path().join("log").exists());
        node.destroy().unwrap_or_else(|error| panic!("{error}"));
        let refused = node.set_variables(&[("NCCL_DEBUG".into(), None)]);
        assert!(matches!(refused, Err(NodeError::Log { .. })), "{refused:?}");
    }
}

/// What the default leaves out, connections, is there when it is asked for.
#[test]
fn the_node_logs_what_it_is_told_to() {
    let Some(library) = library("2.32.3-cu12") else { return };
    for (subsystems, expected) in [(SUBSYSTEMS, false), ("INIT,ENV,GRAPH,TUNING,COLL,SHM", true)] {
        let Some(mut spec) = spec(&library, RTX, &[]) else { return };
        spec.subsystems = subsystems.into();
        let mut node = started(&spec);
        node.enqueue(Collective::AllReduce, &[8]).unwrap_or_else(|error| panic!("{error}"));
        let connected = node.logs().concat().contains("via SHM/direct");
        assert!(connected || !expected, "{subsystems}");
    }
}

/// `NCCL_BUFFSIZE=8M` is eight bytes, and NCCL divides by an eighth of that.
#[test]
fn a_crash_of_nccl_is_told_from_other_ends_and_leaves_its_log() {
    let Some(library) = library("2.27.7-cu12") else { return };
    let variables = [("NCCL_BUFFSIZE", "8M"), ("NCCL_PROTO", "^LL128")];
    let Some(spec) = spec(&library, RTX, &variables) else { return };
    let mut node = started(&spec);
    let sizes: Vec<u64> = (3..=30).map(|power| 1 << power).collect();
    let error = node.enqueue(Collective::AllReduce, &sizes).expect_err("eight bytes are few");
    let crashed = matches!(error, NodeError::Crashed { step: "enqueue", signal: "SIGFPE", .. });
    assert!(crashed, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("SIGFPE during enqueue: NCCL itself crashed"), "{text}");
    let log = rank_zero(&node.logs()[0]);
    let taken = log.env.iter().find(|line| line.name == "NCCL_BUFFSIZE");
    assert_eq!(taken.map(|line| &*line.value), Some("8"));
    assert!(!log.choices.is_empty() && !log.costs.is_empty(), "{:?}", log.choices);
}

#[test]
fn what_nccl_refuses_carries_its_own_words() {
    for (name, variables, step, words) in [
        ("2.32.3-cu12", ("NCCL_ALGO", "bogus"), "communicator init", "Unrecognized element token"),
        ("2.27.7-cu12", ("NCCL_ALGO", "bogus"), "communicator init", "Unrecognized element token"),
        ("2.27.7-cu12", ("NCCL_ALGO", "NVLSTree"), "enqueue", "available for function AllReduce"),
        ("2.32.3-cu12", ("NCCL_ALGO", "NVLSTree"), "enqueue", "available for function AllReduce"),
    ] {
        let Some(library) = library(name) else { continue };
        let Some(spec) = spec(&library, H100, &[variables]) else { return };
        let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{error}"));
        let answer = node.init().and_then(|_| node.enqueue(Collective::AllReduce, &[1 << 20]));
        let error = answer.expect_err("NCCL refuses it");
        assert!(matches!(error, NodeError::Failed { step: at, .. } if at == step), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("ncclInvalidUsage (5)") && text.contains(words), "{name}: {text}");
        assert!(node.logs().concat().contains(words), "{name}");
    }
}
