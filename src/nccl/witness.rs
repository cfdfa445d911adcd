//! Records every `getenv` that a loaded library makes in this very process, by
//! pointing the library's own table entry for it (GOT) at a recorder. It uses
//! nothing but `std`, because it is also compiled into a small shared object
//! that runs inside probe children. It is never used on another process.
//!
//! All reads of NCCL 2.18 to 2.32 are `getenv` through that table
//! (`secure_getenv` is never used).

use super::got::{self, GotError};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// One read, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The variable that was asked for.
    pub name: Vec<u8>,
    /// What the environment really holds; `None` when it holds nothing, also
    /// when a substitute was answered.
    pub value: Option<Vec<u8>>,
}

/// Answers `value` for `name` when the environment has no such variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substitute {
    /// The variable.
    pub name: CString,
    /// What the library is told; kept for ever, because it may keep the pointer.
    pub value: CString,
}

/// Why the recorder could not be put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WitnessError {
    /// There is one recorder in a process, and it is in place.
    AlreadyInstalled,
    /// The library does not call `getenv` through its table.
    NoEntry,
    /// Its table could not be read or changed.
    Table(GotError),
}

impl fmt::Display for WitnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyInstalled => f.write_str("this process already records reads"),
            Self::NoEntry => f.write_str("the library has no table entry for getenv"),
            Self::Table(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WitnessError {}

type Getenv = unsafe extern "C" fn(*const c_char) -> *mut c_char;

struct Recorder {
    real: Getenv,
    substitutes: Vec<Substitute>,
    reads: Mutex<Vec<Read>>,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The recorder of this process. It stays in place until the process ends:
/// NCCL's threads may be inside it at any time.
#[derive(Debug)]
pub struct Witness(());

impl Witness {
    /// All reads so far, in order.
    pub fn reads(&self) -> Vec<Read> {
        RECORDER.get().map(|recorder| lock(&recorder.reads).clone()).unwrap_or_default()
    }
}

fn lock(reads: &Mutex<Vec<Read>>) -> std::sync::MutexGuard<'_, Vec<Read>> {
    // A push either happened or did not: a panic leaves nothing half-done.
    reads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Points every entry for `getenv` in the library behind `handle` at the
/// recorder.
///
/// # Errors
/// [`WitnessError`]; then nothing was changed, or (for `Table`) some entries
/// already record.
///
/// # Safety
/// `handle` came from `dlopen` and is never closed. No other thread uses the
/// library while this runs.
pub unsafe fn install(
    handle: *mut c_void,
    substitutes: Vec<Substitute>,
) -> Result<Witness, WitnessError> {
    // SAFETY: the caller's promise is handed on.
    let slots = unsafe { got::slots(handle, c"getenv") }.map_err(WitnessError::Table)?;
    let first = *slots.first().ok_or(WitnessError::NoEntry)?;
    // SAFETY: the loader bound the entry to a function of getenv's type, or,
    // for an entry that nobody bound yet, left it null.
    let real = unsafe { std::mem::transmute::<usize, Option<Getenv>>(got::read(first)) };
    let recorder =
        Recorder { real: real.ok_or(WitnessError::NoEntry)?, substitutes, reads: Mutex::default() };
    RECORDER.set(recorder).map_err(|_| WitnessError::AlreadyInstalled)?;
    let hook: Getenv = hook;
    for slot in slots {
        // SAFETY: the slots are entries of this library's table.
        unsafe { got::write(slot, hook as usize) }.map_err(WitnessError::Table)?;
    }
    Ok(Witness(()))
}

/// Stands in for `getenv`.
///
/// # Safety
/// As for `getenv`: `name` is null or ends in NUL.
unsafe extern "C" fn hook(name: *const c_char) -> *mut c_char {
    let Some(recorder) = RECORDER.get() else { return std::ptr::null_mut() };
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the library passes what it would pass to getenv.
    let (asked, found) = unsafe { (CStr::from_ptr(name), (recorder.real)(name)) };
    let value = (!found.is_null()).then(|| {
        // SAFETY: getenv returned a string that ends in NUL.
        unsafe { CStr::from_ptr(found) }.to_bytes().to_vec()
    });
    let absent = value.is_none();
    lock(&recorder.reads).push(Read { name: asked.to_bytes().to_vec(), value });
    let substitute = recorder.substitutes.iter().find(|other| other.name.as_c_str() == asked);
    match substitute {
        // getenv's type says `char*`, but its callers must not write there.
        Some(substitute) if absent => substitute.value.as_ptr().cast_mut(),
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::image::NcclVersion;
    use crate::nccl::table::Library;
    use crate::nccl::testing;
    use std::path::Path;
    use std::process::{Command, Output};

    /// Not a test by itself: the part of the one below that runs in a process
    /// of its own, because the recorder stays for ever.
    #[test]
    fn child() {
        let Some(path) = std::env::var_os("NCCLDIAG_TEST_LIBRARY") else { return };
        // SAFETY: an official libnccl from the cache.
        let library = unsafe { Library::open(Path::new(&path)) }.expect("it loads");
        let version = library.version_code().expect("it has a version");
        let lo = Substitute { name: c"NCCL_SOCKET_IFNAME".into(), value: c"lo".into() };
        // SAFETY: the handle stays open, and nobody else uses the library.
        let witness = unsafe { install(library.handle(), vec![lo.clone()]) }.expect("installed");
        assert!(witness.reads().is_empty(), "nothing is read before the first call");
        // SAFETY: as above.
        let again = unsafe { install(library.handle(), vec![]) }.unwrap_err();
        assert_eq!(again, WitnessError::AlreadyInstalled);
        library.unique_id().expect("loopback exists");
        println!("\nversion={version}");
        for read in witness.reads() {
            let value = read.value.as_deref().map(String::from_utf8_lossy);
            println!("read {} {value:?}", String::from_utf8_lossy(&read.name));
        }
    }

    fn run(library: &Path) -> Output {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "nccl::witness::tests::child", "--nocapture"])
            .env("NCCLDIAG_TEST_LIBRARY", library)
            .env("NCCL_GDRCOPY_ENABLE", "100001")
            .env_remove("NCCL_SOCKET_IFNAME")
            .output()
            .expect("this test can run again")
    }

    #[test]
    fn every_read_is_recorded_and_a_substitute_is_answered_but_not_recorded() {
        for entry in testing::libraries() {
            let output = run(&entry.path);
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}: {text}{output:?}", entry.wheel);
            let reads: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("read ")).collect();
            let code = text.lines().find_map(|line| line.strip_prefix("version=")?.parse().ok());
            let version = code.and_then(NcclVersion::from_code).expect("it was printed");
            assert!(entry.wheel.version().starts_with(&version.to_string()), "{version}");
            assert!(reads.contains(&"NCCL_GDRCOPY_ENABLE Some(\"100001\")"), "{text}");
            assert!(reads.contains(&"NCCL_SOCKET_IFNAME None"), "{text}");
            let has_conf_file = version >= NcclVersion::new(2, 23, 0);
            assert_eq!(reads.contains(&"NCCL_CONF_FILE None"), has_conf_file, "{text}");
            println!("{}: {} reads", entry.wheel, reads.len());
        }
    }

    #[test]
    fn a_library_without_the_entry_is_refused() {
        unsafe extern "C" {
            fn dlopen(path: *const c_char, flags: std::ffi::c_int) -> *mut c_void;
        }
        // SAFETY: libm is loaded anyway; 2 is RTLD_NOW.
        let handle = unsafe { dlopen(c"libm.so.6".as_ptr(), 2) };
        // SAFETY: the handle is never closed.
        let error = unsafe { install(handle, vec![]) }.unwrap_err();
        assert_eq!(error, WitnessError::NoEntry);
    }

    /// Both files must stay usable in a shared object that has no crates.
    #[test]
    fn table_and_witness_need_nothing_but_std() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let source = directory.path().join("root.rs");
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nccl");
        let module = |name: &str| {
            format!("#[path = {:?}]\npub mod {name};\n", here.join(name.to_owned() + ".rs"))
        };
        std::fs::write(&source, module("got") + &module("table") + &module("witness"))
            .expect("space for it");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "--emit=metadata", "-Dwarnings"])
            .arg("--out-dir")
            .args([directory.path(), &source])
            .output();
        match output {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Err(error) => crate::testing::skipped(&format!("no rustc: {error}")),
        }
    }
}
