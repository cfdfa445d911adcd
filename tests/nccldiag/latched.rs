//! N, read from outside, against NCCL's own debug log; and the number of
//! settings that each library turns out to have.

use crate::harness::{Sandbox, Started, eventually, has_tools, library, main_library, versions};
use nccldiag::model::Latched;
use nccldiag::nccl::image::Image;
use nccldiag::nccl::xray::{ImageCache, LatchedSet, latched, loaded};
use std::collections::BTreeMap;
use std::path::Path;

/// How many cached integers each version has.
const COUNTS: [(&str, usize); 10] = [
    ("2.18.3", 86),
    ("2.21.5", 94),
    ("2.23.4", 106),
    ("2.26.5", 121),
    ("2.27.5", 136),
    ("2.28.9", 150),
    ("2.29.7", 174),
    ("2.30.7", 198),
    ("2.31.2", 218),
    ("2.32.3", 228),
];

/// Calls ncclGetUniqueId, then stays until its stdin is closed. NCCL's log goes
/// to the file that the second argument names.
const CALL: &str = "
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
buffer = ctypes.create_string_buffer(128)
library.ncclGetUniqueId(buffer)
os.rename(sys.argv[2] + '.part', sys.argv[2])
sys.stdin.read()
";

#[test]
fn every_cached_setting_of_every_version_is_decoded() {
    for version in versions() {
        let Some(path) = library(&version) else { continue };
        let image = Image::open(&path).expect("an official library");
        assert!(image.symbols && image.undecoded.is_empty(), "{version}: {:?}", image.undecoded);
        for param in &image.params {
            assert!(param.variable.starts_with("NCCL_"), "{version}: {param:?}");
            assert!(param.default.is_some(), "{version}: no default for {}", param.variable);
        }
        let plain = version.split('+').next().unwrap_or(&version);
        if let Some((_, count)) = COUNTS.iter().find(|(name, _)| *name == plain) {
            assert_eq!(image.params.len(), *count, "{version}");
        }
    }
}

#[test]
fn latched_values_equal_the_log_of_nccl_itself() {
    if !has_tools(&["python3"]) {
        return;
    }
    for version in versions() {
        let Some(path) = library(&version) else { continue };
        let (log, set) = call(&path, &distinctive(&path));
        let from_outside = values(&set);
        let said = said_by_nccl(&log);
        assert!(said.len() >= 2, "NCCL {version} logs what it read:\n{log}");
        assert!(said.contains_key("NCCL_GDRCOPY_ENABLE"), "NCCL {version}:\n{log}");
        assert_eq!(said, from_outside, "NCCL {version}");
    }
}

#[test]
fn latched_values_equal_the_log_for_texts_that_are_no_plain_number() {
    let Some(path) = main_library() else { return };
    if !has_tools(&["python3"]) {
        return;
    }
    for (text, number) in [("8M", 8), ("0x100", 256), ("010", 8), ("abc", 0), (" -2x", -2)] {
        let (log, set) = call(&path, &[("NCCL_GDRCOPY_ENABLE".into(), text.into())]);
        assert_eq!(said_by_nccl(&log)["NCCL_GDRCOPY_ENABLE"], number, "{text:?}:\n{log}");
        assert_eq!(set.get("NCCL_GDRCOPY_ENABLE"), Latched::Value(number), "{text:?}");
    }
}

/// Every cached integer of the library with a number of its own, large enough
/// to mean nothing where 0, 1 or 2 would switch something.
fn distinctive(path: &Path) -> Vec<(String, String)> {
    let image = Image::open(path).expect("an official library");
    let number = |(i, param): (usize, &std::sync::Arc<nccldiag::nccl::image::Param>)| {
        (param.variable.clone(), (70_000 + i).to_string())
    };
    image.params.iter().enumerate().map(number).collect()
}

/// Lets a child call NCCL with these variables: its log, and N from outside.
fn call(path: &Path, variables: &[(String, String)]) -> (String, LatchedSet) {
    let sandbox = Sandbox::new();
    let log = sandbox.path().join("log");
    let mut command = sandbox.prepared("python3");
    command.args(["-c", CALL]).arg(path).arg(&log);
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "ENV");
    command.env("NCCL_DEBUG_FILE", sandbox.path().join("log.part"));
    command.env("NCCL_SOCKET_IFNAME", "lo").env("HOME", sandbox.path());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(std::process::Stdio::piped());
    let child = Started::new(&mut command);
    eventually("log of the call", || log.exists().then_some(()));
    let libraries = loaded(child.pid(), &ImageCache::new()).expect("a child of ours");
    assert_eq!(libraries.len(), 1);
    let set = latched(child.pid(), &libraries[0]).expect("a child of ours");
    (std::fs::read_to_string(&log).expect("the log is text"), set)
}

fn values(set: &LatchedSet) -> BTreeMap<String, i64> {
    let read = set.iter().filter_map(|(param, latched)| match latched {
        Latched::Value(number) => Some((param.variable.clone(), *number)),
        Latched::NotRead => None,
        other => panic!("{}: {other:?}", param.variable),
    });
    read.collect()
}

/// `NCCL_X set by environment to N.` lines, without those about text settings.
fn said_by_nccl(log: &str) -> BTreeMap<String, i64> {
    let said = log.lines().filter_map(|line| {
        let (before, after) = line.split_once(" set by environment to ")?;
        let name = before.rsplit(' ').next()?;
        Some((name.to_owned(), after.strip_suffix('.')?.parse().ok()?))
    });
    said.collect()
}
