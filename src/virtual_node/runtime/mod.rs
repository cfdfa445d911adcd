//! The CUDA runtime, driver and management functions of GPUs that do not
//! exist, put in the place of those inside a loaded libnccl of this process.
//! It uses nothing but `std`, so that it serves twice: as a module of our own
//! workers, and in a shared object for other processes that load libnccl.
//!
//! Each function is written after NVIDIA's documentation of its name. What is
//! not implemented answers "not supported" and is remembered by name
//! ([`missing`]): a wrong answer would be worse than none. No library of
//! NVIDIA's driver is loaded or imitated as a file.
//!
//! C calls these functions with the calling convention of x86-64 Linux, under
//! which arguments that a function does not declare are simply not read.

/// Lists which C name stands for which function here.
macro_rules! functions {
    ($($name:literal => $function:expr),* $(,)?) => {
        /// The function of this list that stands for a C name.
        pub(crate) fn find(name: &str) -> Option<*const ()> {
            Some(match name {
                $($name => $function as *const (),)*
                _ => return None,
            })
        }
    };
}

mod abi;
pub mod description;
mod device;
mod driver;
mod errors;
mod graph;
pub mod hardware;
mod imports;
mod ipc;
mod launch;
mod memory;
mod nvml;
mod patch;
mod shm;
mod state;
mod stream;
mod sys;
mod table;
mod timeline;
mod vmm;
mod waiting;

pub use abi::{Dim3, Out};
pub use description::{BadDescription, Description, Figures, Function, Gpu};
pub use device::set_device;
pub use errors::{missing, refusals};
pub use launch::{Launch, take_launches};
pub use memory::{free, malloc};
pub use patch::Redirected;

use crate::nccl::got;
use std::ffi::c_void;
use std::fmt;

/// Graph capture, for those who enqueue on the virtual node.
pub mod capture {
    pub use super::graph::{begin, destroy, destroy_instance, end, instantiate, launch_graph};
    pub use super::stream::{create, destroy as destroy_stream};
}

/// Why a virtual node could not be put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// Only x86-64 Linux with glibc is known here.
    Platform,
    /// This process has one.
    AlreadyInstalled,
    /// The description names no entries.
    NoEntries,
    /// An entry has no room for a jump.
    TooShort(String),
    /// The kernel, or a security module, forbids to change code in memory.
    Forbidden(String),
    /// No free address space near the library.
    NoRoom,
    /// The library's imports are not as expected.
    Imports(String),
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => f.write_str("a virtual node needs x86-64 Linux with glibc"),
            Self::AlreadyInstalled => f.write_str("this process already has a virtual node"),
            Self::NoEntries => {
                f.write_str("the library has no CUDA runtime that could be replaced")
            }
            Self::TooShort(name) => {
                write!(f, "{name} in this library is too short to be redirected")
            }
            Self::Forbidden(why) => write!(
                f,
                "this system forbids changing the library's code in memory ({why}); \
                 a security policy such as SELinux's execmod does that"
            ),
            Self::NoRoom => {
                f.write_str("there is no free address space within 1 GiB of the library")
            }
            Self::Imports(why) => write!(f, "cannot redirect the library's imports: {why}"),
        }
    }
}

impl std::error::Error for InstallError {}

/// Puts a virtual node in the place of the CUDA runtime in the library behind
/// `handle`, for the rest of this process's life.
///
/// # Errors
/// [`InstallError`]. After `Forbidden` or `Imports` the library must not be
/// used: a part of it may be redirected.
///
/// # Safety
/// `handle` came from `dlopen`, is the library that `node` was made from, is
/// never closed, and nothing has called or calls any function of it.
pub unsafe fn install(handle: *mut c_void, node: Description) -> Result<Redirected, InstallError> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        return Err(InstallError::Platform);
    }
    // SAFETY: the caller's promise.
    let base = unsafe { got::base(handle) };
    let base = base.map_err(|error| InstallError::Imports(error.to_string()))?;
    launch::set_base(base);
    if !state::set(node) {
        return Err(InstallError::AlreadyInstalled);
    }
    sys::raise_file_limit();
    // SAFETY: the caller's promise.
    unsafe { imports::redirect(handle) }?;
    // SAFETY: as above.
    unsafe { patch::redirect(base, &state::node().entries) }
}
