//! Warnings of NCCL that the virtual node itself brings about: it keeps the
//! host's network out. They say nothing about the described machine.

const OURS: [&str; 3] = [
    "lib wrapper not initialized.",
    "Failed to initialize NET plugin IB",
    "RMA/Socket : rma_socket requires GDRCopy",
];

/// Whether a warning is one of these.
pub(super) fn is_ours(text: &str) -> bool {
    OURS.iter().any(|known| text.starts_with(known))
}
