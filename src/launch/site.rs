//! The site family: Python files that run at interpreter start-up and are
//! often used to set NCCL variables.

use super::{LaunchPath, Need, SECOND_SITE, SHELL, SITE, Set, Stage, Top};
use crate::model::Family;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const SITE_ALONE: &[&[Set]] = &[&[SITE]];
const SITE_AND_SHELL: &[&[Set]] = &[&[SITE], &[SHELL, SITE]];

const fn path(
    id: &'static str,
    about: &'static str,
    start: fn(&Stage) -> Result<Top>,
    [cause, cure]: [&'static str; 2],
) -> LaunchPath {
    LaunchPath {
        id,
        family: Family::Site,
        about,
        launches: SITE_ALONE,
        needs: &[Need::Python],
        start,
        cause,
        cure,
    }
}

/// Cause and cure where a site file does run.
pub(super) const RUNS_AT_START: [&str; 2] = [
    "a site file runs inside each Python process at its start and assigns over what exec delivered",
    "use os.environ.setdefault in the site file, or remove the line",
];

/// The paths of this family.
pub const PATHS: &[LaunchPath] = &[
    LaunchPath {
        launches: SITE_AND_SHELL,
        ..path(
            "py-site-pythonpath",
            "sitecustomize.py on PYTHONPATH",
            |s| on_pythonpath(s, "self"),
            RUNS_AT_START,
        )
    },
    path(
        "py-site-child",
        "a program started by a Python that has a sitecustomize.py",
        |s| on_pythonpath(s, "py-subprocess"),
        RUNS_AT_START,
    ),
    LaunchPath {
        launches: SITE_AND_SHELL,
        ..path(
            "py-site-venv",
            "sitecustomize.py in a venv's site-packages",
            |s| in_venv(s, "sitecustomize.py", None),
            RUNS_AT_START,
        )
    },
    path(
        "py-site-venv-isolated",
        "the same with python -I",
        |s| in_venv(s, "sitecustomize.py", Some("-I")),
        RUNS_AT_START,
    ),
    path(
        "py-site-isolated",
        "sitecustomize.py on PYTHONPATH, python -I",
        |s| with_flag(on_pythonpath(s, "self")?, "-I"),
        [
            "python -I (and -E) ignores PYTHONPATH, so the site file is not found",
            "put the file into the site-packages of the venv, or set the variable before Python \
             starts",
        ],
    ),
    path(
        "py-site-S",
        "sitecustomize.py on PYTHONPATH, python -S",
        |s| with_flag(on_pythonpath(s, "self")?, "-S"),
        ["python -S skips every site file", "set the variable before Python starts"],
    ),
    path(
        "py-site-cwd",
        "sitecustomize.py in the working directory",
        in_cwd,
        [
            "Python looks for sitecustomize before the script's or the working directory is on \
             sys.path",
            "put the file into site-packages or a directory on PYTHONPATH",
        ],
    ),
    LaunchPath {
        launches: &[&[SITE, SECOND_SITE]],
        ..path(
            "py-site-shadowed",
            "two sitecustomize.py, the second shadowed",
            shadowed,
            [
                "only the first sitecustomize.py on sys.path is imported",
                "merge the two files, or let the first one import the second",
            ],
        )
    },
    LaunchPath {
        launches: &[&[SITE, SECOND_SITE]],
        ..path(
            "py-usercustomize",
            "usercustomize.py after sitecustomize.py",
            user_customize,
            [
                "usercustomize.py runs after sitecustomize.py, but not with -s or -I nor in a venv",
                "keep the setting in one of the two files only",
            ],
        )
    },
    path(
        "py-pth",
        "a .pth file in a venv's site-packages",
        |s| in_venv(s, "nccldiag.pth", None),
        RUNS_AT_START,
    ),
];

/// Python source that assigns these values, on one line, whatever the bytes.
fn assignments(values: &[(String, Vec<u8>)]) -> String {
    let mut line = String::from("import os");
    for (name, value) in values {
        let _ = write!(line, "; os.environb[{}] = {}", bytes(name.as_bytes()), bytes(value));
    }
    line.push('\n');
    line
}

fn bytes(value: &[u8]) -> String {
    let inside: String = value.iter().map(|b| format!("\\x{b:02x}")).collect();
    format!("b'{inside}'")
}

fn write_site_file(stage: &Stage, set: Set, folder: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, assignments(&stage.sets(set)))
        .with_context(|| format!("write {}", path.display()))
}

