//! The libnccl files that `tests/run` has fetched into the user's cache.

use super::skip;
use std::path::PathBuf;

/// The version that a test uses when any will do.
const MAIN: &str = "2.27.7+cu12";

/// The libraries that this run is to use, from `NCCLDIAG_TEST_VERSIONS`.
pub fn versions() -> Vec<String> {
    let given = std::env::var("NCCLDIAG_TEST_VERSIONS").unwrap_or_else(|_| MAIN.into());
    let full = |word: &str| match word.contains('+') {
        true => word.to_owned(),
        false => format!("{word}+cu12"),
    };
    given.split([',', ' ']).filter(|word| !word.is_empty()).map(full).collect()
}

/// The file of one version, such as `2.21.5+cu12`; skips when it is not there.
pub fn library(version: &str) -> Option<PathBuf> {
    let path = cache()?.join(version.replace('+', "-")).join("libnccl.so.2");
    if path.is_file() {
        return Some(path);
    }
    skip(&format!("NCCL {version} is not in the cache (tests/run fetches it)"));
    None
}

/// The library that most tests use.
pub fn main_library() -> Option<PathBuf> {
    library(MAIN)
}

fn cache() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    if base.is_none() {
        skip("neither XDG_CACHE_HOME nor HOME is set, so there is no cache");
    }
    Some(base?.join("nccldiag/nccl"))
}
