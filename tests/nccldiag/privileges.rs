//! What a run may and may not do: it works for an ordinary user and with a
//! restricted /proc, and touches no observed process.

use crate::harness::{
    Ended, NOBODY, OpenCopy, Sandbox, finish, has_tools, is_root, main_library, mentioning, skip,
};
use nccldiag::model::{Effect, Observation, Outcome, Provenance, Status, Verdict};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn an_ordinary_user_sees_the_same() {
    if !is_root() || !has_tools(&["setpriv"]) {
        return;
    }
    let Some(copy) = OpenCopy::new() else { return };
    let sandbox = Sandbox::new();
    let ended = as_nobody(&sandbox, &copy, &["--format", "json"]);
    let result = ended.exits(0).result();
    let failed: Vec<_> = result.paths.iter().filter(|p| p.status == Status::Failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let all = result.paths.iter().flat_map(|path| &path.observations);
    let verdicts: Vec<Verdict> = all.map(|o| o.verdict).collect();
    let all = result.paths.iter().flat_map(|path| &path.observations);
    let unreadable = |o: &&Observation| matches!(o.effect, Some(Effect::Unreadable { .. }));
    assert_eq!(all.filter(unreadable).collect::<Vec<_>>(), Vec::<&Observation>::new());
    assert!(verdicts.len() > 200 && !verdicts.contains(&Verdict::CannotTell), "{verdicts:?}");
    assert_eq!(mentioning(copy.path()), Vec::new());
    let left = std::fs::read_dir(copy.home()).expect("list").count();
    assert_eq!(left, 0);
}

fn outcome(o: &Observation) -> Option<Outcome> {
    match &o.effect {
        Some(Effect::Known { outcome, .. }) => *outcome,
        _ => None,
    }
}

/// A default run as nobody, with a HOME and a TMPDIR of that user.
fn as_nobody(sandbox: &Sandbox, copy: &OpenCopy, args: &[&str]) -> Ended {
    let mut command = sandbox.prepared("setpriv");
    let id = NOBODY.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(copy.program());
    command.arg("env-check").args(args).arg("--nccl").arg(copy.library());
    // A Python in root's home is of no use to others.
    let system = Path::new("/usr/bin/python3");
    if system.is_file() {
        command.arg("--python").arg(system);
    } else {
        skip("there is no /usr/bin/python3, so an ordinary user's run is without Python paths");
        command.args(["--family", "exec,shell,conf"]);
    }
    finish(command.env("HOME", copy.home()).env("TMPDIR", copy.home()))
}

/// A /proc that shows each user only their own processes.
#[test]
fn a_proc_that_hides_other_users_is_enough() {
    let Some(copy) = namespaces().then(OpenCopy::new).flatten() else { return };
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared("unshare");
    let line = "mount -t proc -o hidepid=2 none /proc && exec setpriv --reuid 65534 --regid 65534 \
                --clear-groups \"$@\"";
    command.args(["-m", "--pid", "--fork", "sh", "-ec", line, "sh"]).arg(copy.program());
    command.args(["env-check", "--family", "exec,conf", "--format", "json", "--nccl"]);
    command.arg(copy.library()).env("HOME", copy.home()).env("TMPDIR", copy.home());
    let result = finish(&mut command).exits(0).result();
    for path in &result.paths {
        assert_eq!(path.status, Status::Ran, "{}: {:?}", path.id, path.reason);
        let unknown = path.observations.iter().filter(|o| o.verdict == Verdict::CannotTell);
        assert_eq!(unknown.count(), 0, "{path:?}");
    }
}

#[test]
fn without_proc_it_says_so() {
    if !namespaces() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared("unshare");
    let line = "mount -t tmpfs none /proc && exec \"$@\"";
    command.args(["-m", "sh", "-ec", line, "sh", crate::harness::PROGRAM, "env-check"]);
    let ended = finish(command.args(["--path", "fork-exec"]));
    ended.exits(3).complains(&["/proc"]);
    sandbox.assert_nothing_left();
}

fn namespaces() -> bool {
    if !is_root() || !has_tools(&["unshare", "mount", "setpriv"]) {
        return false;
    }
    let line = "mount -t proc none /proc";
    let works = Command::new("unshare").args(["-m", "--pid", "--fork", "sh", "-c", line]).output();
    if works.is_ok_and(|output| output.status.success()) {
        return true;
    }
    skip("this machine refuses new namespaces");
    false
}

/// Everything but py-pool, whose own parent ends its observed worker.
const TRACED: &str = "fork-exec,fork-only,vfork-exec,posix-spawn,popen,sh-c,setsid,timeout,\
    py-subprocess,py-fork,py-spawn,py-forkserver,py-target-late,py-site-pythonpath,nccl-conf-file";

/// The system calls that could disturb another process, as strace saw them.
#[test]
fn no_observed_process_is_attached_to_signalled_or_written_to() {
    let Some(library) = main_library().filter(|_| has_tools(&["strace"])) else { return };
    let sandbox = Sandbox::new();
    let trace = sandbox.path().join("trace");
    let calls = "trace=ptrace,process_vm_readv,process_vm_writev,kill,tkill,tgkill,\
        pidfd_send_signal,openat,open";
    let mut command = sandbox.prepared("strace");
    command.args([
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-y",
        "-s",
        "256",
        "-e",
        calls,
        "-e",
        "signal=none",
    ]);
    command.arg("-o").arg(&trace).args([crate::harness::PROGRAM, "env-check", "--format", "json"]);
    command.args(["--timeout", "120", "--path", TRACED, "--nccl"]).arg(library);
    let ended = finish(&mut command);
    if ended.status.code() == Some(1) && ended.err().contains("PTRACE_TRACEME") {
        return skip("strace may not trace here");
    }
    let result = ended.exits(0).result();
    assert!(result.paths.iter().all(|path| path.status == Status::Ran), "{result:?}");
    let trace = std::fs::read(&trace).expect("a trace");
    let trace = String::from_utf8_lossy(&trace);
    let observed: BTreeSet<&str> =
        trace.lines().filter_map(|l| target(l, "process_vm_readv(")).collect();
    assert!(observed.len() >= 20, "the trace shows what was read: {observed:?}");
    let disturbs = |line: &&str| {
        let signal = ["kill(", "tkill(", "tgkill("].iter().find_map(|call| target(line, call));
        line.contains(" ptrace(")
            || line.contains(" process_vm_writev(")
            || signal.is_some_and(|pid| observed.contains(pid))
            || observed.iter().any(|pid| is_signalled_or_opened(line, pid))
    };
    let bad: Vec<&str> = trace.lines().filter(disturbs).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    // The virtual node stands for these, and changes no file.
    assert_eq!(result.effect_source.provenance, Provenance::Virtual);
    let opens = |line: &&str| {
        let driver =
            ["/dev/nvidia", "libcuda.so", "libnvidia-ml.so"].iter().any(|n| line.contains(n));
        let written = line.contains("O_RDWR") || line.contains("O_WRONLY");
        driver || line.contains("libnccl.so") && written
    };
    let bad: Vec<&str> = trace.lines().filter(opens).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The first argument, a process id, of a call in a line of strace's.
fn target<'a>(line: &'a str, call: &str) -> Option<&'a str> {
    let rest = line.split_once(' ')?.1.trim_start().strip_prefix(call)?;
    Some(&rest[..rest.find(|c: char| !c.is_ascii_digit())?])
}

