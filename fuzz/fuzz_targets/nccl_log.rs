//! NCCL's debug log, which holds whatever ranks and other programs wrote.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::nccl::log::collect;

fuzz_target!(|data: &[u8]| {
    let ranks = collect(data);
    // Every rank comes from a line of its own, at least.
    assert!(ranks.len() <= 1 + data.iter().filter(|byte| **byte == b'\n').count());
});
