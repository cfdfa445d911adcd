//! Which function of ours stands for which name of the CUDA runtime. Each
//! module lists its own; here is only the order of asking.

use super::{device, driver, errors, graph, ipc, launch, memory, stream};

/// Suffixes of variants for the per-thread default stream, which need no other
/// function here: no stream ever has work left.
const VARIANTS: [&str; 2] = ["_ptsz", "_ptds"];

/// The function that stands for a symbol.
pub(super) fn find(name: &str) -> Option<*const ()> {
    let plain = VARIANTS.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    let lists = [
        device::find,
        memory::find,
        ipc::find,
        stream::find,
        graph::find,
        launch::find,
        driver::find_runtime,
        errors::find,
        find_support,
    ];
    lists.iter().find_map(|find| find(plain))
}

mod support {
    use super::{init_module, unregister};
    functions! {
        "__cudaInitModule" => init_module,
        "__cudaUnregisterFatBinary" => unregister,
    }
}
use support::find as find_support;

/// Modules need no initialisation: kernels are never executed.
extern "C" fn init_module(_module: usize) -> u8 {
    1
}

/// At the end of the process NVIDIA's runtime, which was never initialised,
/// must not be asked to clean up.
extern "C" fn unregister(_module: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that NCCL 2.18.3 to 2.32.3 call or ask for.
    const RUNTIME: &str = "cudaDeviceCanAccessPeer cudaDeviceDisablePeerAccess cudaDeviceEnablePeerAccess \
         cudaDeviceGetAttribute cudaDeviceGetByPCIBusId cudaDeviceGetPCIBusId \
         cudaDeviceSetLimit cudaDeviceSynchronize cudaDriverGetVersion cudaRuntimeGetVersion \
         cudaGetDevice cudaSetDevice cudaGetDeviceCount cudaGetDeviceProperties \
         cudaGetDeviceProperties_v2 cudaGetErrorString cudaGetLastError cudaMalloc cudaFree \
         cudaFreeAsync cudaFreeHost cudaHostAlloc cudaHostGetDevicePointer cudaHostRegister \
         cudaHostUnregister cudaIpcGetMemHandle cudaIpcOpenMemHandle cudaIpcCloseMemHandle \
         cudaMallocFromPoolAsync cudaMemPoolCreate cudaMemPoolDestroy cudaMemPoolSetAttribute \
         cudaMemcpy cudaMemcpyAsync cudaMemcpyBatchAsync cudaMemset cudaMemsetAsync \
         cudaPointerGetAttributes cudaStreamCreate cudaStreamCreateWithFlags cudaStreamDestroy \
         cudaStreamGetId cudaStreamIsCapturing cudaStreamSynchronize cudaStreamWaitEvent \
         cudaEventCreate cudaEventCreateWithFlags cudaEventDestroy cudaEventQuery \
         cudaEventRecord cudaEventSynchronize cudaThreadExchangeStreamCaptureMode \
         cudaLaunchHostFunc cudaFuncGetAttributes cudaFuncSetAttribute cudaGetFuncBySymbol \
         cudaLaunchKernel cudaLaunchKernelExC cudaGetDriverEntryPoint \
         cudaGetDriverEntryPointByVersion cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v2 \
         cudaStreamGetCaptureInfo_v3 cudaStreamUpdateCaptureDependencies \
         cudaStreamUpdateCaptureDependencies_v2 cudaGraphAddDependencies \
         cudaGraphAddDependencies_v2 cudaGraphAddEventRecordNode cudaGraphAddEventWaitNode \
         cudaGraphAddHostNode cudaGraphAddKernelNode cudaGraphRetainUserObject \
         cudaUserObjectCreate";
    const DRIVER: &str = "cuCtxGetCurrent cuCtxGetDevice cuDeviceGet cuDeviceGetAttribute cuDeviceGetUuid \
         cuLaunchKernelEx cuMemAddressReserve cuMemAddressFree cuMemCreate \
         cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemGetAddressRange \
         cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemMap \
         cuMemUnmap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess \
         cuMulticastAddDevice cuMulticastBindMem cuMulticastBindAddr cuMulticastCreate \
         cuMulticastGetGranularity cuMulticastUnbind cuPointerGetAttribute cuCtxCreate \
         cuCtxDestroy cuCtxSetCurrent cuDeviceGetCount cuDevicePrimaryCtxRetain \
         cuDevicePrimaryCtxRelease cuInit cuGetErrorName cuGetErrorString cuLaunchKernel \
         cuMemGetHandleForAddressRange cuPointerSetAttribute cuStreamWriteValue32 \
         cuStreamWriteValue64";

    #[test]
    fn all_that_nccl_calls_is_there() {
        let lost: Vec<&str> = RUNTIME.split(' ').filter(|name| find(name).is_none()).collect();
        assert!(lost.is_empty(), "{lost:?}");
        let lost: Vec<&str> =
            DRIVER.split(' ').filter(|name| driver::find(name).is_none()).collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert!(driver::find("cuMemCreate_v2").is_some() && driver::find("cuFoo").is_none());
        for never in ["cudaGetExportTable", "cudaFoo"] {
            assert!(find(never).is_none(), "{never} stays a stub");
        }
    }
}
