//! A test that cannot run here says so where `tests/run` counts it.

use std::io::Write;

/// Appends `SKIPPED <test>: <reason>` to the file that `NCCLDIAG_SKIP_LOG`
/// names and prints it. The caller returns.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {reason}", thread.name().unwrap_or("a test"));
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("NCCLDIAG_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // One write a line, so that tests side by side do not mix theirs.
        log.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .expect("the skip log can be written");
    }
}

/// Whether all these programs are in PATH; skips when one is not.
pub fn has_tools(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in names {
        if !std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
            skip(&format!("there is no {name} in PATH"));
            return false;
        }
    }
    true
}

/// Whether this is root; skips when it is not.
pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("it needs root");
    }
    root
}
