use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use zip::write::{SimpleFileOptions, ZipWriter};

const MEMBER: &str = "nvidia/nccl/lib/libnccl.so.2";
const RECORD: &str = "nvidia_nccl_cu12-2.27.7.dist-info/RECORD";
const LIBRARY_BYTES: &[u8] = b"stands in for a library";

fn record_of(bytes: &[u8]) -> String {
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
    format!("a,sha256=x,1\r\n{MEMBER},sha256={hash},{}\r\n{RECORD},,\r\n", bytes.len())
}

fn zip_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        zip.start_file(*name, SimpleFileOptions::default()).expect("a new member");
        zip.write_all(bytes).expect("memory");
    }
    zip.finish().expect("memory").into_inner()
}

fn good_wheel() -> Vec<u8> {
    let record = record_of(LIBRARY_BYTES);
    zip_of(&[("../evil", b"x"), (MEMBER, LIBRARY_BYTES), (RECORD, record.as_bytes())])
}

/// A directory with a Python that only knows how to deliver one wheel.
struct Fake {
    directory: tempfile::TempDir,
}

impl Fake {
    fn new(body: &str) -> Self {
        let fake = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        std::fs::write(fake.path("wheel"), good_wheel()).expect("space for it");
        // Written by a child: a file that this process holds open for writing
        // while another thread forks could not be executed.
        let script =
            format!("#!/bin/sh\ncd {:?}\necho run >> runs\n{body}\n", fake.directory.path());
        let status = Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$0\"; chmod +x \"$0\""])
            .arg(fake.path("python"))
            .arg(script)
            .status();
        assert!(status.expect("sh exists").success());
        fake
    }

    /// Answers `pip download ... -d DIRECTORY ...` as pip would.
    fn pip() -> Self {
        Self::new(
            "while [ \"$1\" != -d ]; do shift; done\n\
             echo 'Downloading nvidia.whl (0.1 MB)'\ncp wheel \"$2/nvidia.whl\"",
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cache(&self) -> Cache {
        Cache::at(self.path("nccldiag").join("nccl"))
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.path("runs")).map_or(0, |text| text.lines().count())
    }

    fn fetch(&self) -> Result<(Entry, Lease), WheelError> {
        fetch(
            &wheel(),
            &self.cache(),
            Some(&self.path("python")),
            &mut crate::nccl::progress::silent,
        )
    }
}

fn wheel() -> Wheel {
    "2.27.7".parse().expect("a wheel")
}

#[test]
fn the_grammar_is_strict_and_names_round_trip() {
    for (text, requirement, entry) in [
        ("2.27.7", "nvidia-nccl-cu12==2.27.7", "2.27.7-cu12"),
        ("2.27.7+cu12", "nvidia-nccl-cu12==2.27.7", "2.27.7-cu12"),
        ("2.28.9+cu13", "nvidia-nccl-cu13==2.28.9", "2.28.9-cu13"),
        ("2.26.2.post1", "nvidia-nccl-cu12==2.26.2.post1", "2.26.2.post1-cu12"),
    ] {
        let wheel: Wheel = text.parse().expect(text);
        assert_eq!(
            (wheel.requirement().as_str(), wheel.to_string().as_str()),
            (requirement, entry)
        );
        assert_eq!(Wheel::from_entry_name(entry), Some(wheel));
    }
    for text in [
        "",
        "2",
        "2.27",
        "2.27.7.1",
        "../../x",
        "2.27.7/..",
        "2.27.7 --index-url x",
        "02.27.7",
        "2.27.7.post",
        "2.27.7.post-1",
        "2.27.7+cu11",
        "2.27.7-cu12",
        "2.27.7\n",
        "2.27.999999",
    ] {
        assert!(text.parse::<Wheel>().is_err(), "{text:?}");
    }
    assert_eq!(Wheel::from_entry_name("2.27.7+cu12"), None);
}

#[test]
fn a_fetched_library_is_kept_and_not_fetched_again() {
    let fake = Fake::pip();
    let (entry, _lease) = fake.fetch().expect("the fake pip delivers");
    assert_eq!(std::fs::read(&entry.path).expect("it is there"), LIBRARY_BYTES);
    assert_eq!(entry.bytes, LIBRARY_BYTES.len() as u64);
    fake.fetch().expect("from the cache");
    assert_eq!(fake.runs(), 1);
    assert_eq!(fake.cache().list().expect("readable"), [entry]);
    let left = std::fs::read_dir(fake.cache().root()).expect("readable").count();
    assert_eq!(left, 2, "the entry and its lock, nothing else");
}

