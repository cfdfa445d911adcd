//! Records every `getenv` that a loaded library makes in this very process, by
//! pointing the library's own table entry for it (GOT) at a recorder. It uses
//! nothing but `std`, because it is also compiled into a small shared object
//! that runs inside probe children. It is never used on another process.
//!
//! All reads of NCCL 2.18 to 2.32 are `getenv` through that table
//! (`secure_getenv` is never used).

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
    /// Only x86-64 with glibc is known here.
    Platform,
    /// There is one recorder in a process, and it is in place.
    AlreadyInstalled,
    /// The loader does not know the handle.
    Handle,
    /// The library does not call `getenv` through its table.
    NoEntry,
    /// The table could not be made writable.
    Protect(String),
}

impl fmt::Display for WitnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => f.write_str("recording reads works on x86-64 with glibc only"),
            Self::AlreadyInstalled => f.write_str("this process already records reads"),
            Self::Handle => f.write_str("the loader does not know this library"),
            Self::NoEntry => f.write_str("the library has no table entry for getenv"),
            Self::Protect(why) => write!(f, "cannot make the library's table writable: {why}"),
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
/// [`WitnessError`]; then nothing was changed, or (for `Protect`) some entries
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
    let slots = unsafe { table::slots(handle, c"getenv") }?;
    let first = *slots.first().ok_or(WitnessError::NoEntry)?;
    // SAFETY: the loader bound the entry to a function of getenv's type, or,
    // for an entry that nobody bound yet, left it null.
    let real = unsafe { std::mem::transmute::<usize, Option<Getenv>>(table::read(first)) };
    let recorder =
        Recorder { real: real.ok_or(WitnessError::NoEntry)?, substitutes, reads: Mutex::default() };
    RECORDER.set(recorder).map_err(|_| WitnessError::AlreadyInstalled)?;
    let hook: Getenv = hook;
    for slot in slots {
        // SAFETY: the slots are entries of this library's table.
        unsafe { table::write(slot, hook as usize) }.map_err(WitnessError::Protect)?;
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

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod table {
    //! The relocations of a loaded library, as the ELF x86-64 ABI has them.

    use super::WitnessError;
    use std::ffi::{CStr, c_char, c_int, c_long, c_void};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const RTLD_DI_LINKMAP: c_int = 2;
    const PAGE: usize = 4096;
    const PROT_READ: c_int = 1;
    const PROT_WRITE: c_int = 2;
    const PROT_EXEC: c_int = 4;

    const R_X86_64_64: u64 = 1;
    const R_X86_64_GLOB_DAT: u64 = 6;
    const R_X86_64_JUMP_SLOT: u64 = 7;

    unsafe extern "C" {
        fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
        fn mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int;
    }

    /// The public start of glibc's `struct link_map`.
    #[repr(C)]
    struct LinkMap {
        base: usize,
        name: *const c_char,
        dynamic: *const Dyn,
    }

    #[repr(C)]
    struct Dyn {
        tag: c_long,
        value: usize,
    }

    #[repr(C)]
    struct Rela {
        offset: usize,
        info: u64,
        addend: i64,
    }

    #[repr(C)]
    struct Sym {
        name: u32,
        info: u8,
        other: u8,
        section: u16,
        value: usize,
        size: usize,
    }

    /// The entries of `.dynamic` that lead to the relocations.
    #[derive(Default)]
    struct Dynamic {
        strings: usize,
        symbols: usize,
        rela: usize,
        rela_bytes: usize,
        plt: usize,
        plt_bytes: usize,
    }

    /// The addresses of all table entries that are bound to `symbol`.
    ///
    /// # Safety
    /// `handle` came from `dlopen` and stays open.
    pub(super) unsafe fn slots(
        handle: *mut c_void,
        symbol: &CStr,
    ) -> Result<Vec<usize>, WitnessError> {
        let mut map: *const LinkMap = std::ptr::null();
        let to: *mut *const LinkMap = &mut map;
        // SAFETY: this request writes one pointer.
        if unsafe { dlinfo(handle, RTLD_DI_LINKMAP, to.cast()) } != 0 || map.is_null() {
            return Err(WitnessError::Handle);
        }
        // SAFETY: the loader's own record of an open library.
        let (base, found) = unsafe { ((*map).base, dynamic(&*map)) };
        let mut slots = Vec::new();
        for (table, bytes) in [(found.plt, found.plt_bytes), (found.rela, found.rela_bytes)] {
            if table == 0 || found.symbols == 0 || found.strings == 0 {
                continue;
            }
            let count = bytes / size_of::<Rela>();
            // SAFETY: the loader applied exactly these relocations.
            let entries = unsafe { std::slice::from_raw_parts(table as *const Rela, count) };
            for entry in entries {
                // SAFETY: symbol and string tables belong to the same library.
                if unsafe { is_for(entry, &found, symbol) } {
                    slots.push(base.wrapping_add(entry.offset));
                }
            }
        }
        slots.sort_unstable();
        slots.dedup(); // DT_RELA may include DT_JMPREL
        Ok(slots)
    }

    /// # Safety
    /// `map` is the loader's record of an open library.
    unsafe fn dynamic(map: &LinkMap) -> Dynamic {
        // glibc has added the base already; musl and read-only sections have not.
        let address = |value: usize| if value < map.base { value + map.base } else { value };
        let mut found = Dynamic::default();
        let mut at = map.dynamic;
        loop {
            // SAFETY: the array ends with the tag 0 (DT_NULL).
            let entry = unsafe { &*at };
            match entry.tag {
                0 => return found,
                2 => found.plt_bytes = entry.value,
                5 => found.strings = address(entry.value),
                6 => found.symbols = address(entry.value),
                7 => found.rela = address(entry.value),
                8 => found.rela_bytes = entry.value,
                23 => found.plt = address(entry.value),
                _ => {}
            }
            // SAFETY: not at the end yet.
            at = unsafe { at.add(1) };
        }
    }

    /// # Safety
    /// `entry` and `found` belong to the same loaded library.
    unsafe fn is_for(entry: &Rela, found: &Dynamic, symbol: &CStr) -> bool {
        let plain_address = entry.info & 0xffff_ffff == R_X86_64_64 && entry.addend == 0;
        let kind = entry.info & 0xffff_ffff;
        if !matches!(kind, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) && !plain_address {
            return false;
        }
        let index = (entry.info >> 32) as usize;
        // SAFETY: relocations name symbols of this table, which name strings of
        // that one.
        unsafe {
            let name = (*(found.symbols as *const Sym).add(index)).name as usize;
            CStr::from_ptr((found.strings + name) as *const c_char) == symbol
        }
    }

    /// What an entry holds.
    pub(super) fn read(slot: usize) -> usize {
        // SAFETY: `slots` gave the address of an aligned, mapped entry.
        unsafe { AtomicUsize::from_ptr(slot as *mut usize) }.load(Ordering::Relaxed)
    }

    /// Changes an entry and leaves its page protected as it was (the loader
    /// makes it read-only under RELRO).
    ///
    /// # Safety
    /// `slot` is an entry that `slots` gave.
    pub(super) unsafe fn write(slot: usize, value: usize) -> Result<(), String> {
        let before = protection(slot)?;
        let locked = before & PROT_WRITE == 0;
        if locked {
            protect(slot, before | PROT_WRITE)?;
        }
        // SAFETY: aligned, and the page is writable now.
        unsafe { AtomicUsize::from_ptr(slot as *mut usize) }.store(value, Ordering::Relaxed);
        if locked {
            protect(slot, before)?;
        }
        Ok(())
    }

    fn protect(slot: usize, protection: c_int) -> Result<(), String> {
        let page = (slot & !(PAGE - 1)) as *mut c_void;
        // SAFETY: the page holds the entry; removing PROT_WRITE only restores
        // what the loader had set.
        if unsafe { mprotect(page, PAGE, protection) } == 0 {
            return Ok(());
        }
        Err(format!("mprotect: {}", std::io::Error::last_os_error()))
    }

    /// How the page of an address is protected now.
    fn protection(address: usize) -> Result<c_int, String> {
        let maps = std::fs::read("/proc/self/maps")
            .map_err(|error| format!("read /proc/self/maps: {error}"))?;
        // Paths in the map may hold any bytes.
        let maps = String::from_utf8_lossy(&maps);
        let line = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let end = usize::from_str_radix(end, 16).ok()?;
            (start..end).contains(&address).then_some(rest.as_bytes())
        });
        let Some([read, write, exec, ..]) = line else {
            return Err("the table is not in /proc/self/maps".into());
        };
        let flag = |letter: &u8, flag| if *letter == b'-' { 0 } else { flag };
        Ok(flag(read, PROT_READ) | flag(write, PROT_WRITE) | flag(exec, PROT_EXEC))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod table {
    //! No other platform is known.

    use super::WitnessError;
    use std::ffi::{CStr, c_void};

    pub(super) unsafe fn slots(_: *mut c_void, _: &CStr) -> Result<Vec<usize>, WitnessError> {
        Err(WitnessError::Platform)
    }

    pub(super) fn read(_: usize) -> usize {
        0
    }

    pub(super) unsafe fn write(_: usize, _: usize) -> Result<(), String> {
        Err("unknown platform".into())
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
        std::fs::write(&source, module("table") + &module("witness")).expect("space for it");
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
