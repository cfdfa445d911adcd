//! The reader on communicators that really live: on the virtual node.

use super::*;
use crate::model::{Activity, Communicator, Pair, Source};
use crate::nccl::cache::Entry;
use crate::nccl::collective::Collective;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::testing;
use crate::nccl::xray::{ImageCache, loaded};
use crate::virtual_node::node::{Mode, Node, NodeSpec};
use crate::virtual_node::testing::{through_this_program, topology};
use std::time::Instant;

/// One library for each way to find communicators, or all of them with
/// `NCCLDIAG_TEST_WHEELS=all`.
fn libraries() -> Vec<(Entry, NcclVersion)> {
    let version = |entry: Entry| {
        let version = Image::open(&entry.path).expect("it was listed").version;
        (entry, version)
    };
    let all: Vec<_> = testing::libraries().into_iter().map(version).collect();
    if std::env::var_os("NCCLDIAG_TEST_WHEELS").is_some_and(|value| value == "all") {
        return all;
    }
    // By what differs: no marks, marks, NCCL's list, the newest tables.
    let groups = [(0, 20), (21, 23), (24, 30), (31, u32::MAX)];
    let newest = |(from, to): (u32, u32)| {
        all.iter().rfind(|(_, version)| (from..=to).contains(&version.minor)).cloned()
    };
    groups.into_iter().filter_map(newest).collect()
}

fn spec(entry: &Entry, ranks: usize, variables: &[(&str, &str)]) -> Option<NodeSpec> {
    spec_on("handmade-h100-nvswitch.xml", entry, ranks, variables)
}

fn spec_on(
    machine: &str,
    entry: &Entry,
    ranks: usize,
    variables: &[(&str, &str)],
) -> Option<NodeSpec> {
    let topology = topology(machine)?;
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(entry.path.clone(), topology, model).expect("this program");
    spec.ranks = ranks;
    through_this_program(&mut spec);
    spec.variables.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
    Some(spec)
}

/// A node after init.
fn node(entry: &Entry, variables: &[(&str, &str)]) -> Option<Node> {
    let mut node = started(&spec(entry, 2, variables)?);
    node.init().unwrap_or_else(|error| panic!("{}: {error}", entry.wheel));
    Some(node)
}

fn started(spec: &NodeSpec) -> Node {
    Node::start(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.library.display()))
}

/// What one process of the node has.
fn look(pid: u32, layouts: &LayoutCache) -> Communicators {
    let pid = pid.cast_signed();
    let images = ImageCache::new();
    let start = Instant::now();
    let found = loaded(pid, &images).expect("own child");
    let located = start.elapsed();
    let start = Instant::now();
    let all = communicators(pid, &found[0], layouts, Duration::ZERO);
    let all = all.unwrap_or_else(|why| panic!("{why}"));
    println!("located in {located:.1?}, {:?} in {:.1?}", all.source, start.elapsed());
    all
}

fn only(all: Communicators, what: &str) -> Communicator {
    assert!(all.found.len() == 1 && all.notes.is_empty(), "{what}: {all:?}");
    all.found.into_iter().next().expect("one")
}

fn enabled(communicator: &Communicator) -> Vec<String> {
    let on = communicator.pairs("AllReduce").iter().filter(|choice| choice.enabled);
    on.map(|Pair { algorithm, protocol, .. }| format!("{algorithm}/{protocol}")).collect()
}

fn expected_source(version: NcclVersion) -> Source {
    match version.minor {
        ..=20 => Source::Shape,
        21..=23 => Source::Marks,
        _ => Source::List,
    }
}

#[test]
fn settings_show_in_the_communicator() {
    let variables = [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_PROTO", "LL"),
        ("NCCL_BUFFSIZE", "1048576"),
        ("NCCL_MIN_NCHANNELS", "3"),
        ("NCCL_MAX_NCHANNELS", "3"),
        ("NCCL_NTHREADS", "256"),
    ];
    for (entry, version) in libraries() {
        let Some(node) = node(&entry, &variables) else { return };
        let layouts = LayoutCache::new();
        let mut hashes = Vec::new();
        for (rank, pid) in (0..).zip(node.pids()) {
            let what = format!("{} rank {rank}", entry.wheel);
            let all = look(pid, &layouts);
            assert_eq!(all.source, expected_source(version), "{what}");
            let one = only(all, &what);
            assert_eq!((one.rank, one.ranks, one.cuda_device), (rank, 2, rank as i32), "{what}");
            assert_eq!((one.nodes, one.local_ranks, one.channels), (Some(1), Some(2), Some(3)));
            assert_eq!(one.buffers.map(|sizes| sizes.simple), Some(1 << 20), "{what}");
            assert_eq!(enabled(&one), ["Ring/LL"], "{what}");
            let ring = one.pairs("AllReduce").iter().find(|choice| choice.enabled).expect("one");
            assert_eq!(ring.max_threads, Some(256), "{what}");
            assert_eq!(one.activity, Activity::Idle, "{what}");
            hashes.push(one.hash);
        }
        assert!(hashes[0] == hashes[1] && hashes[0] != "0x0", "{}: {hashes:?}", entry.wheel);
    }
}

