//! What tests of several modules need.

use std::io::Write;

/// Says, past the test harness, which would hide it, that a test cannot run
/// here, and why; also in the file that `NCCLDIAG_SKIP_LOG` names, where
/// `tests/run` counts it. The caller returns.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("NCCLDIAG_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
        log.and_then(|mut file| file.write_all(line.as_bytes())).expect("the log can be written");
    }
}
