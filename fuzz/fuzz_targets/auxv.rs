//! `/proc/PID/auxv`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::process::auxv::parse;

fuzz_target!(|data: &[u8]| {
    let _ = parse(data);
});
