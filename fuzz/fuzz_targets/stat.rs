//! `/proc/PID/stat`, whose name field the process chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::process::stat::parse;

fuzz_target!(|data: &[u8]| {
    let _ = parse(data);
});
