//! Waiting for something with a deadline, and finding processes that belong to
//! a sandbox.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Far above anything expected: a loaded machine must not fail a test.
const DEADLINE: Duration = Duration::from_secs(60);

/// Asks until there is an answer; panics when none has come in time.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < DEADLINE, "no {what} within {} s", DEADLINE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The processes whose command line or exec block names this folder, in plain
/// text or in hexadecimal digits; zombies have neither.
pub fn mentioning(folder: &Path) -> Vec<(i32, String)> {
    let plain = folder.to_str().expect("test folders have plain names");
    let hex: String = plain.bytes().map(|byte| format!("{byte:02x}")).collect();
    let own = std::process::id().cast_signed();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("list /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let block = String::from_utf8_lossy(&read("environ")).into_owned();
        if pid != own && [&line, &block].iter().any(|t| t.contains(plain) || t.contains(&hex)) {
            found.push((pid, line));
        }
    }
    found
}
