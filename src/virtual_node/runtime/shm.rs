//! Shared memory without names. NCCL makes files `/dev/shm/nccl-XXXXXX` and
//! hands the six last letters to its peers; a rank that is killed leaves them
//! behind. Here the file has no name: the six letters hold the maker's process
//! id and descriptor, through which a peer opens it, so the kernel frees it
//! with the last process, whatever ends it.

use super::errors::refused;
use super::sys;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};

const PREFIX: &[u8] = b"/dev/shm/nccl-";
const LETTERS: usize = 6;
/// 64 letters: 36 bits, 22 for the process id (the kernel's limit) and 14 for
/// the descriptor.
const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const DESCRIPTOR_BITS: u32 = 14;

unsafe extern "C" {
    fn mkstemp(template: *mut c_char) -> c_int;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
}

/// Process id and descriptor as six letters.
fn letters(pid: u32, descriptor: RawFd) -> Option<[u8; LETTERS]> {
    let descriptor = u64::try_from(descriptor).ok()?;
    if descriptor >> DESCRIPTOR_BITS != 0 || pid >> (36 - DESCRIPTOR_BITS) != 0 {
        return None;
    }
    let mut number = u64::from(pid) << DESCRIPTOR_BITS | descriptor;
    Some([(); LETTERS].map(|()| {
        let letter = ALPHABET[(number & 63) as usize];
        number >>= 6;
        letter
    }))
}

/// What [`letters`] put together.
fn from_letters(letters: &[u8]) -> Option<(u64, u64)> {
    let mut number = 0;
    for letter in letters.iter().rev() {
        let digit = ALPHABET.iter().position(|known| known == letter)?;
        number = number << 6 | digit as u64;
    }
    let descriptor = number & ((1 << DESCRIPTOR_BITS) - 1);
    Some((number >> DESCRIPTOR_BITS, descriptor)).filter(|(pid, _)| *pid > 0)
}

/// The six letters of a path of ours.
fn own(path: &[u8]) -> Option<(u64, u64)> {
    let rest = path.strip_prefix(PREFIX)?;
    (rest.len() == LETTERS).then(|| from_letters(rest)).flatten()
}

/// The text at a path that may be null: NCCL opens what `realpath` answers
/// without a look.
///
/// # Safety
/// `path` is null or a string that ends in NUL and outlives the use.
unsafe fn text<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's promise, and null was looked for.
    if path.is_null() { &[] } else { unsafe { CStr::from_ptr(path) }.to_bytes() }
}

/// Stands for `mkstemp`. NCCL keeps the descriptor open as long as the name is
/// to be found, so the number stays valid for exactly that time.
///
/// # Safety
/// As `mkstemp`.
pub(super) unsafe extern "C" fn make(template: *mut c_char) -> c_int {
    // SAFETY: the caller passes a string that ends in NUL.
    let text = unsafe { text(template) };
    let length = text.len();
    if text.strip_prefix(PREFIX) != Some(b"XXXXXX") {
        // SAFETY: as above.
        return unsafe { mkstemp(template) };
    }
    // A real name instead could outlive a rank that is killed: rather fail.
    let Ok(file) = sys::memory_file(c"nccldiag-virtual-shm", 0) else { return -1 };
    let Some(name) = letters(std::process::id(), file.as_raw_fd()) else {
        refused("name shared memory", &io::Error::other("too many open files"));
        return -1;
    };
    // SAFETY: the last six bytes of the caller's template.
    unsafe {
        let end = template.cast::<u8>().add(length - LETTERS);
        std::ptr::copy_nonoverlapping(name.as_ptr(), end, LETTERS);
    }
    file.into_raw_fd()
}

/// Stands for `open`. The third argument is only read with `O_CREAT`; on
/// x86-64 a variable argument arrives like any other.
///
/// # Safety
/// As `open`.
pub(super) unsafe extern "C" fn open_file(
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller passes what it would pass to open.
    let Some((pid, descriptor)) = own(unsafe { text(path) }) else {
        // SAFETY: as above.
        return unsafe { open(path, flags, mode) };
    };
    let path = format!("/proc/{pid}/fd/{descriptor}");
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file.into_raw_fd(),
        Err(_) => -1, // errno is that of the failed call
    }
}

/// Stands for `unlink`: a file without a name has none to remove.
///
/// # Safety
/// As `unlink`.
pub(super) unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    // SAFETY: the caller passes what it would pass to unlink.
    if own(unsafe { text(path) }).is_some() {
        return 0;
    }
    // SAFETY: as above.
    unsafe { unlink(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_null_is_an_error_and_no_crash() {
        // SAFETY: the kernel checks the pointer.
        unsafe {
            assert_eq!(open_file(std::ptr::null(), 0, 0), -1);
            assert_eq!(remove(std::ptr::null()), -1);
        }
    }

    #[test]
    fn six_letters_hold_a_process_and_a_descriptor() {
        for (pid, descriptor) in [(1, 0), (4_194_303, 16383), (12345, 77)] {
            let letters = letters(pid, descriptor).expect("in range");
            assert_eq!(from_letters(&letters), Some((u64::from(pid), descriptor as u64)));
        }
        assert_eq!(letters(1 << 22, 0), None);
        assert_eq!(letters(1, 1 << 14), None);
        assert_eq!(own(b"/dev/shm/nccl-000000"), None);
        assert_eq!(own(b"/dev/shm/other"), None);
    }

    #[test]
    fn a_peer_opens_what_was_made() {
        let mut name = *b"/dev/shm/nccl-XXXXXX\0";
        // SAFETY: a template that ends in NUL; the descriptors are used here only.
        unsafe {
            let made = make(name.as_mut_ptr().cast());
            assert!(made >= 0);
            let opened = open_file(name.as_ptr().cast(), 2, 0);
            assert!(opened >= 0 && opened != made);
            assert_eq!(remove(name.as_ptr().cast()), 0);
            use std::os::fd::FromRawFd as _;
            drop([made, opened].map(|fd| std::os::fd::OwnedFd::from_raw_fd(fd)));
        }
    }
}
