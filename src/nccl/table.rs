//! Opens a libnccl by path and holds its C functions, each of which may be
//! missing. It uses nothing but `std`, because it is also compiled into a small
//! shared object that runs inside probe children.
//!
//! Results are plain integers here and never a Rust enum: a newer NCCL may
//! return a code that this build does not know.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const RTLD_LOCAL: c_int = 0;
const RTLD_NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
    fn dlclose(handle: *mut c_void) -> c_int;
}

/// `ncclResult_t`, whatever its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NcclResult(pub i32);

impl NcclResult {
    /// `ncclSuccess`.
    pub const SUCCESS: Self = Self(0);
    /// `ncclInvalidUsage`: also the answer to a setting that NCCL refuses.
    pub const INVALID_USAGE: Self = Self(5);
    /// `ncclInProgress`: a non-blocking communicator is still at work.
    pub const IN_PROGRESS: Self = Self(7);

    /// `Ok` for `ncclSuccess` only.
    ///
    /// # Errors
    /// The code itself.
    pub fn ok(self) -> Result<(), Self> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }

    /// The name in nccl.h (of NCCL 2.18 to 2.32), when it has one.
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            _ => return None,
        })
    }
}

impl fmt::Display for NcclResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "result {} (not in the nccl.h that this tool knows)", self.0),
        }
    }
}

impl std::error::Error for NcclResult {}

/// `ncclUniqueId`: 128 opaque bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclSimInfo_t`: what `ncclGroupSimulateEnd` fills in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SimulationInfo {
    size: usize,
    magic: u32,
    version: u32,
    /// NCCL's estimate in microseconds.
    pub estimated_us: f32,
}

impl Default for SimulationInfo {
    /// `NCCL_SIM_INFO_INITIALIZER` of 2.22, which all later versions accept.
    fn default() -> Self {
        Self { size: size_of::<Self>(), magic: 0x7468_5283, version: 22200, estimated_us: -1.0 }
    }
}

/// `ncclComm_t`: opaque.
pub type Comm = *mut c_void;
/// `cudaStream_t`: opaque.
pub type Stream = *mut c_void;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal
        ($($argument:ty),*) -> $result:ty;)*) => {
        /// The C functions of one libnccl; `None` where it has no such symbol.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($(#[$doc])* pub $field: Option<unsafe extern "C" fn($($argument),*) -> $result>,)*
        }

        impl Functions {
            /// # Safety
            /// `handle` is an open libnccl, whose functions have the types of nccl.h.
            unsafe fn load(handle: *mut c_void) -> Self {
                Self {
                    $($field: {
                        // SAFETY: the handle is open, the name ends in NUL.
                        let address = unsafe { dlsym(handle, $symbol.as_ptr()) };
                        // SAFETY: a null pointer is None, and the type is that of
                        // nccl.h, which NCCL 2 keeps for each name.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($argument),*) -> $result>,
                            >(address)
                        }
                    },)*
                }
            }
        }
    };
}

