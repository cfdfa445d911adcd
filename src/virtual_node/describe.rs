//! Puts together what the runtime is told: the entries of one libnccl, the GPUs
//! of one topology, the figures of one model. Nothing is loaded here.

use super::models::Model;
use super::runtime::{Description, Figures, Function, Gpu};
use super::topology::Topology;
use crate::nccl::image::{Image, ImageError, functions};
use std::path::{Path, PathBuf};

/// Functions of the compiler's support library that take part.
const SUPPORT: [&str; 6] = [
    "__cudaGetKernel",
    "__cudaInitModule",
    "__cudaLaunchKernel",
    "__cudaPopCallConfiguration",
    "__cudaPushCallConfiguration",
    "__cudaUnregisterFatBinary",
];

/// Has a suffix in CUDA 12 only.
const TWELVE: &str = "cudaGetDeviceProperties_v2";

/// Why a library cannot run on a virtual node.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// The library cannot be read, is for another processor, or is no NCCL.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It was stripped.
    #[error(
        "{} has no symbol table (it was stripped, as some distributions do), so its CUDA runtime \
         cannot be found; take NVIDIA's wheel: --nccl pip:VERSION",
        path.display()
    )]
    Stripped {
        /// The library.
        path: PathBuf,
    },
    /// It has symbols, but no CUDA runtime inside.
    #[error(
        "{} contains no CUDA runtime (it uses libcudart.so); take NVIDIA's wheel: \
         --nccl pip:VERSION",
        path.display()
    )]
    NoRuntime {
        /// The library.
        path: PathBuf,
    },
}

/// The driver of a machine whose driver is not known: the newest that CUDA 12
/// has (12.9), or that of the library's own runtime if that is newer. NCCL turns
/// on some things by it (host memory by handles from 12.6 on).
const DRIVER: i32 = 12090;

/// Describes the node on which the library at `path` is to run. `driver` is a
/// CUDA driver version such as 12040, when it is known.
///
/// # Errors
/// [`DescribeError`].
pub fn describe(
    path: &Path,
    topology: &Topology,
    model: &Model,
    driver: Option<i32>,
) -> Result<Description, DescribeError> {
    let image = Image::open(path)?;
    let all = functions(path, |name| is_entry(name) || is_kernel(name))?;
    let all = all.ok_or_else(|| DescribeError::Stripped { path: path.into() })?;
    let all = all.into_iter().map(|f| Function { offset: f.vaddr, size: f.size, name: f.name });
    let (entries, kernels): (Vec<_>, Vec<_>) = all.partition(|f| is_entry(&f.name));
    if !entries.iter().any(|entry| entry.name == "cudaGetDeviceCount") {
        return Err(DescribeError::NoRuntime { path: path.into() });
    }
    let twelve = entries.iter().any(|entry| entry.name == TWELVE);
    let runtime = runtime_code(image.cuda.as_deref(), twelve);
    Ok(Description {
        runtime,
        driver: driver.unwrap_or(runtime.max(DRIVER)),
        model: model.name.clone(),
        figures: Figures {
            multicast: model.figures.multicast && topology.switched(),
            ..model.figures
        },
        gpus: topology
            .gpus
            .iter()
            .map(|gpu| Gpu { bus: gpu.bus.clone(), links: gpu.links.unwrap_or(model.links) })
            .collect(),
        entries,
        kernels,
    })
}

/// A public function of the CUDA runtime, or one that its compiler support needs.
fn is_entry(name: &str) -> bool {
    let public = name.strip_prefix("cuda").and_then(|rest| rest.chars().next());
    public.is_some_and(|letter| letter.is_ascii_uppercase()) || SUPPORT.contains(&name)
}

/// A kernel of NCCL: `ncclDevKernel_...`, `ncclSymkDevKernel_...`, up to 2.18
/// `ncclKernel_...`.
fn is_kernel(name: &str) -> bool {
    let kernel = ["DevKernel_", "ncclKernel_"].iter().any(|part| name.contains(part));
    kernel && name.starts_with("_Z") && !name.contains("__device_stub")
}

/// `12.9` as 12090. NCCL's banner names the toolkit; where it does not, the
/// first version with these names counts.
fn runtime_code(cuda: Option<&str>, twelve: bool) -> i32 {
    let parts = cuda.and_then(|text| text.split_once('.'));
    let code = parts.and_then(|(major, minor)| {
        Some(
            major.parse::<i32>().ok()?.checked_mul(1000)?
                + minor.parse::<i32>().ok()?.checked_mul(10)?,
        )
    });
    match code {
        Some(code @ 12000..13000) if twelve => code,
        Some(code @ 13000..14000) if !twelve => code,
        _ if twelve => 12000,
        _ => 13000,
    }
}
