//! What is worth knowing about this machine before anything is started: what
//! the test cannot keep out, and what it removes.

use crate::model::{Code, Finding};
use crate::nccl::surroundings;
use std::path::Path;

/// Findings about the caller's environment and files.
pub fn remarks() -> Vec<Finding> {
    let mut list = Vec::new();
    let removed: Vec<String> =
        surroundings::settings().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    if !removed.is_empty() {
        let message = "these variables of your shell were removed before the test";
        let fix = "give one with -e NAME=VALUE to test it";
        list.push(Finding::new(Code::RemovedFromTest, message.into(), fix, removed));
    }
    let files: Vec<String> = conf_files().filter(|p| Path::new(p).exists()).collect();
    if !files.is_empty() {
        let message = "NCCL may take settings from these files in every process; ~/.nccl.conf is \
                       kept out of the test from NCCL 2.23 on, /etc/nccl.conf never";
        let fix = "look into them before you believe a default";
        list.push(Finding::new(Code::ConfFilePresent, message.into(), fix, files));
    }
    list
}

/// The files that NCCL reads besides those of the test: the home directory is
/// that of the passwd entry up to 2.29.7.
fn conf_files() -> impl Iterator<Item = String> {
    let passwd = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let home = passwd.map(|user| user.dir.join(".nccl.conf").display().to_string());
    ["/etc/nccl.conf".to_owned()].into_iter().chain(home)
}
