//! What a virtual node may do to files, as strace saw it. Std only, because the
//! library's own tests include this file as well.

use std::path::Path;

/// strace's argument: all calls that open, make, change or remove a file by
/// its name, or start a program.
pub const CALLS: &str = "trace=open,openat,openat2,creat,execve,unlink,unlinkat,rename,renameat,\
    renameat2,mkdir,mkdirat,mknod,mknodat,link,linkat,symlink,symlinkat,truncate,chmod,fchmodat,\
    chown,fchownat";

/// Names that must not even be looked for: NVIDIA's driver, its devices, and
/// the shared memory that NCCL would leave behind.
const NEVER: [&str; 5] =
    ["libcuda.so", "libnvidia-ml.so", "/dev/nvidia", "/dev/shm/nccl-", "libcudart.so"];

/// Calls that write: all but open and execve write by themselves.
const READS: [&str; 4] = ["open(", "openat(", "openat2(", "execve("];
const WRITING: [&str; 4] = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"];

/// The lines of a trace that a run of a virtual node must not have. It may
/// write to `/dev/null`, to descriptors of its ranks (which are files without a
/// name), and below `own`.
pub fn wrong<'a>(trace: &'a str, own: Option<&Path>) -> Vec<&'a str> {
    trace.lines().filter(|line| is_wrong(line, own)).collect()
}

fn is_wrong(line: &str, own: Option<&Path>) -> bool {
    let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    // The end of a call that was judged already, of a process, a signal, and a
    // process that was killed before strace learned what it called.
    if call.is_empty() || ["<...", "+++", "---", "???("].iter().any(|mark| call.starts_with(mark)) {
        return false;
    }
    if NEVER.iter().any(|name| line.contains(name)) {
        return true;
    }
    let reads = READS.iter().any(|name| call.starts_with(name));
    let writes = !reads || WRITING.iter().any(|flag| call.contains(flag));
    writes && !may_write(call, own)
}

fn may_write(call: &str, own: Option<&Path>) -> bool {
    // Of two names, as in rename, both have to be allowed.
    let names = call.split('"').skip(1).step_by(2);
    let allowed = |name: &str| {
        name == "/dev/null"
            || is_descriptor(name)
            || own.is_some_and(|own| Path::new(name).starts_with(own))
    };
    let names: Vec<&str> = names.collect();
    !names.is_empty() && names.into_iter().all(allowed)
}

/// `/proc/self/fd/4`, or that of another rank, by which memory is shared.
fn is_descriptor(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        ["", "proc", process, "fd", fd] => (*process == "self" || number(process)) && number(fd),
        _ => false,
    }
}

#[test]
fn traces_are_judged() {
    let own = Path::new("/tmp/own");
    for (line, expected) in [
        (r#"7 openat(AT_FDCWD, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3"#, false),
        (r#"7 openat(AT_FDCWD, "/dev/null", O_WRONLY|O_CLOEXEC) = 3"#, false),
        (r#"7 openat(AT_FDCWD, "/proc/self/fd/4", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3"#, false),
        (r#"7 openat(AT_FDCWD, "/proc/12/fd/58", O_RDWR|O_CLOEXEC) = 59"#, false),
        (r#"7 openat(AT_FDCWD, "/proc/12/fd/../mem", O_RDWR|O_CLOEXEC) = 59"#, true),
        (r#"7 openat(AT_FDCWD, "/proc/self/mem", O_RDWR) = 3"#, true),
        (r#"7 openat(AT_FDCWD, "/x/libnccl.so.2", O_RDWR <unfinished ...>"#, true),
        (r#"7 openat(AT_FDCWD, "/x/libnccl.so.2", O_RDONLY) = 3"#, false),
        (r#"7 openat(AT_FDCWD, "/lib/libcuda.so.1", O_RDONLY) = -1 ENOENT"#, true),
        (r#"7 openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = -1 ENOENT"#, true),
        (r#"7 rename("/tmp/own/a", "/tmp/other") = 0"#, true),
        (r#"7 rename("/tmp/own/a", "/tmp/own/b") = 0"#, false),
        (r#"7 unlink("/dev/shm/nccl-AbCdEf") = 0"#, true),
        (r#"7 execve("/bin/true", ["true"], 0x7ffc /* 3 vars */) = 0"#, false),
        ("7 <... openat resumed>)          = 5", false),
        ("7 +++ exited with 0 +++", false),
        ("7 --- SIGCHLD {si_signo=SIGCHLD} ---", false),
    ] {
        assert_eq!(!wrong(line, Some(own)).is_empty(), expected, "{line}");
    }
}
