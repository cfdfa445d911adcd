//! Runs the user's pip to download one wheel and says in pip's own words why
//! that failed. It neither installs anything nor runs code from the wheel.

use super::Wheel;
use crate::nccl::cache;
use crate::nccl::progress::{Event, Progress};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How many of pip's last lines an error repeats.
const LAST_LINES: usize = 6;

/// More of one line is not worth keeping together, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// Why pip delivered no wheel.
#[derive(Debug, thiserror::Error)]
pub enum PipError {
    /// There is no such Python.
    #[error("cannot start {} to run pip: {error}", python.display())]
    Start {
        /// The interpreter that was tried.
        python: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// pip ended with an error, or without a wheel.
    #[error("pip could not fetch {requirement} ({status}); its last words:\n{}", lines.join("\n"))]
    Failed {
        /// What it was asked for.
        requirement: String,
        /// How it ended.
        status: String,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The caller asked to stop.
    #[error("interrupted while pip fetched {0}")]
    Interrupted(String),
}

/// Downloads `wheel` into the existing directory `into`; returns the file.
///
/// # Errors
/// [`PipError`] when there is no Python, no pip, no network or no such wheel.
pub(super) fn download(
    wheel: &Wheel,
    into: &Path,
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<PathBuf, PipError> {
    let python = crate::nccl::python::interpreter(python);
    let start = |error| PipError::Start { python: python.clone(), error };
    let mut child = command(wheel, into, &python).spawn().map_err(start)?;
    let lines = read_lines(&mut child);
    let followed = follow(&lines, into, progress);
    let _ = progress(Event::Done); // stopping is asked for in `follow`
    let ControlFlow::Continue(last) = followed else {
        let _ = child.kill(); // pip may have ended by itself meanwhile
        child.wait().map_err(start)?;
        return Err(PipError::Interrupted(wheel.requirement()));
    };
    let status = child.wait().map_err(start)?;
    let failed = |status: String| PipError::Failed {
        requirement: wheel.requirement(),
        status,
        lines: last.iter().cloned().collect(),
    };
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    find_wheel(into).ok_or_else(|| failed("it said that all is well, but left no wheel".into()))
}

fn command(wheel: &Wheel, into: &Path, python: &Path) -> Command {
    let mut command = Command::new(python);
    // --only-binary: a source package would run code of unknown origin.
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "-d"])
        .arg(into)
        .arg(wheel.requirement())
        // `-m` looks for pip in the working directory first: make that one ours.
        .current_dir(into)
        // pip downloads to its temporary directory first. Ours is removed with
        // the rest when this run is killed, and its size is the progress.
        .env("TMPDIR", into)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    crate::process::die_with_parent(&mut command, nix::sys::signal::Signal::SIGTERM);
    command
}

/// Sends each line of both streams, cut at 500 characters.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let (to, from) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as _),
        child.stderr.take().map(|stream| Box::new(stream) as _),
    ];
    for stream in streams.into_iter().flatten() {
        let to = to.clone();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            let next = |stream: &mut BufReader<_>, line: &mut Vec<u8>| {
                // A line without an end is told in pieces.
                stream.take(LONGEST_LINE).read_until(b'\n', line).is_ok_and(|read| read > 0)
            };
            while next(&mut stream, &mut line) {
                let text: String = String::from_utf8_lossy(&line).chars().take(500).collect();
                let text = text.replace(|c: char| c.is_control(), " ");
                if to.send(text.trim_end().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    from
}

/// Reports progress until both streams end; pip's last lines, or `Break` when
/// the caller asked to stop.
fn follow(
    lines: &Receiver<String>,
    directory: &Path,
    progress: &mut Progress<'_>,
) -> ControlFlow<(), VecDeque<String>> {
    let mut last = VecDeque::new();
    let mut total = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                total = announced_bytes(&line).or(total);
                if !line.is_empty() {
                    last.push_back(line);
                }
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                // pip copies the file at the end, so for a moment it is there twice.
                let done = cache::tree_bytes(directory).min(total.unwrap_or(u64::MAX));
                progress(Event::Bytes { what: "download", done, total })?;
            }
            Err(RecvTimeoutError::Disconnected) => return ControlFlow::Continue(last),
        }
    }
}

/// The size in pip's line `Downloading ....whl (322.5 MB)`.
fn announced_bytes(line: &str) -> Option<u64> {
    let (_, size) = line.split_once(".whl (")?;
    let megabytes: f64 = size.split_once(" MB)")?.0.parse().ok()?;
    (megabytes > 0.0 && megabytes < 1e6).then_some((megabytes * 1e6) as u64)
}

fn find_wheel(directory: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten().map(|file| file.path());
    files.into_iter().find(|path| path.is_file() && path.extension().is_some_and(|e| e == "whl"))
}
