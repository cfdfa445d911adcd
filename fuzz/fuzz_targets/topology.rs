//! A topology in XML. What is accepted is as NCCL can read it, and stays the same
//! when it is read again. Useful seeds are matrix/topologies:
//! `cargo +nightly fuzz run topology fuzz/corpus/topology matrix/topologies`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::virtual_node::topology::Topology;
use std::path::Path;

fuzz_target!(|text: &str| {
    let Ok(topology) = Topology::parse(text, Path::new("fuzzed.xml")) else { return };
    assert!((1..=64).contains(&topology.gpus.len()));
    assert!(!topology.text.contains("<?") && !topology.text.contains("<!"));
    let again = Topology::parse(&topology.text, Path::new("fuzzed.xml")).expect("its own text");
    assert_eq!((again.gpus, again.text), (topology.gpus.clone(), topology.text.clone()));
    let _ = topology.model(None);
});
