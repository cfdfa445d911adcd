//! `--nccl auto`: the places where a program of this shell would find its
//! libnccl, in the order in which they are asked. A place that the user named
//! for this tool (`NCCLDIAG_NCCL`) must work; the others are passed over with a
//! note when what they hold cannot be used.

use super::{Candidate, Choice, FindError, Found, LIBRARY};
use crate::nccl::cache::Cache;
use crate::nccl::image::Image;
use crate::nccl::progress::Progress;
use crate::nccl::python;
use crate::process;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file that may exist, and the place that led to it.
type Place = (PathBuf, String);

pub(super) fn resolve(
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<Found, FindError> {
    let environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(own) = environment("NCCLDIAG_NCCL") {
        let choice = Choice::parse(&own).map_err(FindError::Variable)?;
        if choice != Choice::Auto {
            let found = super::resolve(&choice, python, progress);
            let mut found = found.map_err(|error| FindError::FromVariable(Box::new(error)))?;
            found.how = format!("NCCLDIAG_NCCL={}", own.to_string_lossy());
            return Ok(found);
        }
    }
    let mut looked = vec!["NCCLDIAG_NCCL".to_owned()];
    let mut places = named(&environment, &mut looked);
    places.extend(packaged(python, &mut looked));
    places.extend(from_linker_cache(&mut looked));
    pick(places, looked, fetched())
}

/// The cache's entries as `--nccl` spells them. Only a hint: an unusable cache
/// has none.
fn fetched() -> Vec<String> {
    let entries = Cache::user().and_then(|cache| cache.list()).unwrap_or_default();
    entries
        .iter()
        .map(|entry| format!("pip:{}+{}", entry.wheel.version(), entry.wheel.cuda()))
        .collect()
}

/// What environment variables lead to.
fn named(environment: &dyn Fn(&str) -> Option<OsString>, looked: &mut Vec<String>) -> Vec<Place> {
    let mut places = Vec::new();
    looked.extend(["VLLM_NCCL_SO_PATH", "LD_LIBRARY_PATH", "CONDA_PREFIX"].map(String::from));
    if let Some(path) = environment("VLLM_NCCL_SO_PATH") {
        // A bare name would make the loader look elsewhere.
        let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
        places.push((path, "VLLM_NCCL_SO_PATH".into()));
    }
    for directory in absolute_parts(&environment("LD_LIBRARY_PATH").unwrap_or_default()) {
        places.push((directory.join(LIBRARY), "LD_LIBRARY_PATH".into()));
    }
    if let Some(prefix) = environment("CONDA_PREFIX") {
        let path = Path::new(&prefix).join("lib").join(LIBRARY);
        places.push((std::path::absolute(&path).unwrap_or(path), "CONDA_PREFIX".into()));
    }
    places
}

/// What the active Python's packages hold: virtual environment, conda, user.
fn packaged(python: Option<&Path>, looked: &mut Vec<String>) -> Vec<Place> {
    let python = python::interpreter(python);
    let directories = match python::package_directories(&python) {
        Ok(directories) => directories,
        Err(error) => {
            looked.push(format!("the packages of {} (not asked: {error})", python.display()));
            return Vec::new();
        }
    };
    looked.push(format!("the packages of {}", python.display()));
    let how = format!("a package of {}", python.display());
    let file = |directory: PathBuf| directory.join("nvidia/nccl/lib").join(LIBRARY);
    directories.into_iter().map(|directory| (file(directory), how.clone())).collect()
}

/// What `ldconfig -p` lists.
fn from_linker_cache(looked: &mut Vec<String>) -> Vec<Place> {
    looked.push("ldconfig -p".into());
    let ask = |program: &str| {
        process::output(Command::new(program).arg("-p"), Duration::from_secs(5), &process::NEVER)
            .ok()
    };
    // A user's PATH often lacks /sbin.
    let Some(answer) = ask("ldconfig").or_else(|| ask("/sbin/ldconfig")) else {
        return Vec::new();
    };
    listed(&answer.stdout).map(|path| (path, "ldconfig -p".into())).collect()
}

/// The paths in lines such as `libnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2`.
fn listed(answer: &[u8]) -> impl Iterator<Item = PathBuf> {
    answer.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.trim_ascii();
        let rest = line.strip_prefix(LIBRARY.as_bytes())?.strip_prefix(b" (")?;
        let arrow = memchr::memmem::find(rest, b") => ")?;
        let for_us = memchr::memmem::find(&rest[..arrow], b"x86-64").is_some();
        for_us.then(|| OsStr::from_bytes(&rest[arrow + 5..]).into())
    })
}

