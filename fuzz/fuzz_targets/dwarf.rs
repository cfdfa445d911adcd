//! The debug information of a hostile library. A useful seed is a small library of
//! the source in src/nccl/xray/dwarf/tests.rs, made with `cc -g -shared`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::nccl::xray::comm::has_layout;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

fuzz_target!(|data: &[u8]| {
    let file = memfd_create(c"fuzzed", MFdFlags::MFD_CLOEXEC).expect("a file in memory");
    let file = File::from(file);
    file.write_all_at(data, 0).expect("room for it");
    let _ = has_layout(&file);
});
