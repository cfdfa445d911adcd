//! Root of a profiler plugin that NCCL itself loads (`NCCL_PROFILER_PLUGIN`)
//! and that writes one line for each collective which NCCL enqueues, with what
//! it chose, to the file that `NCCLDIAG_PROFILE` names. It measures nothing.
//!
//! NCCL 2.23.4 and newer have the interface, in seven versions so far; NCCL
//! takes the newest that it knows. They differ in where the members of an
//! event lie, which is all that is told apart here: the headers
//! `profiler_v1.h` to `profiler_v6.h` of NCCL 2.23.4 to 2.30.7, and for v7,
//! which no public header has, the debug information of the library 2.31.2.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// The variable that names the file.
const FILE: &str = "NCCLDIAG_PROFILE";

/// `ncclResult_t`: NCCL goes on without a profiler that refuses.
const SUCCESS: c_int = 0;
const REFUSED: c_int = 3;

/// Kinds of events: `ncclProfileGroup`, without which NCCL reports no
/// collective, and `ncclProfileColl`.
const GROUP: c_int = 1;
const COLLECTIVE: u64 = 2;

/// Where the members of an event lie, in bytes.
#[derive(Clone, Copy)]
struct Layout {
    version: u32,
    /// The kind of event has 64 bits, and not 8.
    wide: bool,
    /// Function, type, algorithm and protocol are texts, and not numbers.
    texts: bool,
    sequence: usize,
    function: usize,
    count: usize,
    datatype: usize,
    channels: usize,
    algorithm: usize,
    protocol: usize,
}

const RANK: usize = 16;

/// v1, whose members v2 and v3 have at nearly the same places.
const V1: Layout = Layout {
    version: 1,
    wide: false,
    texts: false,
    sequence: 40,
    function: 48,
    count: 72,
    datatype: 84,
    channels: 104,
    algorithm: 106,
    protocol: 107,
};
const V2: Layout =
    Layout { version: 2, texts: true, datatype: 88, algorithm: 112, protocol: 120, ..V1 };
const V3: Layout = Layout { version: 3, channels: 96, algorithm: 104, protocol: 112, ..V2 };
/// v4 tells what belongs to the communicator once, at init; the later ones add
/// members behind those of v4.
const V4: Layout = Layout {
    version: 4,
    wide: false,
    texts: true,
    sequence: 24,
    function: 32,
    count: 56,
    datatype: 72,
    channels: 80,
    algorithm: 88,
    protocol: 96,
};

/// The layout of one version.
const fn layout(version: u32) -> Layout {
    match version {
        1 => V1,
        2 => V2,
        3 => V3,
        4 => V4,
        _ => Layout { version, wide: true, ..V4 },
    }
}

/// `ncclProfiler_vN_t`: the same functions in all versions, but for the
/// arguments of the first.
#[repr(C)]
pub struct Interface {
    name: *const c_char,
    init: *const (),
    start: unsafe extern "C" fn(*mut File, *mut *const c_void, *const u8) -> c_int,
    stop: extern "C" fn(*mut c_void) -> c_int,
    record: extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut File) -> c_int,
}

// SAFETY: it is never changed, and its pointers lead to constants and code.
unsafe impl Sync for Interface {}

impl Interface {
    const fn new<const VERSION: u32>() -> Self {
        let init = if VERSION < 5 { init as *const () } else { init_with_id as *const () };
        Self { name: c"nccldiag".as_ptr(), init, start: start::<VERSION>, stop, record, finalize }
    }
}

macro_rules! interfaces {
    ($($name:ident = $version:literal),*) => {$(
        /// The symbol that NCCL looks for.
        #[unsafe(no_mangle)]
        pub static $name: Interface = Interface::new::<$version>();
    )*};
}

interfaces! {
    ncclProfiler_v1 = 1,
    ncclProfiler_v2 = 2,
    ncclProfiler_v3 = 3,
    ncclProfiler_v4 = 4,
    ncclProfiler_v5 = 5,
    ncclProfiler_v6 = 6,
    ncclProfiler_v7 = 7
}

/// `init` of v1 to v4: `(void** context, int* mask, ...)`; what follows is not
/// needed.
///
/// # Safety
/// Both point to what NCCL wants to be filled in.
unsafe extern "C" fn init(context: *mut *mut File, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { begin(context, mask) }
}

