//! Named machines, asked of NCCL itself. All need a wheel in the cache, and say so
//! when there is none.

use super::*;
use crate::nccl::collective::Collective;
use crate::virtual_node::node::{Node, NodeSpec};
use crate::virtual_node::testing::library;
use crate::virtual_node::testing::{corpus, through_this_program};

const VERSIONS: [&str; 2] = ["2.27.7-cu12", "2.32.3-cu12"];

/// What all ranks log until one choice is made.
fn log(library: &Path, topology: &Topology, model: &Model) -> String {
    let mut spec =
        NodeSpec::new(library.into(), topology.clone(), model.clone()).expect("this program");
    through_this_program(&mut spec);
    let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{error}"));
    node.init().unwrap_or_else(|error| panic!("{error}"));
    let launches =
        node.enqueue(Collective::AllReduce, &[1 << 20]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(launches.len(), spec.ranks);
    node.logs().concat()
}

/// Every preset, and the texts of a real machine, as NCCL takes them: the GPUs
/// are all found, nothing is complained about, a choice is made.
#[test]
fn named_machines_run_without_a_warning() {
    let mut machines: Vec<(String, Vec<OsString>)> = presets::all()
        .iter()
        .map(|preset| (preset.name.to_owned(), vec![preset.name.into()]))
        .collect();
    let texts = ["nvidia_topo.log", "lscpu.log", "nvidia_smi_full.log"]
        .map(|name| corpus(&format!("host-rtxpro6000x8/{name}")).map(Into::into));
    if let [Some(topo), Some(lscpu), Some(query)] = texts {
        machines.push(("host-rtxpro6000x8".into(), vec![topo, lscpu, query]));
    }
    for version in VERSIONS {
        let Some(library) = library(version) else { continue };
        for (name, parts) in &machines {
            let (topology, model) =
                Topology::named(parts, None).unwrap_or_else(|error| panic!("{name}: {error}"));
            let ranks = topology.gpus.len();
            let log = log(&library.path, &topology, &model);
            // NCCL 2.32 warns so on every machine without network cards.
            let known = ["ibvwrap.cc", "rma_socket.cc"];
            let warnings: Vec<&str> = log
                .lines()
                .filter(|line| line.contains(" NCCL WARN "))
                .filter(|line| !known.iter().any(|file| line.contains(file)))
                .collect();
            assert!(warnings.is_empty(), "{version} {name}: {warnings:?}");
            assert!(log.contains(&format!("nranks {ranks}")), "{version} {name}");
        }
    }
}

/// The path types between GPUs, as the first rank prints them.
fn paths(log: &str, gpus: usize) -> Vec<String> {
    let lines = log.lines().filter_map(|line| line.split_once(" NCCL INFO GPU/"));
    let rows = lines.filter_map(|(_, line)| line.split_once(" :"));
    let types = |(_, cells): (&str, &str)| {
        let cells: Vec<&str> = cells.split_whitespace().collect();
        let to_gpus = cells.chunks(2).filter(|cell| cell[0].starts_with("GPU/"));
        let kinds = to_gpus.filter_map(|cell| cell[1].trim_end_matches(')').rsplit('/').next());
        kinds.collect::<Vec<_>>().join(" ")
    };
    rows.map(types).take(gpus).collect()
}

/// What `build` says about levels is what NCCL makes of them.
#[test]
fn levels_of_nvidia_smi_are_these_paths_of_nccl() {
    let text = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tCPU Affinity\tNUMA Affinity
GPU0\tX\tPIX\tPXB\tNODE\tSYS\tSYS\t0-31\t0
GPU1\tPIX\tX\tPXB\tNODE\tSYS\tSYS\t0-31\t0
GPU2\tPXB\tPXB\tX\tPHB\tSYS\tSYS\t0-31\t0
GPU3\tNODE\tNODE\tPHB\tX\tSYS\tSYS\t0-31\t0
GPU4\tSYS\tSYS\tSYS\tSYS\tX\tNV12\t32-63\t1
GPU5\tSYS\tSYS\tSYS\tSYS\tNV12\tX\t32-63\t1
Architecture: x86_64
Vendor ID: GenuineIntel
CPU family: 6
Model: 143
NUMA node0 CPU(s): 0-31
NUMA node1 CPU(s): 32-63
";
    let (topology, model) =
        Topology::from_texts(text, Path::new("test"), Some("a100-pcie")).expect("valid");
    for version in VERSIONS {
        let Some(library) = library(version) else { continue };
        let log = log(&library.path, &topology, &model);
        assert_eq!(
            paths(&log, 6),
            [
                "LOC PIX PXB PHB SYS SYS",
                "PIX LOC PXB PHB SYS SYS",
                "PXB PXB LOC PHB SYS SYS",
                "PHB PHB PHB LOC SYS SYS",
                "SYS SYS SYS SYS LOC NVL",
                "SYS SYS SYS SYS NVL LOC",
            ],
            "{version}"
        );
    }
}
