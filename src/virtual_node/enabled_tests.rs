//! What `NCCL_ALGO` and `NCCL_PROTO` leave enabled: the table in the memory of
//! a rank against what NCCL logs of it, for every library of the cache.

use super::node::Node;
use super::testing::{rank_zero, spec};
use crate::model::Communicator;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::log::RankLog;
use crate::nccl::testing::libraries;
use crate::nccl::xray::{ImageCache, LayoutCache, communicators, loaded};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

type Setting = &'static [(&'static str, &'static str)];

/// For all versions; the second list has what 2.24 brought.
const SETTINGS: [Setting; 7] = [
    &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")],
    &[("NCCL_ALGO", "^Tree")],
    &[("NCCL_ALGO", "Tree,Ring")],
    &[("NCCL_PROTO", "Simple")],
    &[("NCCL_PROTO", "^LL128")],
    &[("NCCL_PROTO", "LL128")],
    &[("NCCL_ALGO", "^Ring"), ("NCCL_PROTO", "LL,Simple")],
];
const NEWER: [Setting; 4] = [
    &[("NCCL_ALGO", "allreduce:tree")],
    &[("NCCL_ALGO", "ring;allreduce:^ring,nvls")],
    &[("NCCL_ALGO", "allgather:ring;allreduce:nvls,ring"), ("NCCL_PROTO", "allreduce:^ll")],
    &[("NCCL_PROTO", "allgather:ll")],
];

/// What NCCL holds in the memory of rank 0.
fn in_memory(node: &Node) -> Communicator {
    let pid = node.pids()[0].cast_signed();
    let loaded = loaded(pid, &ImageCache::new()).expect("own child");
    let all = communicators(pid, &loaded[0], &LayoutCache::new(), Duration::ZERO);
    all.unwrap_or_else(|why| panic!("{why}")).found.pop().expect("one communicator")
}

type Pairs = BTreeSet<(String, String)>;

/// All that have tables.
const FUNCTIONS: [&str; 5] = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"];

fn enabled(memory: &Communicator, function: &str) -> Pairs {
    let on = memory.pairs(function).iter().filter(|pair| pair.enabled);
    on.map(|pair| (pair.algorithm.clone(), pair.protocol.clone())).collect()
}

/// The pairs that have a bandwidth in NCCL's cost table.
fn with_bandwidth(log: &RankLog, function: &str) -> Pairs {
    let rows = log.costs.iter().filter(|cost| cost.function == function && cost.bandwidth > 0.0);
    rows.map(|cost| (cost.algorithm.clone(), cost.protocol.to_owned())).collect()
}

/// The pairs that NCCL's matrix leaves, when it was printed.
fn in_matrix(log: &RankLog, function: &str) -> Option<Pairs> {
    let (_, protocols, algorithms) = log.enabled.iter().find(|row| row.0 == function)?;
    let pair = |algorithm: &String| {
        let algorithm = algorithm.clone();
        protocols.iter().map(move |protocol| (algorithm.clone(), protocol.clone()))
    };
    Some(algorithms.iter().flat_map(pair).collect())
}

/// Whether the matrix leaves LL128 of all-reduce to NCCL's own rule (2), which
/// asks for links that keep the order of writes, or has it as the user wants.
fn ll128_by_rule(log: &str, function: &str) -> bool {
    let (_, matrix) = log.split_once("Func/Proto/Algo Matrix").expect("it was printed");
    let row = matrix.lines().find(|line| line.trim_start().starts_with(&format!("{function} |")));
    let cells = row.and_then(|row| row.split('|').nth(1)).expect("a row of it");
    cells.split_ascii_whitespace().nth(1) == Some("2")
}

/// Makes a communicator with these variables; what memory and log say of it.
fn look(node: &mut Node, before: Setting, setting: Setting) -> (Communicator, RankLog, String) {
    let restore = before.iter().map(|(name, _)| (OsString::from(name), None));
    let change = setting.iter().map(|(name, value)| (name.into(), Some(value.into())));
    let change: Vec<_> = restore.chain(change).collect();
    node.set_variables(&change).unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    node.init().unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    let memory = in_memory(node);
    let text = node.logs_since_init().swap_remove(0);
    let log = rank_zero(&text);
    node.destroy().unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    (memory, log, text)
}

#[test]
fn memory_and_log_agree_on_what_is_enabled() {
    for library in libraries() {
        let version = Image::open(&library.path).expect("it was listed").version;
        for topology in ["handmade-h100-nvswitch", "handmade-rtxpro6000-2socket"] {
            let Some(mut spec) = spec(&library, &format!("{topology}.xml"), &[]) else { return };
            spec.ranks = 4;
            let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{error}"));
            let (memory, log, _) = look(&mut node, &[], &[]);
            let what = format!("{} {topology}", library.wheel);
            check_table(&what, version, &memory, &log);
            let possible = FUNCTIONS.map(|function| enabled(&memory, function));
            assert!(log.enabled.is_empty(), "{what}");
            let newer = if version.minor >= 24 { &NEWER[..] } else { &[] };
            let mut before: Setting = &[];
            for &setting in SETTINGS.iter().chain(newer) {
                let what = format!("{} {topology} {setting:?}", library.wheel);
                let (memory, log, text) = look(&mut node, before, setting);
                check_table(&what, version, &memory, &log);
                check_matrix(&what, version, &memory, &log, &text, &possible);
                before = setting;
            }
        }
    }
}

/// Up to 2.30 what is off has lost its bandwidth when the table is printed;
/// later it keeps it.
fn check_table(what: &str, version: NcclVersion, memory: &Communicator, log: &RankLog) {
    for function in FUNCTIONS {
        let (enabled, table) = (enabled(memory, function), with_bandwidth(log, function));
        let what = format!("{what} {function}: {enabled:?} {table:?}");
        if version.minor <= 30 {
            assert_eq!(enabled, table, "{what}");
        } else {
            assert!(enabled.is_subset(&table), "{what}");
        }
        assert!(!enabled.is_empty() || function != "AllReduce", "{what}");
    }
}

/// What is enabled is what the matrix leaves of what is possible.
fn check_matrix(
    what: &str,
    version: NcclVersion,
    memory: &Communicator,
    log: &RankLog,
    text: &str,
    possible: &[Pairs; 5],
) {
    assert_eq!(log.enabled.is_empty(), version.minor < 24, "{what}");
    for (function, possible) in FUNCTIONS.into_iter().zip(possible) {
        let Some(matrix) = in_matrix(log, function) else { continue };
        if matrix.is_empty() && version.minor >= 31 {
            // There the matrix shows nothing for functions that the list does
            // not name, and NCCL runs them all the same.
            assert!(!enabled(memory, function).is_empty(), "{what} {function}");
            continue;
        }
        let by_rule = ll128_by_rule(text, function);
        let on = |(algorithm, protocol): &(String, String)| {
            let twin = |other: &str| possible.contains(&(algorithm.clone(), other.to_owned()));
            twin(protocol) || protocol == "LL128" && !by_rule && twin("LL")
        };
        let expected: Pairs = matrix.into_iter().filter(on).collect();
        assert_eq!(enabled(memory, function), expected, "{what} {function}");
    }
}
