//! Does the virtual node tell the truth? Its choices against known values, and
//! its log against that of a physical machine. All need the corpus and the
//! wheels, and say so when they are not there.

use super::models::Model;
use super::node::{Mode, Node, NodeSpec};
use super::testing::{corpus, library, spec, topology};
use crate::nccl::collective::Collective;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `(bytes, "RING LL 0..23")` for each choice in a log.
fn choices(log: &str) -> Vec<(u64, String)> {
    let one = |line: &str| {
        let (_, rest) = line.split_once("AllReduce: ")?;
        let (bytes, rest) = rest.split_once(" Bytes -> Algo ")?;
        let (algo, rest) = rest.split_once(" proto ")?;
        let (proto, rest) = rest.split_once(" channel{Lo..Hi}={")?;
        let (channels, _) = rest.split_once('}')?;
        Some((bytes.parse().ok()?, format!("{algo} {proto} {channels}")))
    };
    log.lines().filter_map(one).collect()
}

/// What NCCL chooses for these sizes.
fn chosen(spec: &NodeSpec, sizes: &[u64]) -> Vec<String> {
    let mut node = Node::start(spec).unwrap_or_else(|error| panic!("{error}"));
    node.init().unwrap_or_else(|error| panic!("{error}"));
    node.enqueue(Collective::AllReduce, sizes).unwrap_or_else(|error| panic!("{error}"));
    let log = node.logs().swap_remove(0);
    let all = choices(&log);
    assert_eq!(all.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), sizes, "{log}");
    all.into_iter().map(|(_, choice)| choice).collect()
}

