//! The parser on what real libraries log on the virtual node, against what
//! lies in the memory of the same ranks.

use super::*;
use crate::model::Communicator;
use crate::nccl::cache::Entry;
use crate::nccl::collective::Collective;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::xray::{ImageCache, LayoutCache, communicators, loaded};
use crate::virtual_node::node::{Node, NodeSpec};
use crate::virtual_node::testing::{some_libraries, through_this_program, topology};
use std::time::Duration;

const SIZES: [u64; 4] = [8, 1024, 1 << 20, 1 << 28];

/// A node of eight ranks after all sizes.
fn node(entry: &Entry, name: &str, variables: &[(&str, &str)]) -> Option<Node> {
    let topology = topology(&format!("{name}.xml"))?;
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(entry.path.clone(), topology, model).expect("this program");
    through_this_program(&mut spec);
    spec.variables.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
    let what = &entry.wheel;
    let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{what}: {error}"));
    node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
    node.enqueue(Collective::AllReduce, &SIZES).unwrap_or_else(|error| panic!("{what}: {error}"));
    Some(node)
}

fn libraries() -> Vec<(Entry, NcclVersion)> {
    let version = |entry: Entry| {
        let version = Image::open(&entry.path).expect("it was listed").version;
        (entry, version)
    };
    some_libraries().into_iter().map(version).collect()
}

/// What the memory of rank 0 says.
fn in_memory(node: &Node) -> Communicator {
    let pid = node.pids()[0].cast_signed();
    let loaded = loaded(pid, &ImageCache::new()).expect("own child");
    let all = communicators(pid, &loaded[0], &LayoutCache::new(), Duration::ZERO);
    all.unwrap_or_else(|why| panic!("{why}")).found.pop().expect("one communicator")
}

/// The ranks of a node, by rank; what was said before a rank was known is left
/// out.
fn ranks(node: &Node) -> Vec<RankLog> {
    let all = collect(node.logs().concat().as_bytes());
    let mut ranks: Vec<_> = all.into_iter().filter(|rank| rank.member.is_some()).collect();
    ranks.sort_by_key(|rank| rank.member.map(|member| member.rank));
    ranks
}

#[test]
fn eight_ranks_are_told_apart_and_complete() {
    for (entry, version) in libraries() {
        let Some(node) = node(&entry, "handmade-h100-nvswitch", &[]) else { return };
        let what = entry.wheel.to_string();
        let ranks = ranks(&node);
        assert_eq!(ranks.len(), 8, "{what}");
        for (rank, log) in (0..).zip(&ranks) {
            let member = log.member.expect("chosen for it");
            assert_eq!((member.rank, member.ranks, member.complete), (rank, 8, true), "{what}");
            assert!(log.graphs[0].channels > 0 && log.graphs[0].pattern == 4, "{what}");
            assert_eq!(log.graphs[0].paths.len(), log.graphs[0].channels as usize, "{what}");
            let counts = log.counts.expect("every rank says so");
            assert_eq!(log.rings.len(), counts.collective as usize, "{what}");
            assert!(log.transports.iter().all(|one| one.via.starts_with("P2P/")), "{what}");
            assert!(log.env.iter().any(|line| line.name == "NCCL_TOPO_FILE"), "{what}");
            assert_eq!(log.thresholds.len(), 8, "{what}");
        }
        let first = &ranks[0];
        let version_text = first.version.clone().expect("rank 0 says so");
        assert!(version_text.starts_with(&version.to_string()), "{what}: {version_text}");
        assert_eq!(first.channels.len(), first.rings.len(), "{what}");
        assert!(first.channels.iter().all(|order| order.len() == 8), "{what}");
        check_choices(&first.choices, version, &what);
    }
}

