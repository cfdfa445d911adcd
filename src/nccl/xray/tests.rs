use super::*;
use crate::model::Latched;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::testing;
use crate::testing::skipped;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Loads a libnccl, makes it read its settings, changes one afterwards, maps
/// the same file twice more, and stays until stdin closes.
const PROGRAM: &str = "
import ctypes, mmap, os, sys
library = ctypes.CDLL(sys.argv[1])
assert library.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
os.environ['NCCL_GDRCOPY_ENABLE'] = '300001'
file = open(sys.argv[1], 'rb')
data = mmap.mmap(file.fileno(), 1 << 20, prot=mmap.PROT_READ)
code = mmap.mmap(file.fileno(), 1 << 20, prot=mmap.PROT_READ | mmap.PROT_EXEC)
sys.stderr.write('ready\\n')
sys.stdin.read()
";

/// A process that has used a libnccl; it ends when this is dropped.
struct User(Child);

impl User {
    /// `None`, with a printed reason, when there is no Python.
    fn start(library: &Path) -> Option<Self> {
        Self::start_with(library, "")
    }

    fn start_with(library: &Path, no_cache: &str) -> Option<Self> {
        let started = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(library)
            .env("NCCL_GDRCOPY_ENABLE", "100001")
            .env("NCCL_SOCKET_IFNAME", "lo,c7")
            .env("NCCL_NO_CACHE", no_cache)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            skipped("no python3 on PATH");
            return None;
        };
        let (to, from) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let user = Self(child);
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|l| to.send(l))
        });
        let line = from.recv_timeout(Duration::from_secs(60)).expect("it starts within a minute");
        assert_eq!(line, "ready");
        Some(user)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

#[test]
fn what_nccl_latched_is_read_from_outside() {
    let images = ImageCache::new();
    for entry in testing::libraries() {
        let Some(user) = User::start(&entry.path) else { return };
        let found = loaded(user.pid(), &images).expect("own child");
        assert_eq!(found.len(), 1, "{}: {found:?}", entry.wheel);
        assert_eq!(found[0].path, entry.path);
        assert!(!found[0].deleted);
        let set = latched(user.pid(), &found[0]).expect("own child");
        let canary = set.get("NCCL_GDRCOPY_ENABLE");
        assert_eq!(canary, Latched::Value(100_001), "{}", entry.wheel);
        assert_eq!(set.get("NCCL_BUFFSIZE"), Latched::NotRead);
        assert_eq!(set.get("NCCL_SOCKET_IFNAME"), Latched::NotCached);
        assert_eq!(set.get("NCCL_SOCKET_IFNAMES"), Latched::NoSuchParameter);
        assert_eq!(set.iter().len(), set.image().params.len());
        println!("{}: NCCL_GDRCOPY_ENABLE={canary:?}", entry.wheel);
    }
}

#[test]
fn what_no_cache_names_is_told_from_what_was_never_read() {
    for entry in testing::libraries() {
        let image = Image::open(&entry.path).expect("it was listed");
        if image.version < NcclVersion::new(2, 29, 7) {
            continue;
        }
        let Some(user) = User::start_with(&entry.path, "ALL") else { return };
        let found = loaded(user.pid(), &ImageCache::new()).expect("own child");
        let set = latched(user.pid(), &found[0]).expect("own child");
        assert_eq!(set.get("NCCL_GDRCOPY_ENABLE"), Latched::NotCached, "{}", entry.wheel);
        assert_eq!(set.get("NCCL_BUFFSIZE"), Latched::NotRead, "{}", entry.wheel);
    }
}

#[test]
fn a_library_that_was_deleted_after_loading_is_still_read() {
    let Some(entry) = testing::libraries().into_iter().next_back() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let link = directory.path().join("libnccl.so.2");
    if let Err(error) = std::fs::hard_link(&entry.path, &link) {
        skipped(&format!("cannot link {}: {error}", entry.path.display()));
        return;
    }
    let Some(user) = User::start(&link) else { return };
    std::fs::remove_file(&link).expect("it was just made");
    let found = loaded(user.pid(), &ImageCache::new()).expect("own child");
    assert!(found.len() == 1 && found[0].deleted, "{found:?}");
    match (&found[0].image, nix::unistd::geteuid().is_root()) {
        (Ok(_), _) => {
            let set = latched(user.pid(), &found[0]).expect("own child");
            assert_eq!(set.get("NCCL_GDRCOPY_ENABLE"), Latched::Value(100_001));
        }
        // The kernel's own link to a mapped file needs a capability.
        (Err(why), false) => skipped(&format!("not root: {why}")),
        (Err(why), true) => panic!("{why}"),
    }
}

#[test]
fn a_process_without_nccl_has_none_and_a_missing_one_is_an_error() {
    let images = ImageCache::new();
    let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep exists");
    let found = loaded(child.id().cast_signed(), &images);
    child.kill().expect("own child");
    child.wait().expect("own child");
    assert!(found.expect("own child").is_empty());
    let why = loaded(i32::MAX, &images).unwrap_err();
    assert!(why.to_string().contains("no such process"), "{why}");
}

#[test]
fn one_file_is_read_once_for_many_processes_and_threads() {
    let Some(entry) = testing::libraries().into_iter().next() else { return };
    let Some(user) = User::start(&entry.path) else { return };
    let images = ImageCache::new();
    let all: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| loaded(user.pid(), &images).expect("own child")))
            .collect();
        readers.into_iter().flat_map(|reader| reader.join().expect("no panic")).collect()
    });
    let image = |loaded: &Loaded| std::sync::Arc::as_ptr(loaded.image.as_ref().expect("readable"));
    assert!(all.len() == 8 && all.iter().all(|one| image(one) == image(&all[0])));
}
