//! Waiting without spinning. NCCL's threads ask their sockets again and again
//! (tens of thousands of `recv` and `accept` calls without an answer during one
//! communicator init of eight ranks), which is right where each rank has cores
//! of its own and takes seconds where eight share two. Here a call without an
//! answer first waits for a moment, which changes no result.

use std::ffi::{c_int, c_void};
use std::io;

/// How long one call without an answer waits for one, in nanoseconds: short,
/// because the thread may have other sockets to ask.
const MOMENT: i64 = 50_000;
const POLLIN: i16 = 1;

/// `struct pollfd`.
#[repr(C)]
struct Poll {
    fd: c_int,
    events: i16,
    happened: i16,
}

/// `struct timespec`.
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn recv(fd: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize;
    fn accept(fd: c_int, address: *mut c_void, length: *mut u32) -> c_int;
    fn poll(list: *mut c_void, count: u64, limit: c_int) -> c_int;
    fn ppoll(list: *mut Poll, count: u64, limit: *const Time, mask: *const c_void) -> c_int;
}

/// Waits for something to read, for a moment, when that is what failed.
fn moment(fd: c_int) -> bool {
    if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
        return false;
    }
    let mut poll = Poll { fd, events: POLLIN, happened: 0 };
    let limit = Time { seconds: 0, nanoseconds: MOMENT };
    // SAFETY: one entry, a time, no signal mask.
    unsafe { ppoll(&mut poll, 1, &limit, std::ptr::null()) };
    true
}

/// Stands for `poll`. NCCL's service threads look whether they are to end
/// every 500 ms, and `ncclCommDestroy` waits for them; here they look oftener.
/// To be woken early for nothing is no event that they do not know.
///
/// # Safety
/// As `poll`.
pub(super) unsafe extern "C" fn poll_some(list: *mut c_void, count: u64, limit: c_int) -> c_int {
    const SERVICE: c_int = 500;
    const HERE: c_int = 20;
    let limit = if limit == SERVICE { HERE } else { limit };
    // SAFETY: the caller passes what it would pass to poll.
    unsafe { poll(list, count, limit) }
}

/// Stands for `recv`.
///
/// # Safety
/// As `recv`.
pub(super) unsafe extern "C" fn receive(
    fd: c_int,
    to: *mut c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller passes what it would pass to recv.
    let got = unsafe { recv(fd, to, bytes, flags) };
    if got < 0 && moment(fd) {
        // SAFETY: as above. This also sets errno as the caller expects it.
        return unsafe { recv(fd, to, bytes, flags) };
    }
    got
}

/// Stands for `accept`.
///
/// # Safety
/// As `accept`.
pub(super) unsafe extern "C" fn accept_one(
    fd: c_int,
    address: *mut c_void,
    length: *mut u32,
) -> c_int {
    // SAFETY: the caller passes what it would pass to accept.
    let got = unsafe { accept(fd, address, length) };
    if got < 0 && moment(fd) {
        // SAFETY: as above.
        return unsafe { accept(fd, address, length) };
    }
    got
}