/// Takes the first place that holds a usable library.
fn pick(places: Vec<Place>, looked: Vec<String>, fetched: Vec<String>) -> Result<Found, FindError> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut found: Option<Found> = None;
    let mut others = Vec::new();
    for (path, how) in places {
        let Ok(real) = path.canonicalize() else { continue };
        if seen.contains(&real) {
            continue;
        }
        seen.push(real);
        match (Image::open(&path), &found) {
            (Ok(image), None) => {
                found = Some(Found { path, how, image, others: Vec::new(), lease: None });
            }
            (image, _) => {
                let version = image.map(|image| image.version).map_err(|e| e.to_string());
                others.push(Candidate { path, how, version });
            }
        }
    }
    match found {
        Some(found) => Ok(Found { others, ..found }),
        None if others.is_empty() => Err(FindError::NotFound { looked, fetched }),
        None => {
            let why = others.into_iter().filter_map(|other| other.version.err()).collect();
            Err(FindError::NoneUsable { why })
        }
    }
}

/// Splits a PATH-like variable; empty and relative parts are left out.
fn absolute_parts(value: &OsStr) -> Vec<PathBuf> {
    let parts = value.as_bytes().split(|byte| *byte == b':');
    parts.map(|part| PathBuf::from(OsStr::from_bytes(part))).filter(|p| p.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linker_cache_is_read() {
        let answer = b"2 libs found\n\tlibnccl.so.2 (libc6,x86-64) => /a b/libnccl.so.2\n\
            \tlibnccl.so.2 (libc6) => /lib32/libnccl.so.2\n\
            \tlibnccl.so (libc6,x86-64) => /x/libnccl.so\n";
        let found: Vec<PathBuf> = listed(answer).collect();
        assert_eq!(found, [Path::new("/a b/libnccl.so.2")]);
    }

    #[test]
    fn variables_are_asked_in_order() {
        let environment = |name: &str| match name {
            "VLLM_NCCL_SO_PATH" => Some(OsString::from("/v.so")),
            "LD_LIBRARY_PATH" => Some(OsString::from(":relative:/l1:/l2")),
            _ => None,
        };
        let places = named(&environment, &mut Vec::new());
        let paths: Vec<&Path> = places.iter().map(|(path, _)| path.as_path()).collect();
        let expected = ["/v.so", "/l1/libnccl.so.2", "/l2/libnccl.so.2"];
        assert_eq!(paths, expected.map(Path::new));
    }

    #[test]
    fn with_nothing_anywhere_both_ways_on_are_named() {
        let places = vec![(PathBuf::from("/nonexistent/libnccl.so.2"), "a test".to_owned())];
        let text = pick(places, vec!["a test".into()], vec![]).unwrap_err().to_string();
        assert!(text.contains("--nccl pip:2.27.7"), "{text}");
        assert!(text.contains("--nccl /path/to/libnccl.so.2"), "{text}");
        let text = pick(vec![], vec![], vec!["pip:2.18.3+cu12".into()]).unwrap_err().to_string();
        assert!(text.contains("--nccl pip:2.18.3+cu12"), "{text}");
    }

    #[test]
    fn what_cannot_be_used_is_passed_over_and_named() {
        let places = vec![(PathBuf::from("/proc/self/status"), "a test".to_owned())];
        let text = pick(places, Vec::new(), Vec::new()).unwrap_err().to_string();
        assert!(text.contains("/proc/self/status"), "{text}");
    }
}
