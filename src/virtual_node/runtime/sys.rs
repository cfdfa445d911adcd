//! The few functions of the C library that the runtime needs, declared here
//! because it has no crates, and safe wrappers where one is possible.

use super::errors::{Error, refused};
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};

pub(super) const PROT_NONE: c_int = 0;
pub(super) const PROT_READ: c_int = 1;
pub(super) const PROT_WRITE: c_int = 2;
pub(super) const PROT_EXEC: c_int = 4;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;
const MADV_DONTNEED: c_int = 4;
const MFD_CLOEXEC: u32 = 1;
const FALLOC_FL_KEEP_SIZE: c_int = 1;
const FALLOC_FL_PUNCH_HOLE: c_int = 2;

const RLIMIT_NOFILE: c_int = 7;
/// Descriptors above this do not fit into the names of shared memory.
const FILES: u64 = 1 << 14;

/// The page size of x86-64.
pub(super) const PAGE: usize = 4096;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        n: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        from: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int;
    fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: u32) -> c_int;
    fn getrlimit(which: c_int, to: *mut Limit) -> c_int;
    fn setrlimit(which: c_int, from: *const Limit) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, offset: i64, bytes: i64) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Sets `errno` of this thread.
pub(super) fn set_errno(number: c_int) {
    // SAFETY: the C library gives the place of this thread's own errno.
    unsafe { *__errno_location() = number };
}

/// `struct rlimit`.
#[repr(C)]
struct Limit {
    now: u64,
    most: u64,
}

/// Pages that are unmapped when this is dropped.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) at: usize,
    pub(super) bytes: usize,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the pages; the virtual device frees memory
        // only when its user says that it is no longer used, as a GPU does.
        unsafe { munmap(self.at as *mut c_void, self.bytes) };
    }
}

/// What to put into new pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Backing<'a> {
    /// Zeroes of this process only.
    Private,
    /// Address space that nothing may touch yet.
    Reserved,
    /// A file, from an offset in bytes.
    Shared(&'a File, usize),
}

impl Backing<'_> {
    fn arguments(self) -> (c_int, c_int, c_int, i64) {
        let both = PROT_READ | PROT_WRITE;
        let private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        match self {
            Self::Private => (both, private, -1, 0),
            Self::Reserved => (PROT_NONE, private, -1, 0),
            // Offsets come from allocations that exist, far below 2^63.
            Self::Shared(file, from) => {
                (both, MAP_SHARED | MAP_NORESERVE, file.as_raw_fd(), from.cast_signed() as i64)
            }
        }
    }
}

/// Maps new pages anywhere.
///
/// # Errors
/// `OUT_OF_MEMORY`; the reason is remembered.
pub(super) fn map(bytes: usize, backing: Backing<'_>) -> Result<Pages, Error> {
    let (protection, flags, fd, from) = backing.arguments();
    // SAFETY: without MAP_FIXED the kernel replaces nothing.
    let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, fd, from) };
    pages(at, bytes).map_err(|error| refused("map memory", &error))
}

/// Maps new pages at exactly `at`, when nothing is there.
pub(super) fn map_free(at: usize, bytes: usize) -> io::Result<Pages> {
    let (protection, flags, ..) = Backing::Private.arguments();
    let flags = flags | MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE refuses to replace anything.
    let got = unsafe { mmap(at as *mut c_void, bytes, protection, flags, -1, 0) };
    let got = pages(got, bytes)?;
    // A kernel before 4.17 takes the address for a hint.
    if got.at == at { Ok(got) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

/// Replaces the pages at `at`.
///
/// # Safety
/// The range belongs to the caller, and nothing that is still needed is there.
pub(super) unsafe fn map_over(at: usize, bytes: usize, backing: Backing<'_>) -> io::Result<()> {
    let (protection, flags, fd, from) = backing.arguments();
    // SAFETY: the caller owns the range.
    let got = unsafe { mmap(at as *mut c_void, bytes, protection, flags | MAP_FIXED, fd, from) };
    pages(got, bytes).map(std::mem::forget)
}

fn pages(at: *mut c_void, bytes: usize) -> io::Result<Pages> {
    if at.addr() == usize::MAX {
        return Err(io::Error::last_os_error());
    }
    Ok(Pages { at: at.addr(), bytes })
}

/// Changes the protection of whole pages.
///
/// # Safety
/// Nothing relies on the old protection while the new one holds.
pub(super) unsafe fn protect(at: usize, bytes: usize, protection: c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { mprotect(at as *mut c_void, bytes, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes private anonymous pages zero again without touching them.
///
/// # Safety
/// `at` is on a page border, and the range is private anonymous memory whose
/// content may become zero.
pub(super) unsafe fn forget_pages(at: usize, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { madvise(at as *mut c_void, bytes, MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A file without a name, of this size in bytes, that is all holes.
///
/// # Errors
/// `OUT_OF_MEMORY`; the reason (mostly the limit of open files) is remembered.
pub(super) fn memory_file(name: &std::ffi::CStr, bytes: usize) -> Result<File, Error> {
    make_file(name, bytes).map_err(|error| refused("make a memory file", &error))
}

fn make_file(name: &std::ffi::CStr, bytes: usize) -> io::Result<File> {
    // SAFETY: the name ends in NUL.
    let fd = unsafe { memfd_create(name.as_ptr(), MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// Lets this process open as many files as the system lets it: a rank of the
/// virtual node needs some hundred.
pub(super) fn raise_file_limit() {
    let mut limit = Limit { now: 0, most: 0 };
    // SAFETY: both calls take a pointer to the structure of two integers.
    unsafe {
        if getrlimit(RLIMIT_NOFILE, &mut limit) == 0 && limit.now < limit.most {
            limit.now = limit.most.min(FILES);
            // A refusal shows when the files run out.
            setrlimit(RLIMIT_NOFILE, &limit);
        }
    }
}

/// Makes a part of a file a hole again: it then reads as zeroes and takes no
/// memory.
pub(super) fn punch(file: &File, from: usize, bytes: usize) -> io::Result<()> {
    let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    let (from, bytes) = (from.cast_signed() as i64, bytes.cast_signed() as i64);
    // SAFETY: integers only.
    match unsafe { fallocate(file.as_raw_fd(), mode, from, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
