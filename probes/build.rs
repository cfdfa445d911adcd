//! Compiles the shared object for Python children with the same compiler and
//! puts it into OUT_DIR, where the binary embeds it. A nested Cargo.toml would
//! be dropped by `cargo package`; a call of $RUSTC is not.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The roots, and the files that the binary or its tests embed.
const ROOTS: [(&str, &str); 2] =
    [("pyprobe", "libnccldiag_probe.so"), ("profiler", "libnccldiag_profiler.so")];

fn main() {
    // All that the root includes by `#[path]`.
    for source in [
        "probes",
        "src/nccl/got.rs",
        "src/nccl/table.rs",
        "src/nccl/witness.rs",
        "src/virtual_node/runtime",
    ] {
        println!("cargo::rerun-if-changed={source}");
    }
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        println!(
            "cargo::error=nccldiag needs a glibc target (such as x86_64-unknown-linux-gnu): \
             it loads NVIDIA's libnccl.so.2, which exists for glibc only"
        );
        return;
    }
    for (root, file) in ROOTS {
        compile(root, file);
    }
}

fn compile(root: &str, file: &str) {
    let source = format!("probes/{root}.rs");
    let out = PathBuf::from(variable("OUT_DIR")).join(file);
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-name", root, "--crate-type", "cdylib"])
        .args(["--target", &variable("TARGET")])
        .args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols"])
        .args([&source, "-o"])
        .arg(&out);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    match rustc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("cargo::error=compile {source}: rustc ended with {status}"),
        Err(error) => println!("cargo::error=compile {source}: start rustc: {error}"),
    }
}

/// A variable that cargo always sets for a build script.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