/// Nothing up to 2.19; numbers and times up to 2.23; then names and channels.
fn check_choices(choices: &[Choice], version: NcclVersion, what: &str) {
    if version.minor <= 19 {
        assert_eq!(choices, [], "{what}");
        return;
    }
    let sizes: Vec<_> = choices.iter().map(|choice| choice.bytes).collect();
    assert_eq!(sizes, SIZES, "{what}");
    for choice in choices {
        let expected = match choice.bytes {
            ..=1024 => Some(("Ring", "LL")),
            0x100_0000.. => Some(("NVLS", "Simple")),
            _ => None,
        };
        let chosen = (&*choice.algorithm, &*choice.protocol);
        assert!(expected.is_none_or(|expected| chosen == expected), "{what}: {choice:?}");
        assert_eq!(choice.collective.is_some(), version.minor >= 23, "{what}");
        assert_eq!(choice.channels.is_some(), version.minor >= 24, "{what}");
        let timed = version.minor <= 23 || version.minor == 31;
        assert_eq!(choice.time_us.is_some(), timed, "{what}: {choice:?}");
        assert_eq!(choice.cluster.is_some(), version.minor >= 31, "{what}");
    }
}

/// Two witnesses: what NCCL logs, and what lies in its memory.
#[test]
fn the_cost_table_and_the_memory_agree() {
    for (entry, version) in libraries() {
        for variables in [&[][..], &[("NCCL_ALGO", "Ring,Tree"), ("NCCL_PROTO", "LL,Simple")]] {
            let Some(node) = node(&entry, "handmade-h100-nvswitch", variables) else { return };
            let what = format!("{} {variables:?}", entry.wheel);
            let memory = in_memory(&node);
            let log = &ranks(&node)[0];
            let costs: Vec<_> =
                log.costs.iter().filter(|cost| cost.function == "AllReduce").collect();
            assert_eq!(costs.len(), memory.pairs("AllReduce").len(), "{what}");
            for (cost, seen) in costs.iter().zip(memory.pairs("AllReduce")) {
                let what = format!("{what}: {cost:?} {seen:?}");
                assert_eq!((&cost.algorithm, cost.protocol), (&seen.algorithm, &*seen.protocol));
                let bandwidth = f64::from(seen.bandwidth).max(0.0);
                assert!((cost.bandwidth - bandwidth).abs() < 0.051, "{what}");
                let latency = f64::from(seen.latency.expect("in all versions"));
                assert!((cost.latency - latency).abs() < 0.051, "{what}");
                if let Some(threads) = cost.max_threads {
                    assert_eq!(Some(threads), seen.max_threads, "{what}");
                }
            }
            check_enabled(log, &memory, version, &what);
        }
    }
}

/// Where NCCL prints its matrix, nothing else is enabled in memory.
fn check_enabled(log: &RankLog, memory: &Communicator, version: NcclVersion, what: &str) {
    let asked = log.env.iter().any(|line| line.name == "NCCL_ALGO");
    assert_eq!(!log.enabled.is_empty(), asked && version.minor >= 24, "{what}");
    let Some((_, protocols, algorithms)) = log.enabled.iter().find(|row| row.0 == "AllReduce")
    else {
        return;
    };
    let in_matrix = |choice: &crate::model::Pair| {
        protocols.contains(&choice.protocol) && algorithms.contains(&choice.algorithm)
    };
    for choice in memory.pairs("AllReduce") {
        let expected = in_matrix(choice) && choice.bandwidth > 0.0;
        assert_eq!(choice.enabled, expected, "{what}: {choice:?}");
    }
}

#[test]
fn what_nccl_does_not_take_is_seen() {
    for (entry, version) in libraries() {
        let variables = [("NCCL_MIN_NCHANNELS", "abc")];
        let Some(node) = node(&entry, "handmade-rtxpro6000-2socket", &variables) else { return };
        let what = entry.wheel.to_string();
        let log = &ranks(&node)[0];
        let text = |problem: &Problem| problem.text.clone();
        let problems: Vec<_> = log.problems.iter().map(text).collect();
        let refused = problems.iter().any(|text| text.starts_with("Invalid value abc"));
        let taken = log.env.iter().find(|line| line.name == "NCCL_MIN_NCHANNELS");
        let taken = taken.map(|line| &*line.value);
        // Older ones take it as 0 and say so.
        let expected = if version.minor >= 32 { (true, None) } else { (false, Some("0")) };
        assert_eq!((refused, taken), expected, "{what}: {problems:?}");
        // 2.21 and older find the way between two sockets good enough.
        let via = if version.minor >= 23 { "SHM/direct" } else { "P2P/IPC" };
        let all = |one: &Transport| one.via.starts_with(via);
        assert!(log.transports.iter().all(all), "{what}: {:?}", log.transports);
    }
}