#[test]
fn known_choices_of_2_32_3_on_h100() {
    let Some(library) = library("2.32.3-cu12") else { return };
    let sizes = [8, 64 * KIB, MIB, 4 * MIB, 16 * MIB, GIB];
    for (variables, expected) in [
        (
            &[][..],
            [
                "RING LL",
                "RING LL",
                "RING LL 0..23",
                "NVLS SIMPLE 0..15",
                "NVLS SIMPLE 0..15",
                "NVLS SIMPLE 0..15",
            ],
        ),
        (
            &[("NCCL_ALGO", "Ring")][..],
            ["RING LL", "RING LL", "RING LL 0..23", "RING LL", "RING LL128", "RING SIMPLE 0..23"],
        ),
        (&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")][..], ["RING LL"; 6]),
        (&[("NCCL_MAX_NCHANNELS", "4")][..], ["RING LL", "RING LL", "RING LL 0..3", "", "", ""]),
    ] {
        let Some(spec) = spec(&library, "handmade-h100-nvswitch.xml", variables) else { return };
        let found = chosen(&spec, &sizes);
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{variables:?}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_tree_changes_protocols_and_threads_change_blocks() {
    let Some(library) = library("2.32.3-cu12") else { return };
    let h100 = "handmade-h100-nvswitch.xml";
    let Some(tree) = spec(&library, h100, &[("NCCL_ALGO", "Tree")]) else { return };
    let found = chosen(&tree, &[8, 16 * MIB, GIB]);
    for (found, expected) in found.iter().zip(["TREE LL ", "TREE LL128", "TREE SIMPLE"]) {
        assert!(found.starts_with(expected), "{found}, expected {expected}");
    }
    for (threads, block) in [("256", "288x1x1"), ("512", "544x1x1")] {
        let variables = [("NCCL_ALGO", "Ring"), ("NCCL_NTHREADS", threads)];
        let Some(spec) = spec(&library, h100, &variables) else { return };
        let mut node = Node::start(&spec).expect("a node");
        node.init().expect("a communicator");
        let launches = node.enqueue(Collective::AllReduce, &[GIB]).expect("an all-reduce");
        assert!(launches.iter().all(|launch| launch.block == block), "{launches:?}");
    }
}

#[test]
fn a_setting_that_nccl_refuses_is_ncclinvalidusage() {
    let Some(library) = library("2.32.3-cu12") else { return };
    let variables = [("NCCL_ALGO", "bogus")];
    let Some(spec) = spec(&library, "handmade-h100-nvswitch.xml", &variables) else { return };
    let mut node = Node::start(&spec).expect("a node");
    let error = node.init().expect_err("no such algorithm").to_string();
    assert!(error.contains("ncclInvalidUsage (5)"), "{error}");
}

#[test]
fn known_choices_on_rtx_pro_6000() {
    let rtx = "handmade-rtxpro6000-2socket.xml";
    for (name, sizes) in [("2.32.3-cu12", [256 * KIB, MIB]), ("2.27.7-cu12", [8, 8 * KIB])] {
        let Some(library) = library(name) else { continue };
        let Some(spec) = spec(&library, rtx, &[]) else { return };
        let found = chosen(&spec, &sizes);
        assert!(found[0].starts_with("RING LL "), "{name}: {found:?}");
        assert!(found[1].starts_with("RING SIMPLE "), "{name}: {found:?}");
    }
    let Some(library) = library("2.32.3-cu12") else { return };
    for (variables, transport) in
        [(&[][..], "via SHM/direct"), (&[("NCCL_P2P_LEVEL", "SYS")][..], "via P2P/CUMEM")]
    {
        let Some(mut spec) = spec(&library, rtx, variables) else { return };
        spec.subsystems = "INIT,P2P,SHM".into();
        let mut node = Node::start(&spec).expect("a node");
        node.init().expect("a communicator");
        node.enqueue(Collective::AllReduce, &[MIB]).expect("an all-reduce");
        let log = node.logs().concat();
        assert!(log.contains(transport), "{transport}: {log}");
    }
}

/// What owners of two-socket machines with eight such cards published.
#[test]
fn the_two_socket_pathology_is_reproduced() {
    let Some(library) = library("2.28.9-cu12") else { return };
    let Some(spec) = spec(&library, "handmade-rtxpro6000-2socket.xml", &[]) else { return };
    let mut node = Node::start(&spec).expect("a node");
    node.init().expect("a communicator");
    let log = node.logs().swap_remove(0);
    assert!(
        log.contains("Pattern 4, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/SYS"),
        "{log}"
    );
    assert!(log.contains(" 2 coll channels"), "{log}");
}

#[test]
fn simulated_times_are_the_known_ones() {
    for (name, large) in [
        ("2.23.4-cu12", 1031.633),
        ("2.26.5-cu12", 1031.633),
        ("2.27.5-cu12", 1031.633),
        ("2.27.7-cu12", 1031.633),
        ("2.28.9-cu12", 1011.895),
        ("2.28.9-cu13", 1011.895),
        ("2.32.3-cu12", 1011.895),
        ("2.32.3-cu13", 1011.895),
    ] {
        let Some(library) = library(name) else { continue };
        let Some(spec) = spec(&library, "handmade-h100-nvswitch.xml", &[]) else { return };
        let mut node = Node::start(&spec).expect("a node");
        node.init().expect("a communicator");
        let times =
            node.simulate(Collective::AllReduce, &[KIB, MIB, 256 * MIB]).expect("estimates");
        let expected = [15.013, 28.014, large];
        for (time, expected) in times.iter().zip(expected) {
            assert!((time.time_us - expected).abs() < 0.001, "{name}: {times:?}");
        }
        assert_eq!(times.len(), 3);
    }
}

/// What a line says about the machine and about choices, without host, process
/// and rank of the line, and without addresses; `None` for all other lines.
fn fact(line: &str) -> Option<String> {
    let (_, text) = line.split_once(" NCCL INFO ")?;
    let kinds = [
        "Pattern ",
        " 0 :",
        "=== System",
        "+ PCI",
        "+ NVL",
        "CPU/",
        "GPU/",
        "Channel ",
        "Trees ",
        "threadThresholds",
        "Algorithm ",
        "Protocol ",
        "Max NThreads",
        "AllReduce ",
        "AllGather ",
        "ReduceScatter ",
        "Broadcast ",
        "Reduce ",
        "AllReduce: ",
    ];
    let trimmed = text.trim();
    let numbered = trimmed.split_once(" : ").is_some_and(|(n, _)| n.trim().parse::<u32>().is_ok());
    let counts = trimmed.contains(" coll channels, ");
    let known =
        numbered || counts || kinds.iter().any(|kind| trimmed.starts_with(kind.trim_start()));
    let noise = trimmed.contains("opCount") || trimmed.contains("NIC/");
    (known && !noise).then(|| trimmed.to_owned())
}

/// The facts of a log, sorted (ranks write at the same time), without repeats
/// of one choice (the real run repeats each size).
fn facts(log: &str) -> Vec<String> {
    let mut facts: Vec<String> = log.lines().filter_map(fact).collect();
    facts.sort();
    facts.dedup();
    facts
}

/// Two A100 with an NVLink bridge, NCCL 2.27.7: a log that a real machine
/// wrote, and the topology that it dumped.
#[test]
fn a_physical_machine_logged_the_same() {
    let Some(library) = library("2.27.7-cu12") else { return };
    let Some(real) = corpus("nccl-logs/a100x2-2.27.7.log") else { return };
    let real = facts(&String::from_utf8_lossy(&std::fs::read(real).expect("readable")));
    let Some(mut spec) = spec(&library, "a100x2-pcie.xml", &[]) else {
        return;
    };
    spec.mode = Mode::OneProcess; // as nccl-tests ran
    spec.driver = Some(13000); // as the log says
    let mut node = Node::start(&spec).expect("a node");
    node.init().expect("a communicator");
    let sizes: Vec<u64> = (23..=33).map(|power| 1 << power).collect();
    node.enqueue(Collective::AllReduce, &sizes).expect("all-reduces");
    let own = facts(&node.logs().concat());
    let missing: Vec<_> = real.iter().filter(|fact| !own.contains(fact)).collect();
    let extra: Vec<_> = own.iter().filter(|fact| !real.contains(fact)).collect();
    println!("{} facts agree", real.len() - missing.len());
    assert!(real.len() > 100, "{real:?}");
    assert!(
        missing.is_empty() && extra.is_empty(),
        "real only: {missing:#?}\nvirtual only: {extra:#?}"
    );
}

/// The same machine with a bridge of which one link is left in one direction.
#[test]
fn a_damaged_bridge_costs_channels() {
    let Some(library) = library("2.27.7-cu12") else { return };
    let Some(mut spec) = spec(&library, "a100x2-pcie.xml", &[]) else { return };
    let text = spec.topology.text.replacen("count=\"12\"", "count=\"1\"", 1);
    spec.topology = super::topology::Topology::parse(&text, &spec.topology.origin).expect("valid");
    let mut node = Node::start(&spec).expect("a node");
    node.init().expect("a communicator");
    let log = node.logs().swap_remove(0);
    assert!(log.contains(" 2 coll channels"), "{log}");
}

#[test]
fn a_model_that_contradicts_the_topology_is_refused() {
    let Some(topology) = topology("handmade-h100-nvswitch.xml") else { return };
    assert_eq!(topology.model(None).expect("it fits").key, "h100");
    let error = topology.model(Some("a100")).expect_err("sm 90 is no A100").to_string();
    assert!(error.contains("compute capability"), "{error}");
    assert!(Model::named("h100").is_ok());
}