/// `init` of v5 and newer: `(void** context, uint64_t id, int* mask, ...)`.
///
/// # Safety
/// As [`init`].
unsafe extern "C" fn init_with_id(context: *mut *mut File, _id: u64, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { begin(context, mask) }
}

/// Opens the file for one communicator.
///
/// # Safety
/// As [`init`].
unsafe fn begin(context: *mut *mut File, mask: *mut c_int) -> c_int {
    let path: Option<OsString> = std::env::var_os(FILE);
    let file = path.and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
    let Some(file) = file else { return REFUSED };
    // SAFETY: the caller's promise.
    unsafe {
        *context = Box::into_raw(Box::new(file));
        *mask = GROUP | COLLECTIVE as c_int;
    }
    SUCCESS
}

/// `startEvent`.
///
/// # Safety
/// The context is one of [`begin`], and the event is of this version.
unsafe extern "C" fn start<const VERSION: u32>(
    context: *mut File,
    handle: *mut *const c_void,
    event: *const u8,
) -> c_int {
    // NCCL leaves out what belongs to an event without a handle.
    static HANDLE: u8 = 0;
    // SAFETY: the caller's promise; the handle is never looked into.
    unsafe {
        *handle = (&raw const HANDLE).cast();
        let event = Event { at: event, layout: layout(VERSION) };
        if event.kind() == COLLECTIVE
            && let Some(mut file) = context.as_ref()
        {
            // One write, so that the lines of several ranks do not mix. Nobody
            // can be told when the disk is full: the line is missing then.
            let _ = file.write_all(event.to_string().as_bytes());
        }
    }
    SUCCESS
}

extern "C" fn stop(_handle: *mut c_void) -> c_int {
    SUCCESS
}

extern "C" fn record(_handle: *mut c_void, _state: c_int, _arguments: *mut c_void) -> c_int {
    SUCCESS
}

/// `finalize`.
///
/// # Safety
/// The context is one of [`begin`], and is not used again.
unsafe extern "C" fn finalize(context: *mut File) -> c_int {
    if !context.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(context) });
    }
    SUCCESS
}

/// An event of NCCL's, during the call that reports it.
struct Event {
    at: *const u8,
    layout: Layout,
}

impl Event {
    /// # Safety
    /// The event has a member of this type at this offset.
    unsafe fn read<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: the caller's promise; members lie at their natural borders,
        // and a copy asks for none.
        unsafe { self.at.add(offset).cast::<T>().read_unaligned() }
    }

    fn kind(&self) -> u64 {
        // SAFETY: all events begin with their kind.
        unsafe {
            if self.layout.wide { self.read::<u64>(0) } else { u64::from(self.read::<u8>(0)) }
        }
    }

    /// A member that is a text, or a small number in v1.
    fn word(&self, offset: usize) -> String {
        // SAFETY: the layout says what lies there; texts are constants of NCCL.
        unsafe {
            if !self.layout.texts {
                return self.read::<u8>(offset).to_string();
            }
            let text = self.read::<*const c_char>(offset);
            if text.is_null() {
                return "-".to_owned();
            }
            CStr::from_ptr(text).to_string_lossy().replace(char::is_whitespace, "_")
        }
    }
}

impl fmt::Display for Event {
    /// One line for a collective: `version=4 rank=0 sequence=1
    /// function=AllReduce count=256 type=ncclFloat32 algorithm=RING protocol=LL
    /// channels=1 warps=16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.layout;
        // SAFETY: the event is a collective of this version, which has these.
        let (rank, sequence, count, channels, warps) = unsafe {
            (
                self.read::<c_int>(RANK),
                self.read::<u64>(at.sequence),
                self.read::<usize>(at.count),
                self.read::<u8>(at.channels),
                self.read::<u8>(at.channels + 1),
            )
        };
        let [function, datatype] = [at.function, at.datatype].map(|offset| self.word(offset));
        let [algorithm, protocol] = [at.algorithm, at.protocol].map(|offset| self.word(offset));
        writeln!(
            f,
            "version={} rank={rank} sequence={sequence} function={function} count={count} \
             type={datatype} algorithm={algorithm} protocol={protocol} channels={channels} \
             warps={warps}",
            at.version
        )
    }
}
