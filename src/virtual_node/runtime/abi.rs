//! How CUDA's C interface hands values over: pointers to results, pointers to
//! parameters, and the few structures whose layout is documented in the
//! headers of CUDA 12 and 13 (they agree unless said otherwise).

use super::errors::{Error, INVALID_VALUE};
use std::ffi::c_void;

/// Where a C caller wants a result. Only C callers make one, so that the one
/// unsafe write is here and not in each function.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// A place in Rust, for calls that do not come from C.
    pub fn to(place: &mut T) -> Self {
        Self(place)
    }

    /// Writes the result.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(super) fn set(self, value: T) -> Result<(), Error> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA's contract for such an argument is that it is null or
        // points to room for a T. Alignment is not relied on.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result when the caller wants it.
    pub(super) fn offer(self, value: T) {
        if !self.0.is_null() {
            // It was just checked to be not null.
            let _ = self.set(value);
        }
    }
}

/// A parameter that a C caller passes by pointer.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(super) fn get(&self) -> Result<T, Error> {
        self.at(0)
    }

    /// One value of an array, whose length the caller passed besides.
    pub(super) fn at(&self, index: usize) -> Result<T, Error> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA's contract for such an argument is that it is null or
        // points to as many values of T as the caller said.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// Writes `bytes` zero bytes and then each value at its offset: for structures
/// of which only some members are known.
pub(super) fn fill(to: *mut c_void, bytes: usize, values: &[(usize, &[u8])]) -> Result<(), Error> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the callers pass the size of the structure that the C caller
    // gave room for.
    let all = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
    all.fill(0);
    for (at, value) in values {
        if let Some(room) = all.get_mut(*at..*at + value.len()) {
            room.copy_from_slice(value);
        }
    }
    Ok(())
}

/// `dim3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dim3(pub u32, pub u32, pub u32);

/// `CUuuid`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Uuid(pub [u8; 16]);

/// `cudaIpcMemHandle_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcHandle(pub [u8; 64]);

/// `cudaLaunchConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    pub(super) shared_bytes: usize,
    pub(super) stream: usize,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) attribute_count: u32,
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverLaunchConfig {
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    pub(super) shared_bytes: u32,
    pub(super) stream: usize,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) attribute_count: u32,
}

/// `cudaLaunchAttribute`, `CUlaunchAttribute`: the value is a union of 64 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchAttribute {
    pub(super) id: u32,
    pub(super) padding: u32,
    pub(super) value: [u32; 16],
}

/// `cudaKernelNodeParams`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelNode {
    pub(super) function: usize,
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    pub(super) shared_bytes: u32,
    pub(super) arguments: usize,
    pub(super) extra: usize,
}

/// `cudaHostNodeParams`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostNode {
    pub(super) function: Option<HostFunction>,
    pub(super) data: usize,
}

/// `cudaHostFn_t`.
pub type HostFunction = extern "C" fn(usize);

/// `CUmemLocation`: type 1 is a device, 3 a NUMA node of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Location {
    pub(super) kind: i32,
    pub(super) id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AllocationProperties {
    pub(super) kind: i32,
    pub(super) handle_types: i32,
    pub(super) location: Location,
    pub(super) windows: usize,
    pub(super) flags: [u8; 8],
}

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MulticastProperties {
    pub(super) devices: u32,
    pub(super) bytes: usize,
    pub(super) handle_types: u64,
    pub(super) flags: u64,
}

/// `nvmlFieldValue_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FieldValue {
    pub(super) field: u32,
    pub(super) scope: u32,
    pub(super) timestamp: i64,
    pub(super) latency: i64,
    pub(super) value_type: u32,
    pub(super) result: i32,
    pub(super) value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that a C program with the headers of CUDA 12.9 and 13.0 prints.
    #[test]
    fn structures_have_the_sizes_of_the_headers() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(size_of::<DriverLaunchConfig>(), 56);
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(size_of::<KernelNode>(), 56);
        assert_eq!(size_of::<HostNode>(), 16);
        assert_eq!(size_of::<AllocationProperties>(), 32);
        assert_eq!(size_of::<MulticastProperties>(), 32);
        assert_eq!(size_of::<FieldValue>(), 40);
    }

    #[test]
    fn null_pointers_are_an_error_not_a_crash() {
        assert_eq!(Out::<u32>(std::ptr::null_mut()).set(1), Err(INVALID_VALUE));
        assert_eq!(In::<u32>(std::ptr::null()).get(), Err(INVALID_VALUE));
        assert_eq!(fill(std::ptr::null_mut(), 8, &[]), Err(INVALID_VALUE));
    }
}
