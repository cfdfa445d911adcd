//! Known answers. What other measurements of the same libraries gave (choices,
//! estimates, the answer for slow two-socket machines) is in `truth_tests`; the
//! tables here were measured with this program itself, and keep it from
//! changing its mind unnoticed.

use super::testing::{library, rank_zero, spec, started};
use crate::nccl::collective::Collective;

const H100: &str = "handmade-h100-nvswitch.xml";
const RTX: &str = "handmade-rtxpro6000-2socket.xml";
const A100: &str = "a100x2-pcie.xml";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One machine and setting, and what some versions answer: for each size
/// algorithm and protocol, blocks, threads a block, and NCCL's estimate in
/// microseconds.
struct Known {
    versions: &'static [&'static [&'static str]],
    topology: &'static str,
    variables: &'static [(&'static str, &'static str)],
    sizes: [u64; 4],
    answers: [(&'static str, u32, u32, f64); 4],
}

const OLD: &[&str] = &["2.23.4-cu12"];
const MIDDLE: &[&str] = &["2.27.5-cu12", "2.27.7-cu12"];
const NEW: &[&str] = &["2.32.3-cu12"];
const SIZES: [u64; 4] = [8, MIB, 16 * MIB, GIB];
/// Where the change of protocol lies on a machine without NVLink.
const SMALLER: [u64; 4] = [8, 8 * KIB, 256 * KIB, MIB];

const RING: &[(&str, &str)] = &[("NCCL_ALGO", "Ring")];
const TREE: &[(&str, &str)] = &[("NCCL_ALGO", "Tree")];
const RING_LL: &[(&str, &str)] = &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")];
/// Up to 2.27 sixteen NVLS channels are more than these four and win.
const FOUR_CHANNELS: &[(&str, &str)] = &[("NCCL_MAX_NCHANNELS", "4")];

const KNOWN: &[Known] = &[
    Known {
        versions: &[OLD],
        topology: H100,
        variables: &[],
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 22, 512, 28.014),
            ("NVLS/Simple", 16, 640, 87.915),
            ("NVLS/Simple", 16, 640, 4051.532),
        ],
    },
    Known {
        versions: &[MIDDLE],
        topology: H100,
        variables: &[],
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("NVLS/Simple", 16, 640, 87.915),
            ("NVLS/Simple", 16, 640, 4051.532),
        ],
    },
    Known {
        versions: &[NEW],
        topology: H100,
        variables: &[],
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("NVLS/Simple", 16, 640, 86.681),
            ("NVLS/Simple", 16, 640, 3972.580),
        ],
    },
    Known {
        versions: &[OLD],
        topology: H100,
        variables: RING,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 22, 512, 28.014),
            ("Ring/LL128", 24, 640, 129.248),
            ("Ring/Simple", 24, 544, 5275.578),
        ],
    },
    Known {
        versions: &[MIDDLE],
        topology: H100,
        variables: RING,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("Ring/LL128", 24, 640, 129.248),
            ("Ring/Simple", 24, 544, 5275.578),
        ],
    },
    Known {
        versions: &[NEW],
        topology: H100,
        variables: RING,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("Ring/LL128", 24, 640, 129.248),
            ("Ring/Simple", 24, 544, 5275.579),
        ],
    },
    Known {
        versions: &[OLD, MIDDLE, NEW],
        topology: H100,
        variables: TREE,
        sizes: SIZES,
        answers: [
            ("Tree/LL", 1, 640, 15.200),
            ("Tree/LL128", 22, 640, 45.069),
            ("Tree/LL128", 24, 640, 176.231),
            ("Tree/Simple", 24, 640, 6548.348),
        ],
    },
    Known {
        versions: &[OLD],
        topology: H100,
        variables: RING_LL,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 22, 512, 28.014),
            ("Ring/LL", 24, 512, 223.228),
            ("Ring/LL", 24, 512, 13341.581),
        ],
    },
    Known {
        versions: &[MIDDLE],
        topology: H100,
        variables: RING_LL,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("Ring/LL", 24, 512, 223.228),
            ("Ring/LL", 24, 512, 13341.581),
        ],
    },
    Known {
        versions: &[NEW],
        topology: H100,
        variables: RING_LL,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 24, 512, 28.014),
            ("Ring/LL", 24, 512, 223.228),
            ("Ring/LL", 24, 512, 13341.583),
        ],
    },
    Known {
        versions: &[OLD, MIDDLE],
        topology: H100,
        variables: FOUR_CHANNELS,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 16, 512, 28.014),
            ("NVLS/Simple", 16, 640, 87.915),
            ("NVLS/Simple", 16, 640, 4051.532),
        ],
    },
    Known {
        versions: &[NEW],
        topology: H100,
        variables: FOUR_CHANNELS,
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 15.000),
            ("Ring/LL", 4, 512, 28.014),
            ("NVLS/Simple", 16, 640, 86.681),
            ("NVLS/Simple", 16, 640, 3972.580),
        ],
    },
    Known {
        versions: &[OLD, NEW],
        topology: RTX,
        variables: &[],
        sizes: SMALLER,
        answers: [
            ("Ring/LL", 1, 128, 20.602),
            ("Ring/LL", 1, 128, 22.511),
            ("Ring/LL", 2, 512, 81.767),
            ("Ring/Simple", 2, 544, 210.534),
        ],
    },
    Known {
        versions: &[MIDDLE],
        topology: RTX,
        variables: &[],
        sizes: SMALLER,
        answers: [
            ("Ring/LL", 1, 128, 20.880),
            ("Ring/Simple", 1, 160, 231.560),
            ("Ring/Simple", 2, 288, 4675.720),
            ("Ring/Simple", 2, 288, 18438.277),
        ],
    },
    Known {
        versions: &[OLD, MIDDLE, NEW],
        topology: A100,
        variables: &[],
        sizes: SIZES,
        answers: [
            ("Ring/LL", 1, 128, 7.800),
            ("Ring/Simple", 22, 544, 19.569),
            ("Ring/Simple", 24, 544, 85.105),
            ("Ring/Simple", 24, 544, 4489.124),
        ],
    },
];

