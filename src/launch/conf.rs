//! The conf family: NCCL's own files. NCCL itself puts their lines into the
//! process's environment at first use, without overwriting what is there.

use super::{CONF, LaunchPath, SHELL, Stage, Top};
use crate::model::Family;
use anyhow::{Context, Result};
use std::path::Path;

/// The paths of this family.
pub const PATHS: &[LaunchPath] = &[
    LaunchPath {
        id: "nccl-conf-file",
        family: Family::Conf,
        about: "a file named by NCCL_CONF_FILE (from NCCL 2.23)",
        launches: &[&[CONF]],
        needs: &[],
        start: by_variable,
        cause: "NCCL sets the lines of its conf file inside the process at its first call; \
                versions before 2.23 ignore NCCL_CONF_FILE",
        cure: "with NCCL before 2.23 use ~/.nccl.conf or /etc/nccl.conf, or set the variable \
               in the environment",
    },
    LaunchPath {
        id: "nccl-conf-home",
        family: Family::Conf,
        about: "$HOME/.nccl.conf, with HOME changed",
        launches: &[&[CONF]],
        needs: &[],
        start: by_home,
        cause: "up to NCCL 2.29 ~/.nccl.conf is looked up in the home directory of the passwd \
                entry and $HOME is ignored; from 2.30 $HOME counts",
        cure: "name the file with NCCL_CONF_FILE (from NCCL 2.23), or put it where this \
               version looks",
    },
    LaunchPath {
        id: "nccl-conf-vs-env",
        family: Family::Conf,
        about: "a conf file against the environment",
        launches: &[&[CONF, SHELL]],
        needs: &[],
        start: by_variable,
        cause: "NCCL takes a line of a conf file only when the environment does not have the \
                variable",
        cure: "unset the variable in the environment, or change it there",
    },
];

fn by_variable(stage: &Stage) -> Result<Top> {
    let path = stage.folder.join("nccl.conf");
    write_conf(stage, &path)?;
    Ok(Top::new(stage.native()).env("NCCL_CONF_FILE", path))
}

fn by_home(stage: &Stage) -> Result<Top> {
    write_conf(stage, &stage.home.join(".nccl.conf"))?;
    Ok(Top { hide_home_conf: false, ..Top::new(stage.native()) })
}

/// One `NAME=VALUE` a line; NCCL knows no quoting.
fn write_conf(stage: &Stage, path: &Path) -> Result<()> {
    let mut text = Vec::new();
    for (name, value) in stage.sets(CONF) {
        if value.contains(&b'\n') {
            anyhow::bail!("a line of nccl.conf cannot hold a value with a newline ({name})");
        }
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(&value);
        text.push(b'\n');
    }
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
