//! The exec block: nothing is lost and nothing is invented.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccldiag::process::environ::EnvBlock;

fuzz_target!(|data: &[u8]| {
    let Ok(block) = EnvBlock::parse(data) else { return };
    let kept: usize = block.entries().map(<[u8]>::len).sum();
    assert_eq!(kept, data.iter().filter(|byte| **byte != 0).count());
    for (name, _) in block.variables() {
        assert!(block.get(name).is_some());
        assert!(block.duplicates(name) >= 1);
    }
    let _ = block.looks_overwritten();
});