functions! {
    /// `ncclGetVersion(int* version)`
    get_version = c"ncclGetVersion"(*mut c_int) -> NcclResult;
    /// `ncclGetUniqueId(ncclUniqueId*)`: reads a dozen settings, needs no GPU.
    get_unique_id = c"ncclGetUniqueId"(*mut UniqueId) -> NcclResult;
    /// `ncclGetErrorString(ncclResult_t)`
    get_error_string = c"ncclGetErrorString"(NcclResult) -> *const c_char;
    /// `ncclGetLastError(ncclComm_t or NULL)`, since 2.13.
    get_last_error = c"ncclGetLastError"(Comm) -> *const c_char;
    /// `ncclCommInitRank(comm*, nranks, id, rank)`
    comm_init_rank = c"ncclCommInitRank"(*mut Comm, c_int, UniqueId, c_int) -> NcclResult;
    /// `ncclCommInitRankConfig(comm*, nranks, id, rank, config*)`, since 2.14.
    comm_init_rank_config = c"ncclCommInitRankConfig"
        (*mut Comm, c_int, UniqueId, c_int, *mut c_void) -> NcclResult;
    /// `ncclCommInitAll(comm*, ndev, devlist*)`
    comm_init_all = c"ncclCommInitAll"(*mut Comm, c_int, *const c_int) -> NcclResult;
    /// `ncclCommDestroy(comm)`
    comm_destroy = c"ncclCommDestroy"(Comm) -> NcclResult;
    /// `ncclCommAbort(comm)`
    comm_abort = c"ncclCommAbort"(Comm) -> NcclResult;
    /// `ncclCommGetAsyncError(comm, result*)`
    comm_get_async_error = c"ncclCommGetAsyncError"(Comm, *mut NcclResult) -> NcclResult;
    /// `ncclCommCount(comm, int*)`
    comm_count = c"ncclCommCount"(Comm, *mut c_int) -> NcclResult;
    /// `ncclCommUserRank(comm, int*)`
    comm_user_rank = c"ncclCommUserRank"(Comm, *mut c_int) -> NcclResult;
    /// `ncclAllReduce(send, recv, count, datatype, op, comm, stream)`
    all_reduce = c"ncclAllReduce"
        (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> NcclResult;
    /// `ncclAllGather(send, recv, count of one rank, datatype, comm, stream)`
    all_gather = c"ncclAllGather"
        (*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> NcclResult;
    /// `ncclReduceScatter(send, recv, count of one rank, datatype, op, comm, stream)`
    reduce_scatter = c"ncclReduceScatter"
        (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> NcclResult;
    /// `ncclBroadcast(send, recv, count, datatype, root, comm, stream)`
    broadcast = c"ncclBroadcast"
        (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> NcclResult;
    /// `ncclReduce(send, recv, count, datatype, op, root, comm, stream)`
    reduce = c"ncclReduce"
        (*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> NcclResult;
    /// `ncclGroupStart()`
    group_start = c"ncclGroupStart"() -> NcclResult;
    /// `ncclGroupEnd()`
    group_end = c"ncclGroupEnd"() -> NcclResult;
    /// `ncclGroupSimulateEnd(ncclSimInfo*)`, since 2.22.3 (works since 2.23.4).
    group_simulate_end = c"ncclGroupSimulateEnd"(*mut SimulationInfo) -> NcclResult;
    /// `ncclResetDebugInit()`: makes NCCL read `NCCL_DEBUG` and its like again.
    reset_debug_init = c"ncclResetDebugInit"() -> ();
}

/// Why a library could not be opened, or a call not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The loader refused it.
    Open {
        /// The library.
        path: PathBuf,
        /// What the loader said.
        why: String,
    },
    /// It has no such function.
    Missing {
        /// The C name.
        function: &'static str,
    },
    /// The call was made and failed.
    Call {
        /// The C name.
        function: &'static str,
        /// What it returned.
        result: NcclResult,
        /// What `ncclGetLastError` says, when it says something.
        detail: Option<String>,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, why } => write!(f, "cannot load {}: {why}", path.display()),
            Self::Missing { function } => {
                write!(f, "this libnccl has no function {function}; use a newer one")
            }
            Self::Call { function, result, detail: None } => write!(f, "{function}: {result}"),
            Self::Call { function, result, detail: Some(detail) } => {
                write!(f, "{function}: {result}: {detail}")
            }
        }
    }
}

impl std::error::Error for TableError {}

/// An open libnccl. It is never closed: NCCL starts threads that run its code.
#[derive(Debug)]
pub struct Library {
    handle: *mut c_void,
    functions: Functions,
}

// SAFETY: the handle is only a token for the loader, which locks for itself,
// and the functions of NCCL may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; a `Library` never changes after it was opened.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library at `path` with all its symbols bound, visible to
    /// nobody else.
    ///
    /// # Errors
    /// [`TableError::Open`] with the loader's words, [`TableError::Missing`]
    /// when it is no NCCL.
    ///
    /// # Safety
    /// Loading runs the library's constructors: the file must be one that the
    /// user chose to run, and a libnccl 2 if it has a function `ncclGetVersion`.
    pub unsafe fn open(path: &Path) -> Result<Self, TableError> {
        let refused = |why: String| TableError::Open { path: path.into(), why };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| refused("its path has a NUL byte".into()))?;
        // SAFETY: the name ends in NUL; the caller vouches for the constructors.
        let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns null or a string that stays until the
            // next call of this thread.
            let why = unsafe { text(dlerror()) };
            return Err(refused(why.unwrap_or_else(|| "the loader gave no reason".into())));
        }
        // SAFETY: the handle was just opened; the caller vouches for the types.
        let functions = unsafe { Functions::load(handle) };
        if functions.get_version.is_none() {
            // SAFETY: nothing of this library was kept.
            unsafe { dlclose(handle) };
            return Err(TableError::Missing { function: "ncclGetVersion" });
        }
        Ok(Self { handle, functions })
    }

    /// The loader's handle, for `dlsym`, `dlinfo` and the witness.
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// The raw functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The version code, such as 22707 for 2.27.7. Reads no setting.
    ///
    /// # Errors
    /// [`TableError::Call`].
    pub fn version_code(&self) -> Result<i32, TableError> {
        const NAME: &str = "ncclGetVersion";
        let call = self.functions.get_version.ok_or(TableError::Missing { function: NAME })?;
        let mut code = 0;
        // SAFETY: the function writes one int.
        self.check(NAME, unsafe { call(&mut code) })?;
        Ok(code)
    }

    /// Makes an id for a communicator: the call that makes NCCL read its
    /// settings on a machine without a GPU.
    ///
    /// # Errors
    /// [`TableError::Call`] (no usable network interface, for example).
    pub fn unique_id(&self) -> Result<UniqueId, TableError> {
        const NAME: &str = "ncclGetUniqueId";
        let call = self.functions.get_unique_id.ok_or(TableError::Missing { function: NAME })?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the function writes at most 128 bytes, the size of the type.
        self.check(NAME, unsafe { call(&mut id) })?;
        Ok(id)
    }

    /// Turns a result into an error that carries NCCL's own last words.
    ///
    /// # Errors
    /// [`TableError::Call`] for everything but `ncclSuccess`.
    pub fn check(&self, function: &'static str, result: NcclResult) -> Result<(), TableError> {
        result.ok().map_err(|result| {
            let detail = self.last_error().or_else(|| self.error_string(result));
            TableError::Call { function, result, detail }
        })
    }

    /// What `ncclGetErrorString` says about a result.
    pub fn error_string(&self, result: NcclResult) -> Option<String> {
        let call = self.functions.get_error_string?;
        // SAFETY: the function takes any integer and returns a static string.
        unsafe { text(call(result)) }
    }

    /// What `ncclGetLastError` says, when it says something.
    pub fn last_error(&self) -> Option<String> {
        let call = self.functions.get_last_error?;
        // SAFETY: NULL stands for no communicator; the string is NCCL's own.
        unsafe { text(call(std::ptr::null_mut())) }
    }
}

/// A C string as text; `None` for a null pointer and an empty string.
///
/// # Safety
/// `from` is null or points to a string that ends in NUL and does not change
/// during the call.
unsafe fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(from) }.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_print_their_name_or_their_number() {
        assert_eq!(NcclResult(5).to_string(), "ncclInvalidUsage (5)");
        assert!(NcclResult(-77).to_string().starts_with("result -77"));
        assert_eq!(NcclResult(77).ok(), Err(NcclResult(77)));
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_in_the_loaders_words() {
        // SAFETY: the loader refuses this file before it runs anything.
        let error = unsafe { Library::open(Path::new("/proc/self/status")) }.unwrap_err();
        assert!(error.to_string().starts_with("cannot load /proc/self/status: "), "{error}");
    }

    #[test]
    fn a_library_without_nccl_is_refused() {
        // SAFETY: libm is loaded anyway.
        let error = unsafe { Library::open(Path::new("libm.so.6")) }.unwrap_err();
        assert_eq!(error, TableError::Missing { function: "ncclGetVersion" });
    }
}
