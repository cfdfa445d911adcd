//! Small programs for the tests of this folder to look at: compiled with `cc`
//! when the test runs, and ended when it is over. A missing tool skips the test
//! with a line that says so.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program file in its own directory.
pub struct Program {
    dir: TempDir,
    pub path: PathBuf,
}

/// A running program that says `ready` and ends when its input is closed.
pub struct Running {
    child: Child,
}

pub use crate::testing::skipped;

/// A C program with `ready` and `rest` at hand: it says that it is ready, then
/// waits for its end.
pub fn c_program(body: &str, flags: &[&str]) -> Option<Program> {
    c_source(&with_prelude(body), flags)
}

pub fn with_prelude(body: &str) -> String {
    format!(
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
         #include <unistd.h>\n#include <sys/wait.h>\n\
         static void ready(void) {{ puts(\"ready\"); fflush(stdout); }}\n\
         static void rest(void) {{ char c; while (read(0, &c, 1) > 0) {{}} }}\n{body}"
    )
}

pub fn c_source(source: &str, flags: &[&str]) -> Option<Program> {
    compile("cc", source, flags)
}

pub fn compile(compiler: &str, source: &str, flags: &[&str]) -> Option<Program> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, path) = (dir.path().join("target.c"), dir.path().join("target"));
    std::fs::write(&file, source).expect("a small file");
    let output = Command::new(compiler).arg(&file).arg("-o").arg(&path).args(flags).output();
    match output {
        Ok(output) if output.status.success() => Some(Program { dir, path }),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            skipped(&format!("{compiler} {flags:?}: {}", why.lines().next().unwrap_or_default()));
            None
        }
        Err(error) => {
            skipped(&format!("{compiler}: {error}"));
            None
        }
    }
}

impl Program {
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it with only these variables and waits until it is ready.
    pub fn start(&self, env: &[(&str, &str)]) -> Running {
        let mut command = Command::new(&self.path);
        command.env_clear().envs(env.iter().copied());
        Running::ready(command)
    }
}

impl Running {
    /// Starts a command and does not wait for it to say anything.
    pub fn start(mut command: Command) -> Self {
        // SAFETY: prctl is async-signal-safe; it makes sure that a target never
        // outlives a crashed test.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self { child: child.expect("the target starts") }
    }

    /// Starts a command and waits until it says `ready`.
    pub fn ready(command: Command) -> Self {
        let mut running = Self::start(command);
        let line = running.line();
        assert_eq!(line, "ready", "the target did not come up");
        running
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.child.stdout.as_mut().expect("a pipe");
        // One byte at a time would be cleaner, but targets print line by line.
        BufReader::with_capacity(1, out).read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill_without_waiting(&mut self) {
        self.child.kill().expect("our own child");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks again and again until there is an answer, for at most ten seconds.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `f` on a thread of its own that has another user's rights. Says
/// whether that was possible.
pub fn as_nobody(f: impl FnOnce() + Send) -> bool {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        skipped("only root can take another user's rights");
        return false;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The raw call changes this thread only; the one of libc would
            // change the whole process.
            // SAFETY: setresuid takes three integers.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(result, 0, "setresuid");
            f();
        });
    });
    true
}