fn is_signalled_or_opened(line: &str, pid: &str) -> bool {
    let by_descriptor =
        line.contains("pidfd_send_signal(") && line.contains(&format!("<pid:{pid}>"));
    let memory = line.contains(&format!("\"/proc/{pid}/mem\""));
    by_descriptor || memory && (line.contains("O_RDWR") || line.contains("O_WRONLY"))
}

/// The driver may not read another user's process; the probe says what it sees.
#[test]
fn a_probe_that_the_driver_may_not_read_tells_its_own_views() {
    if !is_root() || !has_tools(&["setpriv"]) {
        return;
    }
    let Some(copy) = OpenCopy::new() else { return };
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared("setpriv");
    command.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]);
    command.arg(copy.program()).args(["env-check", "--format", "json", "--nccl"]);
    command.arg(copy.library());
    command.args(["--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "{probe}"]);
    let result = finish(&mut command).exits(0).result();
    assert_eq!(result.paths[0].observations.len(), 7, "{result:?}");
    let told = result.paths[0].observations[..5].iter().all(|o| outcome(o) == Some(Outcome::AsSet));
    assert!(told, "{result:?}");
    for o in &result.paths[0].observations {
        assert_eq!(o.verdict, Verdict::Delivered, "{o:?}");
        assert_eq!([o.exec.value(), o.live.value()], [o.expected.value(); 2]);
    }
}
