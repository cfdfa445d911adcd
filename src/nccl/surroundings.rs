//! NCCL's variables in the environment that this program was started with.
//! They steer what is started from here, unless they are taken out.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

/// Whether a variable is named like NCCL's own.
pub fn is_setting(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"NCCL_")
}

/// All that are set here, in the order of the environment.
pub fn settings() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_setting(name))
}

/// Keeps them from a command that inherits the rest.
pub fn keep_from(command: &mut Command) {
    for (name, _) in settings() {
        command.env_remove(name);
    }
}
