//! What nvidia-smi and lscpu print, changed at will. What is accepted has become a
//! topology that NCCL can read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::virtual_node::topology::Topology;
use std::path::Path;

fuzz_target!(|text: &str| {
    for gpu in [None, Some("h100"), Some("a100-pcie")] {
        if let Ok((topology, model)) = Topology::from_texts(text, Path::new("fuzzed"), gpu) {
            assert!(topology.gpus.iter().all(|gpu| gpu.sm == Some(model.sm())));
            assert!(topology.text.starts_with("<system version=\"1\">"));
        }
    }
});
