//! Why a virtual node gives no answer, as an error that says what to do.

use super::describe::DescribeError;
use std::io;
use std::time::Duration;

/// Why a virtual node gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The library cannot be used.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// More ranks than GPUs, or none.
    #[error("{ranks} ranks on a topology of {gpus} GPUs")]
    Ranks {
        /// How many were asked for.
        ranks: usize,
        /// How many there are.
        gpus: usize,
    },
    /// A variable that the node needs for itself.
    #[error("{variable} steers NCCL's log, which the virtual node has to read: leave it out")]
    Log {
        /// The variable.
        variable: String,
    },
    /// The system refused something.
    #[error("virtual node: {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// A rank reports an error, mostly NCCL's own.
    #[error("virtual rank {rank}: {step}: {why}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// What it says.
        why: String,
    },
    /// NCCL called something that the virtual node does not have.
    #[error(
        "NCCL called {names}, which the virtual node does not implement: its answer would not be \
         that of a real machine"
    )]
    Missing {
        /// The functions.
        names: String,
    },
    /// A rank was brought down by what its code did.
    #[error(
        "virtual rank {rank} got {signal} during {step}: {} crashed{hint}; the same settings may \
         end the ranks of a real job",
        culprit(signal)
    )]
    Crashed {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// Such as `SIGFPE`.
        signal: &'static str,
        /// NCCL's last warning.
        hint: String,
    },
    /// A rank ended by itself, or somebody ended it.
    #[error("virtual rank {rank} ended during {step} ({how}){hint}")]
    Ended {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// Its exit.
        how: String,
        /// NCCL's last warning.
        hint: String,
    },
    /// The time is over.
    #[error("virtual node: {step} had not ended after {limit:?}{hint}")]
    TooLate {
        /// The step.
        step: &'static str,
        /// The limit.
        limit: Duration,
        /// NCCL's last warning.
        hint: String,
    },
}

/// An error of the system, with what was tried.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| NodeError::System { what, error }
}

/// Whose fault a signal is. Nothing of ours divides integers unchecked; what
/// reads a wrong address may be NCCL or what answers it.
fn culprit(signal: &str) -> &'static str {
    if signal == "SIGFPE" { "NCCL itself" } else { "NCCL, or the virtual node below it," }
}