/// Our directories first, then the user's own PYTHONPATH.
fn pythonpath(ours: &[PathBuf]) -> Result<OsString> {
    let theirs = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let theirs = std::env::split_paths(&theirs).filter(|p| !p.as_os_str().is_empty());
    Ok(std::env::join_paths(ours.iter().cloned().chain(theirs))?)
}

fn on_pythonpath(stage: &Stage, kind: &str) -> Result<Top> {
    let folder = stage.folder.join("site");
    write_site_file(stage, SITE, &folder, "sitecustomize.py")?;
    Ok(Top::new(stage.python_line(kind)?).env("PYTHONPATH", pythonpath(&[folder])?))
}

fn with_flag(mut top: Top, flag: &str) -> Result<Top> {
    top.argv.insert(1, flag.into());
    Ok(top)
}

fn in_cwd(stage: &Stage) -> Result<Top> {
    let folder = stage.folder.join("cwd");
    write_site_file(stage, SITE, &folder, "sitecustomize.py")?;
    Ok(Top { cwd: Some(folder), ..Top::new(stage.python_line("self")?) })
}

fn shadowed(stage: &Stage) -> Result<Top> {
    let folders = [stage.folder.join("first"), stage.folder.join("second")];
    write_site_file(stage, SITE, &folders[0], "sitecustomize.py")?;
    write_site_file(stage, SECOND_SITE, &folders[1], "sitecustomize.py")?;
    Ok(Top::new(stage.python_line("self")?).env("PYTHONPATH", pythonpath(&folders)?))
}

fn user_customize(stage: &Stage) -> Result<Top> {
    let base = stage.home.join(".local");
    let (major, minor) = stage.python()?.version;
    let folder = base.join(format!("lib/python{major}.{minor}/site-packages"));
    write_site_file(stage, SECOND_SITE, &folder, "usercustomize.py")?;
    Ok(on_pythonpath(stage, "self")?.env("PYTHONUSERBASE", base))
}

/// Makes a real venv, with a site file in its site-packages.
fn in_venv(stage: &Stage, name: &str, flag: Option<&str>) -> Result<Top> {
    let venv = stage.folder.join("venv");
    let words = ["-m".as_ref(), "venv".as_ref(), "--without-pip".as_ref(), venv.as_os_str()];
    stage.python()?.run(&words, stage.limit, stage.stop)?;
    write_site_file(stage, SITE, &site_packages(&venv)?, name)?;
    let mut line = stage.python_line("self")?.to_vec();
    line[0] = venv.join("bin/python").into();
    if let Some(flag) = flag {
        line.insert(1, flag.into());
    }
    Ok(Top::new(line))
}

fn site_packages(venv: &Path) -> Result<PathBuf> {
    let lib = venv.join("lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("list {}", lib.display()))?;
    let mut found = entries.flatten().map(|e| e.path().join("site-packages"));
    match found.find(|p| p.is_dir()) {
        Some(path) => Ok(path),
        None => bail!("the new venv {} has no site-packages", venv.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_newline_stays_on_one_line_of_python() {
        let line = assignments(&[("A".into(), b"x\ny'\xff".to_vec())]);
        assert_eq!(line, "import os; os.environb[b'\\x41'] = b'\\x78\\x0a\\x79\\x27\\xff'\n");
    }
}
