//! The parents and the probe of the exec family: real system calls, made by
//! this binary in a hidden subcommand, because a table of what `execve` should
//! do would prove nothing.

use super::session::{Session, read_spec};
use super::wire::Fields;
use anyhow::{Context, Result, bail};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::ptr;

/// The hidden subcommand that is a probe.
pub const PROBE: &str = "__probe";
/// The hidden subcommand that is a parent of one.
pub const PARENT: &str = "__parent";

/// Runs a probe for a launch folder: connect, call NCCL, report, wait.
///
/// # Errors
/// The specification cannot be read or the driver cannot be reached.
pub fn probe(folder: &Path) -> Result<()> {
    let mut session = Session::open(read_spec(folder)?)?;
    session.latch();
    session.report(&Fields::default())?;
    session.wait();
    session.leave();
    Ok(())
}

/// Sets what the parent is to set, then starts the probe in the way `kind`.
///
/// # Errors
/// An unknown kind, or the system call's own error.
pub fn parent(kind: &str, folder: &Path) -> Result<()> {
    let spec = read_spec(folder)?;
    for (name, value) in spec.assignments("parent") {
        set_environment(&CString::new(name)?, &CString::new(value)?)?;
    }
    let start = Start::new(&spec, folder)?;
    match kind {
        "fork-exec" => start.fork(|s| s.exec_inherited()),
        "fork-only" => start.fork(|_| probe(folder)),
        "vfork-exec" => start.vfork_exec(),
        "posix-spawn" => start.posix_spawn(None),
        "posix-spawn-own-env" => start.posix_spawn(Some(&start.listed)),
        "exec-own-env" | "exec-own-env-duplicate" => start.fork(Start::exec_listed),
        "clearenv-exec" => start.fork(|s| {
            // SAFETY: this forked child has one thread.
            unsafe { libc::clearenv() };
            s.exec_inherited()
        }),
        "system" => start.system(),
        "popen" => start.popen(),
        other => bail!("no such way to start a probe: {other}"),
    }
}

fn set_environment(name: &CStr, value: &CStr) -> Result<()> {
    // SAFETY: two C strings; this parent has one thread.
    if unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) } != 0 {
        bail!("setenv {name:?}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// A probe's command line, ready for the C calls.
struct Start {
    argv: Vec<CString>,
    listed: Vec<CString>,
}

impl Start {
    fn new(spec: &Fields, folder: &Path) -> Result<Self> {
        let exe = spec.first("exe").context("the specification names no executable")?;
        let argv = [exe, PROBE.as_bytes(), folder.as_os_str().as_bytes()];
        let argv = argv.into_iter().map(CString::new).collect::<Result<_, _>>()?;
        let listed = spec.all("listed").map(CString::new).collect::<Result<_, _>>()?;
        Ok(Self { argv, listed })
    }

    fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
    }

    fn exec_inherited(&self) -> Result<()> {
        let argv = Self::pointers(&self.argv);
        // SAFETY: argv is a null-terminated array of C strings that outlive the call.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        bail!("execv: {}", std::io::Error::last_os_error())
    }

    fn exec_listed(&self) -> Result<()> {
        let (argv, envp) = (Self::pointers(&self.argv), Self::pointers(&self.listed));
        // SAFETY: both are null-terminated arrays of C strings that outlive the call.
        unsafe { libc::execve(argv[0], argv.as_ptr(), envp.as_ptr()) };
        bail!("execve: {}", std::io::Error::last_os_error())
    }

    /// Forks; `in_child` runs in the child, whose result is its exit status.
    fn fork(&self, in_child: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { libc::fork() } {
            -1 => bail!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let code = match in_child(self) {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("{error:#}");
                        127
                    }
                };
                // SAFETY: _exit takes no pointers; NCCL's exit handlers are
                // not wanted in a fork.
                unsafe { libc::_exit(code) }
            }
            pid => wait_for(pid),
        }
    }

    /// vfork's semantics through clone: the child borrows the parent's memory
    /// until it calls exec, on a stack of its own (Rust cannot express a
    /// function that returns twice).
    fn vfork_exec(&self) -> Result<()> {
        extern "C" fn child(argv: *mut libc::c_void) -> libc::c_int {
            let argv = argv.cast::<*const libc::c_char>();
            // SAFETY: the parent is suspended and keeps argv alive.
            unsafe {
                libc::execv(*argv, argv.cast_const());
                libc::_exit(127)
            }
        }
        let mut argv = Self::pointers(&self.argv);
        let mut stack = vec![0u128; 16 << 10];
        // SAFETY: the stack grows down from its end, both buffers outlive the
        // call because CLONE_VFORK suspends this thread until exec or exit.
        let pid = unsafe {
            libc::clone(
                child,
                stack.as_mut_ptr_range().end.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                argv.as_mut_ptr().cast(),
            )
        };
        if pid < 0 {
            bail!("clone: {}", std::io::Error::last_os_error());
        }
        wait_for(pid)
    }

    fn posix_spawn(&self, listed: Option<&[CString]>) -> Result<()> {
        let argv = Self::pointers(&self.argv);
        let own = listed.map(Self::pointers);
        let mut pid = 0;
        // SAFETY: null-terminated arrays of C strings; environ is libc's own
        // and nothing changes it meanwhile.
        let result = unsafe {
            let envp = own.as_ref().map_or(environ, |list| list.as_ptr());
            libc::posix_spawn(
                &mut pid,
                argv[0],
                ptr::null(),
                ptr::null(),
                argv.as_ptr().cast(),
                envp.cast(),
            )
        };
        if result != 0 {
            bail!("posix_spawn: {}", std::io::Error::from_raw_os_error(result));
        }
        wait_for(pid)
    }

    /// The command line as one line for `sh`.
    fn line(&self) -> Result<CString> {
        let words = self.argv.iter().map(|w| shlex::bytes::try_quote(w.to_bytes()));
        let words: Vec<_> = words.collect::<Result<_, _>>()?;
        Ok(CString::new(words.join(&b' '))?)
    }

    fn system(&self) -> Result<()> {
        // SAFETY: a C string that outlives the call.
        let status = unsafe { libc::system(self.line()?.as_ptr()) };
        check_status(status)
    }

    fn popen(&self) -> Result<()> {
        let line = self.line()?;
        // SAFETY: C strings; the stream is closed exactly once.
        let status = unsafe {
            let stream = libc::popen(line.as_ptr(), c"w".as_ptr());
            if stream.is_null() {
                bail!("popen: {}", std::io::Error::last_os_error());
            }
            libc::pclose(stream)
        };
        check_status(status)
    }
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

fn wait_for(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: status is a valid place for the result.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            bail!("wait for {pid}: {error}");
        }
    }
    check_status(status)
}

fn check_status(status: libc::c_int) -> Result<()> {
    if status != 0 {
        bail!("the probe ended with {}", std::process::ExitStatus::from_raw(status));
    }
    Ok(())
}
