//! `/proc/PID/maps` with hostile names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::process::maps::parse;

fuzz_target!(|data: &[u8]| {
    for mapping in parse(data) {
        assert!(mapping.start <= mapping.end);
        assert!(!mapping.path.contains(&b'\n'));
    }
});
