//! The exec family: system calls and libc functions that start a child.

use super::{
    BOTH, INHERITS, LAUNCHER, LaunchPath, PARENT, SECOND_LAUNCHER, SHELL, Set, Stage, Top,
};
use crate::model::Family;
use crate::probes::native;

const LISTED: &[&[Set]] = &[&[SHELL], &[PARENT], &[LAUNCHER]];

const fn path(
    id: &'static str,
    about: &'static str,
    launches: &'static [&'static [Set]],
    [cause, cure]: [&'static str; 2],
) -> LaunchPath {
    LaunchPath { id, family: Family::Exec, about, launches, needs: &[], start, cause, cure }
}

const OWN_LIST: [&str; 2] = [
    "the parent gave the child an environment list of its own, so nothing else is inherited",
    "add the variable to the list that is passed to execve or posix_spawn",
];

/// The paths of this family.
pub const PATHS: &[LaunchPath] = &[
    path("fork-exec", "fork, then execv", BOTH, INHERITS),
    path(
        "fork-only",
        "fork without exec",
        BOTH,
        [
            "a forked child that never calls exec keeps its ancestor's exec block",
            "judge such a process by its live environ, not by /proc/PID/environ",
        ],
    ),
    path("vfork-exec", "vfork, then execv", BOTH, INHERITS),
    path("posix-spawn", "posix_spawn with environ", BOTH, INHERITS),
    path("posix-spawn-own-env", "posix_spawn with a list of its own", LISTED, OWN_LIST),
    path("exec-own-env", "execve with a list of its own", LISTED, OWN_LIST),
    path(
        "exec-own-env-duplicate",
        "execve with a list that names a variable twice",
        &[&[LAUNCHER, SECOND_LAUNCHER]],
        [
            "the environment list has the variable twice, and getenv takes the first",
            "replace the entry in the list instead of appending a second one",
        ],
    ),
    path(
        "clearenv-exec",
        "clearenv, then execv",
        BOTH,
        [
            "the parent emptied its environment before exec",
            "set the variable after clearenv, or stop clearing the environment",
        ],
    ),
    path("system", "system(3)", BOTH, INHERITS),
    path("popen", "popen(3)", BOTH, INHERITS),
];

fn start(stage: &Stage) -> anyhow::Result<Top> {
    Ok(Top::new([
        stage.exe.as_os_str(),
        native::PARENT.as_ref(),
        stage.id.as_ref(),
        stage.folder.as_os_str(),
    ]))
}
