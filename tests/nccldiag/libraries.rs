//! Where the library comes from: `--nccl auto`, pip and its cache, a running
//! process, or nowhere.

use crate::harness::{Ended, Sandbox, Started, eventually, finish, has_tools, main_library, skip};
use nccldiag::model::{EnvCheck, Latched, Status, Verdict};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SHORT: [&str; 4] = ["--path", "fork-exec", "--format", "json"];

/// A library in a folder of its own, without copying its 300 MB.
fn linked(sandbox: &Sandbox, folder: &str, library: &Path) -> PathBuf {
    let folder = sandbox.path().join(folder);
    std::fs::create_dir_all(&folder).expect("create");
    let path = folder.join("libnccl.so.2");
    std::os::unix::fs::symlink(library, &path).expect("link");
    path
}

/// A run with a Python that has no packages and a HOME without a cache.
fn bare(sandbox: &Sandbox) -> Command {
    let mut command = sandbox.env_check(SHORT);
    let python = sandbox.script("bin/python3", "#!/bin/sh\nexit 1\n");
    command.arg("--python").arg(python).env("HOME", sandbox.path()).env_remove("XDG_CACHE_HOME");
    command
}

fn used(ended: &Ended) -> Option<PathBuf> {
    ended.exits(0).result().nccl.path.map(PathBuf::from)
}

#[test]
fn auto_asks_the_places_in_their_order_and_says_which_it_took() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let [own, vllm, first, second] =
        ["own", "vllm", "l1", "l2"].map(|n| linked(&sandbox, n, &library));
    let path = format!("{}:/nonexistent:{}", parent(&first), parent(&second));
    let all: [(&str, &Path, &Path); 3] = [
        ("LD_LIBRARY_PATH", path.as_ref(), &first),
        ("VLLM_NCCL_SO_PATH", &vllm, &vllm),
        ("NCCLDIAG_NCCL", &own, &own),
    ];
    // Each place wins over those before it in this list.
    for last in 0..all.len() {
        let mut command = bare(&sandbox);
        command.envs(all[..=last].iter().map(|(name, value, _)| (name, value)));
        let ended = finish(&mut command);
        let (name, _, expected) = all[last];
        assert_eq!(used(&ended).as_deref(), Some(expected), "{}", ended.err());
        assert!(name == "NCCLDIAG_NCCL" || ended.err().contains(name), "{}", ended.err());
    }
}

fn parent(path: &Path) -> String {
    path.parent().expect("a folder").display().to_string()
}

#[test]
fn auto_names_the_other_libraries_it_saw() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let first = linked(&sandbox, "l1", &library);
    let broken = sandbox.file("l2/libnccl.so.2", "no library");
    let mut command = bare(&sandbox);
    command.env("LD_LIBRARY_PATH", format!("{}:{}", parent(&first), parent(&broken)));
    let ended = finish(&mut command);
    assert_eq!(used(&ended), Some(first));
    assert!(ended.err().contains("l2/libnccl.so.2"), "{}", ended.err());
}

#[test]
fn auto_finds_the_package_of_the_active_python() {
    let Some(library) = main_library().filter(|_| has_tools(&["python3"])) else { return };
    let sandbox = Sandbox::new();
    let venv = sandbox.path().join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).output();
    if !made.is_ok_and(|output| output.status.success()) {
        return skip("python3 makes no venv (python3-venv is missing?)");
    }
    let python = venv.join("bin/python");
    let ask = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    let answer = Command::new(&python).args(ask).output().expect("the venv's Python");
    let packages = String::from_utf8(answer.stdout).expect("a plain path");
    let expected = linked(&sandbox, &format!("{}/nvidia/nccl/lib", packages.trim()), &library);
    let mut by_option = sandbox.env_check(SHORT);
    by_option.arg("--python").arg(&python).env("HOME", sandbox.path());
    assert_eq!(used(&finish(&mut by_option)).as_deref(), Some(&*expected));
    let path = format!("{}:{}", venv.join("bin").display(), std::env::var("PATH").expect("a PATH"));
    let mut activated = sandbox.env_check(SHORT);
    activated.env("PATH", path).env("VIRTUAL_ENV", &venv).env("HOME", sandbox.path());
    assert_eq!(used(&finish(&mut activated)), Some(expected));
}

#[test]
fn a_name_in_nccldiag_nccl_that_does_not_work_is_an_error() {
    let sandbox = Sandbox::new();
    let mut command = bare(&sandbox);
    let ended = finish(command.env("NCCLDIAG_NCCL", "/no/such/libnccl.so.2"));
    ended.exits(3).complains(&["/no/such/libnccl.so.2"]);
}

#[test]
fn the_library_of_a_running_process_is_taken() {
    let Some(library) = main_library().filter(|_| has_tools(&["python3"])) else { return };
    let sandbox = Sandbox::new();
    let load =
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('up', file=open(sys.argv[2], 'w'))
sys.stdin.read()";
    let up = sandbox.path().join("up");
    let mut command = sandbox.prepared("python3");
    command.args(["-c", load]).arg(&library).arg(&up).stdin(Stdio::piped());
    let process = Started::new(&mut command);
    eventually("loaded library", || up.exists().then_some(()));
    let choice = format!("pid:{}", process.pid());
    let ended = finish(sandbox.env_check(SHORT).args(["--nccl", &choice]));
    assert_eq!(used(&ended), Some(library));
}

