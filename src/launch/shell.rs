//! The shell family: shells and the common tools between a shell and a worker.

use super::{INHERITS, LAUNCHER, LaunchPath, Need, SHELL, Set, Stage, Top};
use crate::model::Family;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

const SHELL_ONLY: &[&[Set]] = &[&[SHELL]];
const SHELL_AND_MAKEFILE: &[&[Set]] = &[&[SHELL], &[LAUNCHER], &[SHELL, LAUNCHER]];

const fn path(
    id: &'static str,
    about: &'static str,
    needs: &'static [Need],
    start: fn(&Stage) -> Result<Top>,
    [cause, cure]: [&'static str; 2],
) -> LaunchPath {
    LaunchPath { id, family: Family::Shell, about, launches: SHELL_ONLY, needs, start, cause, cure }
}

/// The paths of this family.
pub const PATHS: &[LaunchPath] = &[
    path(
        "sh-c",
        "sh -c",
        &[Need::Tool("sh")],
        |s| wrapped(s, "sh -c '\"$@\"' sh \"$@\""),
        INHERITS,
    ),
    path(
        "bash-c",
        "bash -c",
        &[Need::Tool("bash")],
        |s| wrapped(s, "bash -c '\"$@\"' bash \"$@\""),
        INHERITS,
    ),
    path(
        "bash-lc",
        "bash -lc, a login shell",
        &[Need::Tool("bash")],
        |s| wrapped(s, "bash -lc '\"$@\"' bash \"$@\""),
        [
            "a login shell runs /etc/profile and the user's profile, which may set the variable anew",
            "set the variable in the command itself, after the profiles have run",
        ],
    ),
    path(
        "env-i",
        "env -i",
        &[Need::Tool("env")],
        |s| wrapped(s, "env -i \"$@\""),
        [
            "env -i starts the command with an empty environment",
            "name the variable on the command line: env -i NAME=VALUE command",
        ],
    ),
    path(
        "env-u",
        "env -u NAME",
        &[Need::Tool("env")],
        env_u,
        ["env -u removes the variable", "drop the -u option"],
    ),
    path(
        "unexported",
        "a shell variable that is not exported",
        &[],
        |s| Ok(Top { export: false, ..wrapped(s, "\"$@\"")? }),
        [
            "a shell variable without export stays inside the shell",
            "write export NAME=VALUE, or put NAME=VALUE in front of the command",
        ],
    ),
    path(
        "xargs",
        "xargs",
        &[Need::Tool("xargs")],
        |s| wrapped(s, "echo | xargs -- \"$@\""),
        INHERITS,
    ),
    LaunchPath {
        launches: SHELL_AND_MAKEFILE,
        ..path(
            "make-plain",
            "make, with a plain NAME = VALUE line",
            &[Need::Tool("make")],
            |s| makefile(s, ""),
            [
                "a plain assignment in a Makefile is not exported, but replaces a value \
                 that make inherited",
                "write export NAME = VALUE in the Makefile, or remove the line",
            ],
        )
    },
    LaunchPath {
        launches: SHELL_AND_MAKEFILE,
        ..path(
            "make-export",
            "make, with an export NAME = VALUE line",
            &[Need::Tool("make")],
            |s| makefile(s, "export "),
            [
                "an assignment in a Makefile replaces a value that make inherited",
                "write NAME ?= VALUE, or give the value on make's command line",
            ],
        )
    },
    path("nohup", "nohup", &[Need::Tool("nohup")], |s| wrapped(s, "nohup \"$@\""), INHERITS),
    path("setsid", "setsid", &[Need::Tool("setsid")], |s| wrapped(s, "setsid \"$@\""), INHERITS),
    path(
        "timeout",
        "timeout",
        &[Need::Tool("timeout")],
        |s| wrapped(s, "timeout 600 \"$@\""),
        INHERITS,
    ),
];

/// The native probe behind one line of shell. The line is not the script's
/// last command: a shell may replace itself by the last one, and then tools
/// such as setsid behave differently.
fn wrapped(stage: &Stage, line: &str) -> Result<Top> {
    Ok(Top::new(stage.native()).script(format!("{line}\nexit $?\n")))
}

fn env_u(stage: &Stage) -> Result<Top> {
    let mut line = String::from("env");
    for name in stage.values.names() {
        write!(line, " -u {}", shlex::try_quote(name)?)?;
    }
    wrapped(stage, &format!("{line} \"$@\""))
}

/// Writes a Makefile that assigns the launcher's values, when this launch has
/// them, and runs the probe.
fn makefile(stage: &Stage, prefix: &str) -> Result<Top> {
    let mut text = Vec::new();
    for (name, value) in stage.sets(LAUNCHER) {
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b" = ");
        text.extend_from_slice(&assigned(&value)?);
        text.push(b'\n');
    }
    text.extend_from_slice(b"all:\n\t@");
    let words = stage.native();
    let words = words.iter().map(|w| shlex::bytes::try_quote(w.as_bytes()));
    let line = words.collect::<Result<Vec<_>, _>>()?.join(&b' ');
    text.extend_from_slice(&recipe(&line)?);
    text.push(b'\n');
    let path = stage.folder.join("Makefile");
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(Top::new(["make".as_ref(), "-s".as_ref(), "-f".as_ref(), path.as_os_str()]))
}

/// A value as make's assignment takes it. Blanks at its ends, a newline or a
/// backslash it would not take as they are.
fn assigned(value: &[u8]) -> Result<Vec<u8>> {
    if value.trim_ascii() != value || value.contains(&b'\n') || value.contains(&b'\\') {
        bail!("a line of a Makefile cannot hold this value: blanks at its ends, a newline or \\");
    }
    Ok(value.iter().flat_map(|byte| escaped(*byte, b"$#")).collect())
}

/// A line of shell as make's recipe takes it.
fn recipe(line: &[u8]) -> Result<Vec<u8>> {
    if line.contains(&b'\n') {
        bail!("a line of a Makefile cannot hold a path with a newline");
    }
    Ok(line.iter().flat_map(|byte| escaped(*byte, b"$")).collect())
}

fn escaped(byte: u8, special: &[u8]) -> Vec<u8> {
    match byte {
        b'$' => b"$$".to_vec(),
        other if special.contains(&other) => vec![b'\\', other],
        other => vec![other],
    }
}
