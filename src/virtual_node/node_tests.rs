//! The virtual node against real libraries: every wheel in the user's cache.

use super::*;
use crate::nccl::cache::Entry;
use crate::nccl::testing;
use crate::virtual_node::testing::{through_this_program, topology};

const SIZES: [u64; 7] = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30];

/// A node of this library and topology that runs in this test program.
fn spec(library: &Entry, topology: Topology, mode: Mode) -> NodeSpec {
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(library.path.clone(), topology, model).expect("this program");
    spec.mode = mode;
    through_this_program(&mut spec);
    spec
}

#[test]
fn every_library_runs_eight_ranks_on_every_model() {
    for library in testing::libraries() {
        for name in
            ["handmade-h100-nvswitch", "handmade-a100-nvswitch", "handmade-rtxpro6000-2socket"]
        {
            for mode in [Mode::Processes, Mode::OneProcess] {
                let Some(topology) = topology(&format!("{name}.xml")) else { return };
                run(&library, name, spec(&library, topology, mode));
            }
        }
    }
}

/// Runs every size and prints how long it took.
fn run(library: &Entry, name: &str, spec: NodeSpec) {
    let what = format!("{} {name} {:?}", library.wheel, spec.mode);
    let start = Instant::now();
    let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{what}: {error}"));
    let started = start.elapsed();
    let init = node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = Instant::now();
    let one = node.enqueue(&SIZES[..1]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = first.elapsed();
    let all = node.enqueue(&SIZES).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(one.len(), spec.ranks, "{what}: one launch a rank");
    assert!(all.len() >= SIZES.len() * spec.ranks, "{what}: {all:?}");
    assert!(
        all.iter()
            .all(|launch| launch.kernel.contains("AllReduce") || launch.kernel.starts_with("_Z")),
        "{what}"
    );
    node.destroy().unwrap_or_else(|error| panic!("{what}: {error}"));
    println!("{what}: start {started:.2?}, init {init:.2?}, first all-reduce {first:.2?}");
}
