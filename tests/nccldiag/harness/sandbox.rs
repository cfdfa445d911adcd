//! The program in a folder of its own: runs see a private TMPDIR there, so that
//! whatever they leave behind can be told from other runs.

use super::processes::{eventually, mentioning};
use nccldiag::model::EnvCheck;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_nccldiag");
/// How long one run may take before the test gives up on it.
const LIMIT: Duration = Duration::from_secs(180);
/// Variables of the caller that would change what a run does.
const FOREIGN: [&str; 12] = [
    "NCCLDIAG_NCCL",
    "VLLM_NCCL_SO_PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CONDA_PREFIX",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
];

/// A folder that runs live in.
pub struct Sandbox {
    folder: tempfile::TempDir,
}

impl Sandbox {
    /// Makes the folder, with a `tmp` inside.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("ndtest-").tempdir().expect("a temp folder");
        std::fs::create_dir(folder.path().join("tmp")).expect("create tmp");
        Self { folder }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The TMPDIR of its runs.
    pub fn tmp(&self) -> PathBuf {
        self.path().join("tmp")
    }

    /// Writes a file and gives its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("create");
        std::fs::write(&path, bytes).expect("write a file");
        path
    }

    /// Writes an executable file and gives its path.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, text);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("make it executable");
        path
    }

    /// The program with a clean environment, no arguments yet.
    pub fn program(&self) -> Command {
        self.prepared(PROGRAM)
    }

    /// Any program, with what [`program`](Self::program) would see.
    pub fn prepared(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        heed_signals(&mut command);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NCCL") {
                command.env_remove(name);
            }
        }
        for name in FOREIGN {
            command.env_remove(name);
        }
        // Some users have a login shell that refuses.
        command.env("TMPDIR", self.tmp()).env("SHELL", "/bin/sh").stdin(Stdio::null());
        command
    }

    /// `nccldiag env-check`.
    pub fn env_check<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.program();
        command.arg("env-check").args(args);
        command
    }

    /// Runs [`env_check`](Self::env_check) to its end.
    pub fn check<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        finish(&mut self.env_check(args))
    }

    /// The processes that belong to this sandbox.
    pub fn processes(&self) -> Vec<(i32, String)> {
        mentioning(self.path())
    }

    /// What runs have left in their TMPDIR.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.tmp()).expect("list tmp");
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Fails when a run has left a process or a file.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new());
        assert_eq!(self.processes(), Vec::new());
    }

    /// Waits until all processes of this sandbox are gone.
    pub fn wait_until_empty(&self) {
        eventually("end of all processes", || self.processes().is_empty().then_some(()));
    }
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ended {
    Started::new(command).end()
}

/// A run that is under way. Dropping it kills it.
pub struct Started {
    child: Child,
    streams: Option<[JoinHandle<Vec<u8>>; 2]>,
}

impl Started {
    /// Starts a command and collects what it prints.
    pub fn new(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
        let streams = [
            collect(child.stdout.take().expect("a pipe")),
            collect(child.stderr.take().expect("a pipe")),
        ];
        Self { child, streams: Some(streams) }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait for the program").is_none()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("signal the program");
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("wait for the program") {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => panic!("it ran longer than {LIMIT:?}"),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let [stdout, stderr] = self.streams.take().expect("ended once");
        let join = |h: JoinHandle<Vec<u8>>| h.join().expect("the reader does not panic");
        Ended { status, stdout: join(stdout), stderr: join(stderr) }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("read a pipe");
        all
    })
}

/// A run that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    /// What it printed.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What it complained about.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails unless it ended with this exit code.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        let all = (self.status.code(), self.status.signal());
        assert_eq!(all, (Some(code), None), "stdout:\n{}\nstderr:\n{}", self.out(), self.err());
        self
    }

    /// Fails unless stderr holds all these texts.
    #[track_caller]
    pub fn complains(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(self.err().contains(text), "no {text:?} in stderr:\n{}", self.err());
        }
        assert!(!self.err().contains("panicked"), "a panic:\n{}", self.err());
        self
    }

    /// The JSON result.
    #[track_caller]
    pub fn result(&self) -> EnvCheck {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| {
            panic!("no result: {error}\nstdout:\n{}\nstderr:\n{}", self.out(), self.err())
        })
    }
}

/// Signals that whoever started the tests ignores (nohup, a job in the
/// background) are ignored by every child as well, and the program leaves them
/// so: its tests must not depend on that.
fn heed_signals(command: &mut Command) {
    // SAFETY: signal(2) is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}