#[test]
fn a_process_that_is_gone_or_has_no_nccl_is_named() {
    let sandbox = Sandbox::new();
    let without = format!("pid:{}", std::process::id());
    for choice in ["pid:4194304", &without] {
        let ended = finish(sandbox.env_check(SHORT).args(["--nccl", choice]));
        ended.exits(3).complains(&[choice.trim_start_matches("pid:")]);
    }
}

/// E and L are still worth knowing.
#[test]
fn without_any_library_exec_and_live_are_shown_and_the_way_to_one() {
    let sandbox = Sandbox::new();
    let ended = finish(&mut bare(&sandbox));
    let result: EnvCheck = ended.exits(0).result();
    if result.nccl.path.is_some() {
        return skip("this machine has a libnccl.so.2 where every program finds it");
    }
    assert!(ended.err().contains("pip:2.27.7"), "{}", ended.err());
    assert_eq!(result.paths[0].status, Status::Ran);
    for o in &result.paths[0].observations {
        assert_eq!([o.exec.value(), o.live.value()], [o.expected.value(); 2]);
        assert_eq!(o.verdict, Verdict::Delivered);
        assert!(matches!(o.latched, Latched::Unreadable(_)), "{o:?}");
    }
    let finding = result.findings.iter().find(|f| f.code.number() == "ND0114").expect("ND0114");
    assert!(finding.fix.contains("pip:2.27.7") && finding.fix.contains("350 MB"), "{finding:?}");
}

/// The real pip with its index switched off: no network is needed to fail.
#[test]
fn a_wheel_that_does_not_exist_exits_3_with_two_ways_on() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.env_check(SHORT);
    command.args(["--nccl", "pip:0.0.1"]).env("PIP_NO_INDEX", "1");
    let ended = finish(command.env("XDG_CACHE_HOME", sandbox.path().join("cache")));
    ended.exits(3).complains(&["0.0.1", "--nccl pip:VERSION", "--nccl /path/to/libnccl.so.2"]);
    assert!(ended.err().lines().all(|line| !line.contains("\\n")), "{}", ended.err());
    assert_eq!(ended.out(), "");
}

#[test]
fn a_python_without_pip_exits_3_and_is_named() {
    let sandbox = Sandbox::new();
    let script = "#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n";
    let python = sandbox.script("barepython", script);
    let mut command = sandbox.env_check(SHORT);
    command.args(["--nccl", "pip:2.27.7", "--python"]).arg(python);
    let ended = finish(command.env("XDG_CACHE_HOME", sandbox.path().join("cache")));
    ended.exits(3).complains(&["No module named pip", "2.27.7"]);
}

#[test]
fn a_signal_ends_a_fetch_that_hangs() {
    let sandbox = Sandbox::new();
    let python = sandbox.script("slowpython", "#!/bin/sh\nexec sleep 600\n");
    let mut command = sandbox.env_check(SHORT);
    command.args(["--nccl", "pip:2.27.7", "--python"]).arg(python);
    command.env("XDG_CACHE_HOME", sandbox.path().join("cache"));
    let run = Started::new(&mut command);
    let sleeping = |found: &(i32, String)| found.1.starts_with("sleep 600");
    eventually("pip", || sandbox.processes().iter().any(sleeping).then_some(()));
    run.signal(Signal::SIGTERM);
    let status = run.end().status;
    assert!(status.signal() == Some(15) || status.code() == Some(143), "{status}");
    sandbox.wait_until_empty();
}

fn cache(sandbox: &Sandbox, args: &[&str]) -> Ended {
    let mut command = sandbox.program();
    command.arg("cache").args(args).env("XDG_CACHE_HOME", sandbox.path().join("cache"));
    finish(&mut command)
}

fn fetched(sandbox: &Sandbox, entry: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let root = sandbox.path().join("cache/nccldiag");
    let path = sandbox.file(&format!("cache/nccldiag/nccl/{entry}/libnccl.so.2"), "12345");
    for folder in [root.clone(), root.join("nccl"), root.join("nccl").join(entry)] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).expect("close it");
    }
    path
}

#[test]
fn the_cache_is_listed_and_cleaned() {
    let sandbox = Sandbox::new();
    assert!(cache(&sandbox, &["list"]).exits(0).out().contains("no fetched libraries"));
    let old = fetched(&sandbox, "2.18.3-cu12");
    let new = fetched(&sandbox, "2.28.9-cu13");
    let text = cache(&sandbox, &["list"]).exits(0).out();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("2.18.3") && lines[1].contains("2.28.9"), "{text}");
    let json = cache(&sandbox, &["list", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["entries"][1]["cuda"], "cu13");
    assert_eq!(json["entries"][1]["bytes"], 5);
    assert_eq!(json["entries"][1]["path"], new.to_str().expect("plain"));
    assert!(cache(&sandbox, &["clean", "2.18.3"]).exits(0).out().contains("removed NCCL 2.18.3"));
    assert!(!old.exists() && new.exists());
    let again = cache(&sandbox, &["clean", "2.18.3"]).exits(0).out();
    assert!(again.contains("not in the cache"), "{again}");
    cache(&sandbox, &["clean"]).exits(0);
    assert!(!new.exists());
    cache(&sandbox, &["clean", "../../x"]).exits(2).complains(&["../../x"]);
}