#[test]
fn two_runs_at_once_fetch_once() {
    let fake = Fake::pip();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fake.fetch().expect("one fetches, the others wait"));
        }
    });
    assert_eq!(fake.runs(), 1);
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let fake = Fake::pip();
    let cache = fake.cache();
    drop(cache.try_lock(&wheel()).expect("usable").expect("free"));
    let stale = cache.root().join(".partial-2.27.7-cu12-abcdef");
    std::fs::create_dir(&stale).expect("a fresh cache");
    std::fs::write(stale.join("half.whl"), b"half").expect("space for it");
    std::fs::create_dir(cache.root().join("2.27.7-cu12")).expect("an entry without a library");
    fake.fetch().expect("the fake pip delivers");
    assert!(!stale.exists());
}

#[test]
fn pips_own_words_are_repeated() {
    let fake = Fake::new("echo one; echo \"No module named pip$(printf '\\033')\" >&2; exit 1");
    let text = fake.fetch().unwrap_err().to_string();
    assert!(text.contains("No module named pip") && text.contains("2.27.7"), "{text}");
    assert!(!text.contains('\u{1b}'), "control characters are masked");
    assert!(fake.cache().list().expect("readable").is_empty());

    let missing = fake.path("no-such-python");
    let error = fetch(&wheel(), &fake.cache(), Some(&missing), &mut crate::nccl::progress::silent)
        .unwrap_err();
    assert!(error.to_string().contains("no-such-python"), "{error}");
}

#[test]
fn success_without_a_wheel_is_a_failure() {
    let error = Fake::new("exit 0").fetch().unwrap_err();
    assert!(matches!(error, WheelError::Pip(PipError::Failed { .. })), "{error}");
}

#[test]
fn a_wheel_that_does_not_match_its_record_is_refused() {
    let good = record_of(LIBRARY_BYTES);
    let other = record_of(b"stands in for another!!");
    let longer = record_of(b"longer than the one that is in the file");
    let record = |text: &'static str| [(MEMBER, LIBRARY_BYTES), (RECORD, text.as_bytes())];
    let second = "x.dist-info/RECORD";
    for (why, bytes) in [
        ("other hash", zip_of(&[(MEMBER, LIBRARY_BYTES), (RECORD, other.as_bytes())])),
        ("other size", zip_of(&[(MEMBER, LIBRARY_BYTES), (RECORD, longer.as_bytes())])),
        ("no library", zip_of(&[(RECORD, good.as_bytes())])),
        ("no record", zip_of(&[(MEMBER, LIBRARY_BYTES)])),
        ("not listed", zip_of(&record("a,sha256=x,1\n"))),
        ("no hash", zip_of(&record("nvidia/nccl/lib/libnccl.so.2,,\n"))),
        ("two records", zip_of(&[(RECORD, good.as_bytes()), (second, good.as_bytes())])),
        ("no zip", b"<html>404</html>".to_vec()),
        ("cut off", good_wheel()[..good_wheel().len() / 2].to_vec()),
    ] {
        let fake = Fake::pip();
        std::fs::write(fake.path("wheel"), bytes).expect("space for it");
        let error = fake.fetch().expect_err(why);
        assert!(matches!(error, WheelError::Unpack(UnpackError::Unsound { .. })), "{why}: {error}");
        assert!(fake.cache().list().expect("readable").is_empty(), "{why}");
    }
}

#[test]
fn clean_removes_entries_but_none_that_is_in_use() {
    let fake = Fake::pip();
    let cache = fake.cache();
    let (entry, lease) = fake.fetch().expect("the fake pip delivers");
    let foreign = cache.root().join("notes.txt");
    std::fs::write(&foreign, b"mine").expect("space for it");
    let cleaned = cache.clean(None).expect("readable");
    assert_eq!((cleaned.freed, cleaned.in_use), (0, vec![wheel()]));
    drop(lease);
    let other = "2.18.3".parse().expect("a wheel");
    assert_eq!(cache.clean(Some(&other)).expect("readable").removed, []);
    let cleaned = cache.clean(Some(&wheel())).expect("readable");
    assert_eq!((cleaned.freed, cleaned.removed), (entry.bytes, vec![wheel()]));
    assert!(!entry.path.exists() && foreign.exists());
}

#[test]
fn a_cache_that_others_could_have_prepared_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let fake = Fake::pip();
    let (entry, lease) = fake.fetch().expect("the fake pip delivers");
    drop(lease);
    let directory = entry.path.parent().expect("it is in a directory");

    std::fs::remove_file(&entry.path).expect("own file");
    symlink("/bin/sh", &entry.path).expect("own directory");
    assert!(matches!(fake.fetch(), Err(WheelError::Cache(CacheError::Unsafe { .. }))));

    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory, mode).expect("own directory");
    assert!(matches!(fake.fetch(), Err(WheelError::Cache(CacheError::Unsafe { .. }))));
    // It stays out of the list, and does not keep others out.
    assert_eq!(fake.cache().list().expect("readable"), []);

    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let linked = Cache::at(fake.path("linked"));
    symlink(elsewhere.path(), linked.root()).expect("own directory");
    assert!(matches!(linked.clean(None), Err(CacheError::Unsafe { .. })));
}
