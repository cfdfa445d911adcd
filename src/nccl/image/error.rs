//! Why a file could not be read as a libnccl: one variant for each thing that
//! a caller or a reader would do differently about it.
//!
//! As in all errors of `nccl`, the cause is part of the sentence and not a
//! `source()`: many of these end in reports as plain text.

use std::io;
use std::path::PathBuf;

/// Why [`Image::open`](super::Image::open) gave nothing. Each message names the
/// file, the reason and, where there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file could not be opened or looked at.
    #[error("cannot open {}: {error}", path.display())]
    Open {
        /// The file as the caller named it.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// A directory, a FIFO, a socket or a device.
    #[error("{} is {kind}, not a library; name the file libnccl.so.2 itself", path.display())]
    NotAFile {
        /// The file as the caller named it.
        path: PathBuf,
        /// What it is, with its article.
        kind: &'static str,
    },
    /// The file does not start like a 64-bit ELF file.
    #[error("{} is not a 64-bit ELF file ({why}); name a libnccl.so.2", path.display())]
    NotElf {
        /// The file as the caller named it.
        path: PathBuf,
        /// What is there instead.
        why: &'static str,
    },
    /// An ELF file for another processor.
    #[error(
        "{} is built for {machine}, and this tool reads x86-64 libraries only; \
         look for the x86-64 package", path.display()
    )]
    OtherMachine {
        /// The file as the caller named it.
        path: PathBuf,
        /// The processor, by name where it is a well-known one.
        machine: String,
    },
    /// The file contradicts itself or ends too early.
    #[error(
        "{} is damaged: {what}; fetch it again (a download or a copy may have been cut off)",
        path.display()
    )]
    Damaged {
        /// The file as the caller named it.
        path: PathBuf,
        /// Which part is wrong.
        what: String,
    },
    /// A sound ELF file without NCCL's banner.
    #[error(
        "{} holds no text \"NCCL version ...\", so it is not a libnccl; \
         look for the file libnccl.so.2", path.display()
    )]
    NotNccl {
        /// The file as the caller named it.
        path: PathBuf,
    },
}