#[test]
fn known_answers_have_not_changed() {
    for known in KNOWN {
        for name in known.versions.iter().copied().flatten() {
            let Some(library) = library(name) else { continue };
            let Some(spec) = spec(&library, known.topology, known.variables) else { return };
            let what = format!("{name} {} {:?}", known.topology, known.variables);
            let mut node = started(&spec);
            let launches = node.enqueue(Collective::AllReduce, &known.sizes);
            let launches = launches.unwrap_or_else(|error| panic!("{what}: {error}"));
            let log = rank_zero(&node.logs()[0]);
            let times = node.simulate(Collective::AllReduce, &known.sizes);
            let times = times.unwrap_or_else(|error| panic!("{what}: {error}"));
            let blocks = launches.iter().filter(|launch| launch.device == 0);
            let blocks: Vec<_> = blocks.map(|one| (one.grid.clone(), one.block.clone())).collect();
            assert_eq!((log.choices.len(), blocks.len(), times.len()), (4, 4, 4), "{what}");
            for (at, (choice, grid, block, time_us)) in known.answers.iter().enumerate() {
                let what = format!("{what}: {} bytes", known.sizes[at]);
                let found = format!("{}/{}", log.choices[at].algorithm, log.choices[at].protocol);
                assert_eq!(&found, choice, "{what}");
                let shape = (format!("{grid}x1x1"), format!("{block}x1x1"));
                assert_eq!(blocks[at], shape, "{what}");
                let off = (times[at].time_us - time_us).abs();
                assert!(off < 0.001 + time_us * 1e-6, "{what}: {:?}", times[at]);
            }
        }
    }
}

/// Two sockets and no switch: which versions take the way between the sockets
/// for slow. 2.23 does not, 2.32 only for the tree.
#[test]
fn the_slow_way_between_sockets_and_its_versions() {
    for (name, ring, tree) in [
        ("2.23.4-cu12", (1, 15.0, "SYS/PIX"), (1, 15.0, "SYS/PIX")),
        ("2.27.5-cu12", (1, 0.1, "SYS/SYS"), (1, 0.1, "SYS/SYS")),
        ("2.27.7-cu12", (1, 0.1, "SYS/SYS"), (1, 0.1, "SYS/SYS")),
        ("2.28.9-cu12", (1, 0.1, "SYS/SYS"), (1, 0.1, "SYS/SYS")),
        ("2.32.3-cu12", (2, 15.0, "SYS/PIX"), (1, 0.1, "SYS/SYS")),
    ] {
        let Some(library) = library(name) else { continue };
        let Some(spec) = spec(&library, RTX, &[]) else { return };
        let log = rank_zero(&started(&spec).logs()[0]);
        for (pattern, (channels, bandwidth, kind)) in [(4, ring), (1, tree)] {
            let graph = log.graphs.iter().find(|graph| graph.pattern == pattern);
            let graph = graph.unwrap_or_else(|| panic!("{name}: no pattern {pattern}"));
            let found = (graph.channels, graph.bandwidth_intra, graph.bandwidth_inter);
            assert_eq!(found, (channels, bandwidth, bandwidth), "{name}: pattern {pattern}");
            let kinds = format!("{}/{}", graph.type_intra, graph.type_inter);
            assert_eq!(kinds, kind, "{name}: pattern {pattern}");
        }
        let counts = log.counts.expect("every rank says so");
        assert_eq!(counts.collective, 2, "{name}");
    }
}
