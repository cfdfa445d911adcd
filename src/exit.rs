//! The documented exit codes.

use std::process::ExitCode;

/// How a command ended. A signal that interrupts a run gives 128 plus its
/// number instead, as shells do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ran.
    Ran = 0,
    /// It ran, and there are findings that `--fail-on` asks for.
    Findings = 1,
    /// The command line was wrong; nothing was run.
    Usage = 2,
    /// It could not run.
    CouldNotRun = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error that is the command line's fault.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
