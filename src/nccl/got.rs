//! The table of imports (GOT) of a library that is loaded into this very
//! process: finding the entries of a symbol, reading and changing them. It uses
//! nothing but `std`, because it is also compiled into small shared objects. It
//! is never used on another process.

use std::ffi::{CStr, c_void};
use std::fmt;

/// Why an entry could not be found or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GotError {
    /// Only x86-64 with glibc is known here.
    Platform,
    /// The loader does not know the handle.
    Handle,
    /// The table could not be made writable.
    Protect(String),
}

impl fmt::Display for GotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => f.write_str("the import table is known on x86-64 with glibc only"),
            Self::Handle => f.write_str("the loader does not know this library"),
            Self::Protect(why) => write!(f, "cannot make the library's table writable: {why}"),
        }
    }
}

impl std::error::Error for GotError {}

/// The addresses of all table entries that are bound to `symbol`.
///
/// # Errors
/// [`GotError`].
///
/// # Safety
/// `handle` came from `dlopen` and stays open.
pub unsafe fn slots(handle: *mut c_void, symbol: &CStr) -> Result<Vec<usize>, GotError> {
    // SAFETY: the caller's promise.
    unsafe { platform::slots(handle, symbol) }
}

/// The library's load base.
///
/// # Errors
/// [`GotError`].
///
/// # Safety
/// `handle` came from `dlopen` and stays open.
pub unsafe fn base(handle: *mut c_void) -> Result<usize, GotError> {
    // SAFETY: the caller's promise.
    unsafe { platform::base(handle) }
}

/// What an entry holds.
///
/// # Safety
/// `slot` is an entry that [`slots`] gave.
pub unsafe fn read(slot: usize) -> usize {
    platform::read(slot)
}

/// Changes an entry and leaves its page protected as it was.
///
/// # Errors
/// [`GotError::Protect`].
///
/// # Safety
/// `slot` is an entry that [`slots`] gave, and `value` fits what it is for.
pub unsafe fn write(slot: usize, value: usize) -> Result<(), GotError> {
    // SAFETY: the caller's promise.
    unsafe { platform::write(slot, value) }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod platform {
    //! The relocations of a loaded library, as the ELF x86-64 ABI has them.

    use super::GotError;
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

    /// The loader's record of an open library.
    ///
    /// # Safety
    /// `handle` came from `dlopen` and stays open.
    unsafe fn link_map(handle: *mut c_void) -> Result<&'static LinkMap, GotError> {
        let mut map: *const LinkMap = std::ptr::null();
        let to: *mut *const LinkMap = &mut map;
        // SAFETY: this request writes one pointer.
        if unsafe { dlinfo(handle, RTLD_DI_LINKMAP, to.cast()) } != 0 {
            return Err(GotError::Handle);
        }
        // SAFETY: null, or a record that lives as long as the library is open.
        unsafe { map.as_ref() }.ok_or(GotError::Handle)
    }

    /// Where the library was loaded.
    ///
    /// # Safety
    /// `handle` came from `dlopen` and stays open.
    pub(super) unsafe fn base(handle: *mut c_void) -> Result<usize, GotError> {
        // SAFETY: the caller's promise.
        unsafe { link_map(handle) }.map(|map| map.base)
    }

    /// The addresses of all table entries that are bound to `symbol`.
    ///
    /// # Safety
    /// `handle` came from `dlopen` and stays open.
    pub(super) unsafe fn slots(handle: *mut c_void, symbol: &CStr) -> Result<Vec<usize>, GotError> {
        // SAFETY: the caller's promise.
        let map = unsafe { link_map(handle) }?;
        // SAFETY: as above.
        let (base, found) = unsafe { (map.base, dynamic(map)) };
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
    pub(super) unsafe fn write(slot: usize, value: usize) -> Result<(), GotError> {
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

    fn protect(slot: usize, protection: c_int) -> Result<(), GotError> {
        let page = (slot & !(PAGE - 1)) as *mut c_void;
        // SAFETY: the page holds the entry; removing PROT_WRITE only restores
        // what the loader had set.
        if unsafe { mprotect(page, PAGE, protection) } == 0 {
            return Ok(());
        }
        Err(GotError::Protect(format!("mprotect: {}", std::io::Error::last_os_error())))
    }

    /// How the page of an address is protected now.
    fn protection(address: usize) -> Result<c_int, GotError> {
        let maps = std::fs::read("/proc/self/maps")
            .map_err(|error| GotError::Protect(format!("read /proc/self/maps: {error}")))?;
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
            return Err(GotError::Protect("the table is not in /proc/self/maps".into()));
        };
        let flag = |letter: &u8, flag| if *letter == b'-' { 0 } else { flag };
        Ok(flag(read, PROT_READ) | flag(write, PROT_WRITE) | flag(exec, PROT_EXEC))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod platform {
    //! No other platform is known.

    use super::GotError;
    use std::ffi::{CStr, c_void};

    pub(super) unsafe fn base(_: *mut c_void) -> Result<usize, GotError> {
        Err(GotError::Platform)
    }

    pub(super) unsafe fn slots(_: *mut c_void, _: &CStr) -> Result<Vec<usize>, GotError> {
        Err(GotError::Platform)
    }

    pub(super) fn read(_: usize) -> usize {
        0
    }

    pub(super) unsafe fn write(_: usize, _: usize) -> Result<(), String> {
        Err(GotError::Platform)
    }
}