/// That NCCL may choose nothing is something else than that it has not decided
/// yet, though up to 2.30 no bandwidth is there in both cases.
#[test]
fn all_off_is_told_from_not_yet_decided() {
    let machine = "handmade-rtxpro6000-2socket.xml";
    for (entry, version) in libraries() {
        let Some(spec) = spec_on(machine, &entry, 2, &[("NCCL_ALGO", "NVLS")]) else { return };
        let what = entry.wheel.to_string();
        let mut node = started(&spec);
        node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
        let one = only(look(node.pids()[0], &LayoutCache::new()), &what);
        assert!(one.pairs("AllReduce").iter().any(|pair| pair.latency > Some(0.0)), "{what}");
        let refused = node.enqueue(Collective::AllReduce, &[8]);
        // Between 2.18.3 and 2.24 NCCL goes back to Ring.
        let goes_back = (19..24).contains(&version.minor);
        assert_eq!(enabled(&one).is_empty(), !goes_back, "{what}: {:?}", enabled(&one));
        assert_eq!(refused.is_err(), !goes_back, "{what}: {refused:?}");
    }
}

#[test]
fn without_settings_much_is_enabled_and_the_log_agrees() {
    for (entry, version) in libraries() {
        let Some(node) = node(&entry, &[]) else { return };
        let what = entry.wheel.to_string();
        let one = only(look(node.pids()[0], &LayoutCache::new()), &what);
        let on = enabled(&one);
        assert!(on.contains(&"Ring/Simple".to_owned()) && on.len() > 3, "{what}: {on:?}");
        let log = node.logs().swap_remove(0);
        assert_eq!(one.bus_id.as_deref(), Some("0000:1b:00.0"), "{what}");
        assert!(log.contains(&format!("comm {}", one.address)), "{what}");
        let logged = log.contains(&format!("commId {}", one.hash));
        assert_eq!(logged, version.minor >= 26, "{what}: {}", one.hash);
        let channels = format!("{} coll channels", one.channels.expect("it has some"));
        assert!(log.contains(&channels), "{what}: {channels}");
    }
}

#[test]
fn without_nccls_own_list_the_memory_is_searched() {
    for (entry, version) in libraries() {
        let Some(node) = node(&entry, &[("NCCL_RAS_ENABLE", "0")]) else { return };
        let all = look(node.pids()[1], &LayoutCache::new());
        let searched = if version.minor > 20 { Source::Marks } else { Source::Shape };
        assert_eq!(all.source, searched, "{}", entry.wheel);
        assert_eq!(only(all, "searched").rank, 1);
    }
}

#[test]
fn communicators_come_and_go_and_count() {
    for (entry, _) in libraries() {
        let Some(spec) = spec(&entry, 2, &[]) else { return };
        let layouts = LayoutCache::new();
        let what = entry.wheel.to_string();
        let mut node = started(&spec);
        let pid = node.pids()[0];
        assert_eq!(look(pid, &layouts).found, [], "{what}: before init");
        node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
        let before = only(look(pid, &layouts), &what);
        node.enqueue(Collective::AllReduce, &[1024; 3])
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let after = only(look(pid, &layouts), &what);
        assert_eq!((before.operations, after.operations), (Some(0), Some(3)), "{what}");
        node.destroy().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(look(pid, &layouts).found, [], "{what}: after destroy");
        let pid = pid.cast_signed();
        let loaded = loaded(pid, &ImageCache::new()).expect("own child");
        drop(node);
        let why = communicators(pid, &loaded[0], &layouts, Duration::ZERO).expect_err("gone");
        assert!(why.to_string().contains("no such process"), "{why}");
    }
}

#[test]
fn all_ranks_in_one_process_and_a_busy_one() {
    let Some((entry, _)) = libraries().pop() else { return };
    let Some(mut spec) = spec(&entry, 8, &[]) else { return };
    spec.mode = Mode::OneProcess;
    let mut node = started(&spec);
    node.init().unwrap_or_else(|error| panic!("{error}"));
    let pid = node.pids()[0].cast_signed();
    let loaded = loaded(pid, &ImageCache::new()).expect("own child");
    let layouts = LayoutCache::new();
    let pause = Duration::from_secs(3);
    let all = thread::scope(|scope| {
        let reader = scope.spawn(|| communicators(pid, &loaded[0], &layouts, pause));
        while !reader.is_finished() {
            node.enqueue(Collective::AllReduce, &[1024]).unwrap_or_else(|error| panic!("{error}"));
        }
        reader.join().expect("no panic").unwrap_or_else(|why| panic!("{why}"))
    });
    let mut ranks: Vec<_> = all.found.iter().map(|one| one.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..8).collect::<Vec<_>>(), "{:?}", all.notes);
    assert!(all.found.iter().all(|one| one.activity == Activity::Moving));
}

#[test]
fn a_stripped_library_says_why() {
    let Some((entry, _)) = libraries().pop() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stripped = folder.path().join("libnccl.so.2");
    let mut strip = std::process::Command::new("strip");
    let status = strip.arg("-o").arg(&stripped).arg(&entry.path).status();
    if !status.is_ok_and(|status| status.success()) {
        crate::testing::skipped("no strip on PATH");
        return;
    }
    let file = std::fs::File::open(&stripped).expect("just made");
    let why = CommLayout::from_file(&file, &stripped).expect_err("stripped").to_string();
    assert!(why.contains("it has no debug information (it was stripped)"), "{why}");
}
