//! Wrong input and broken surroundings: each gets a message that names the
//! thing, and whatever can still run does.

use crate::harness::{
    Ended, Sandbox, finish, has_tools, is_root, library, main_library, skip, versions,
};
use nccldiag::model::{EnvCheck, Status};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

/// One path that needs nothing but this program.
const SIMPLE: [&str; 4] = ["--path", "fork-exec", "--format", "json"];

fn with_library(sandbox: &Sandbox, path: &Path) -> Ended {
    finish(sandbox.env_check(SIMPLE).arg("--nccl").arg(path))
}

fn reason(result: &EnvCheck, id: &str) -> String {
    let path = result.paths.iter().find(|path| path.id == id).expect("the path");
    path.reason.clone().unwrap_or_default()
}

fn status(result: &EnvCheck, id: &str) -> Status {
    result.paths.iter().find(|path| path.id == id).expect("the path").status
}

#[test]
fn assignments_that_are_none_are_usage_errors() {
    let sandbox = Sandbox::new();
    for (text, why) in [
        ("NCCL_ALGO", "NAME=VALUE"),
        ("=x", "name"),
        ("1A=x", "name"),
        ("A B=x", "name"),
        ("A-B=x", "name"),
        ("\x1b[2J=x", "\\x1b"),
    ] {
        let ended = sandbox.check(["-e", text]);
        ended.exits(2).complains(&[why]);
        assert!(!ended.err().contains('\x1b'));
    }
    assert_eq!(sandbox.leftovers().len(), 0);
}

#[test]
fn a_value_with_a_newline_arrives_where_it_can() {
    let sandbox = Sandbox::new();
    let all = ["--format", "json", "-e", "NCCL_TOPO_FILE=a\nb", "--path"];
    let paths = "fork-exec,make-export,nccl-conf-file,py-site-pythonpath,py-spawn";
    let result = sandbox.check(all.into_iter().chain([paths])).exits(0).result();
    for id in ["fork-exec", "py-site-pythonpath", "py-spawn"] {
        assert_eq!(status(&result, id), Status::Ran, "{id}: {}", reason(&result, id));
    }
    for (id, file) in [("make-export", "Makefile"), ("nccl-conf-file", "nccl.conf")] {
        assert_eq!(status(&result, id), Status::Failed, "{id}");
        let why = reason(&result, id);
        assert!(why.contains("newline") && why.contains(file), "{id}: {why}");
    }
    sandbox.assert_nothing_left();
}

/// A longer value cannot even be given: exec takes 131072 bytes, with the NUL,
/// for an argument as well.
#[test]
fn the_longest_value_that_exec_carries_arrives() {
    let sandbox = Sandbox::new();
    let value = "x".repeat(131_071 - "NCCL_TOPO_FILE=".len());
    let given = format!("NCCL_TOPO_FILE={value}");
    let all = sandbox.check(["--format", "json", "-e", &given]).exits(0).result();
    for path in all.paths.iter().filter(|path| path.status != Status::Skipped) {
        assert_eq!(path.status, Status::Ran, "{}: {:?}", path.id, path.reason);
    }
    assert_eq!(all.paths[0].observations[0].exec.value(), Some(value.as_bytes()));
    sandbox.assert_nothing_left();
}

#[test]
fn more_than_exec_carries_in_all_is_named_and_ends_no_run() {
    let sandbox = Sandbox::new();
    let mut all = vec!["--format".to_owned(), "json".into(), "--path".into(), "fork-exec".into()];
    for number in 0..15 {
        all.extend(["-e".into(), format!("NCCL_TEST_{number}={}", "x".repeat(130_000))]);
    }
    all.extend(["--", "sh", "-c", "{probe-sh}"].map(String::from));
    let result = sandbox.check(all).exits(0).result();
    for path in &result.paths {
        let why = path.reason.clone().unwrap_or_default();
        assert!(path.status == Status::Ran || why.contains("too long"), "{}: {why}", path.id);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn a_file_that_is_no_library_is_named_with_what_it_is() {
    let sandbox = Sandbox::new();
    let elf = |machine: u8| {
        let mut bytes = vec![0u8; 256];
        bytes[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\0\0");
        bytes[18] = machine;
        bytes
    };
    for (name, bytes, why) in [
        ("text.so", b"hello world, this is no library at all".to_vec(), "not a 64-bit ELF"),
        ("empty.so", Vec::new(), "not a 64-bit ELF"),
        ("arm.so", elf(183), "aarch64"),
        ("no-nccl.so", elf(62), "no-nccl.so"),
    ] {
        let path = sandbox.file(name, bytes);
        let ended = with_library(&sandbox, &path);
        ended.exits(3).complains(&[name, why]);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn things_that_are_no_files_are_named_and_do_not_block() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.path().join("fifo.so");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("make a fifo");
    with_library(&sandbox, &fifo).exits(3).complains(&["fifo.so"]);
    with_library(&sandbox, &sandbox.tmp()).exits(3).complains(&["tmp"]);
    let missing = sandbox.path().join("missing.so");
    with_library(&sandbox, &missing).exits(3).complains(&["missing.so", "No such file"]);
    with_library(&sandbox, Path::new("/dev/zero")).exits(3).complains(&["/dev/zero"]);
    sandbox.assert_nothing_left();
}

#[test]
fn a_library_that_was_cut_off_is_called_damaged() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let copy = sandbox.path().join("libnccl.so.2");
    let size = std::fs::metadata(&library).expect("the library").len();
    for part in [size / 2, size - 1000, 4096, 100] {
        std::fs::copy(&library, &copy).expect("copy");
        let file = std::fs::OpenOptions::new().write(true).open(&copy).expect("open");
        file.set_len(part).expect("cut off");
        with_library(&sandbox, &copy).exits(3).complains(&["libnccl.so.2"]);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn a_stripped_library_gives_what_a_whole_one_gives_but_no_effect() {
    if !has_tools(&["strip"]) {
        return;
    }
    for version in versions() {
        let Some(library) = library(&version) else { continue };
        let sandbox = Sandbox::new();
        let stripped = sandbox.path().join("libnccl.so.2");
        let mut strip = Command::new("strip");
        finish(strip.arg("-s").arg("-o").arg(&stripped).arg(&library)).exits(0);
        let result = with_library(&sandbox, &stripped).exits(0).result();
        let plain = version.split('+').next();
        assert_eq!(result.nccl.version.as_deref(), plain);
        let json = serde_json::to_value(&result).expect("JSON");
        let all = json["paths"][0]["observations"].as_array().expect("a list");
        let named = |o: &&serde_json::Value| o["variable"] == "NCCL_GDRCOPY_ENABLE";
        let integer = all.iter().find(named).expect("the integer canary");
        assert_eq!([&integer["exec"], &integer["live"], &integer["read"]], ["100001"; 3]);
        assert_eq!(integer["latched"]["value"], 100_001, "NCCL {version}: {integer}");
        let effect = all[0]["effect"]["unreadable"].as_str().unwrap_or_default();
        assert!(effect.contains("no symbol table"), "NCCL {version}: {}", all[0]);
        assert_eq!(json["effect_source"]["provenance"], "none");
        let told = result.findings.iter().filter(|f| f.code.number() == "ND0123");
        assert_eq!(told.count(), 1, "{:?}", result.findings);
    }
}

fn with_python(sandbox: &Sandbox, python: &Path) -> EnvCheck {
    let mut command = sandbox.env_check(["--path", "fork-exec,py-spawn", "--format", "json"]);
    let result = finish(command.args(["--timeout", "2", "--python"]).arg(python));
    let result = result.exits(0).result();
    assert_eq!(status(&result, "fork-exec"), Status::Ran);
    result
}

#[test]
fn a_python_that_does_not_work_costs_only_its_paths() {
    let sandbox = Sandbox::new();
    let scripts = [
        ("garbage", "#!/bin/sh\nhead -c 4096 /dev/urandom\n"),
        ("failing", "#!/bin/sh\necho broken pyenv >&2\nexit 3\n"),
        ("python2", "#!/bin/sh\necho '{\"executable\": 5}'\n"),
        ("notexec", "no interpreter line\n"),
    ];
    for (name, text) in scripts {
        let python = sandbox.script(name, text);
        let result = with_python(&sandbox, &python);
        assert_eq!(status(&result, "py-spawn"), Status::Skipped, "{name}");
        assert!(reason(&result, "py-spawn").contains(name), "{}", reason(&result, "py-spawn"));
    }
    let result = with_python(&sandbox, Path::new("/no/such/python"));
    assert!(reason(&result, "py-spawn").contains("/no/such/python"));
    let result = with_python(&sandbox, Path::new("no-such-python"));
    assert!(reason(&result, "py-spawn").contains("no-such-python"));
    sandbox.assert_nothing_left();
}

#[test]
fn a_python_that_hangs_is_ended() {
    let sandbox = Sandbox::new();
    let python = sandbox.script("hanging", "#!/bin/sh\nsleep 600\n");
    let result = with_python(&sandbox, &python);
    assert_eq!(status(&result, "py-spawn"), Status::Skipped);
    assert!(reason(&result, "py-spawn").contains("hanging"));
    sandbox.wait_until_empty();
}

#[test]
fn a_probe_that_hangs_is_ended_and_other_paths_run() {
    let sandbox = Sandbox::new();
    let mut all = vec!["--timeout", "1", "--path", "fork-exec", "--format", "json", "--"];
    all.extend(["sh", "-c", "sleep 600; : {probe}"]);
    let result = sandbox.check(all).exits(0).result();
    assert_eq!(status(&result, "fork-exec"), Status::Ran);
    assert_eq!(status(&result, "custom"), Status::Failed);
    let why = reason(&result, "custom");
    assert!(why.contains("1 s") && why.contains("--timeout"), "{why}");
    sandbox.assert_nothing_left();
}

#[test]
fn odd_names_of_the_temp_folder_do_not_matter() {
    let long = format!("{}/{}", "d".repeat(120), "e".repeat(120));
    let odd = OsString::from_vec(b"not \xff text".to_vec());
    let names: [OsString; 5] =
        ["a b".into(), "new\nline".into(), "quote'\"$HOME`".into(), long.into(), odd];
    for name in names {
        let sandbox = Sandbox::new();
        let folder = sandbox.tmp().join(&name);
        std::fs::create_dir_all(&folder).expect("create");
        let paths = "fork-exec,sh-c,make-export,py-spawn,py-forkserver,py-site-venv,nccl-conf-file";
        let mut command = sandbox.env_check(["--format", "json", "--path", paths]);
        let result = finish(command.env("TMPDIR", &folder)).exits(0).result();
        for path in &result.paths {
            // A Makefile line and Python's venv module have limits of their own.
            let allowed = match path.id.as_str() {
                "make-export" => name == "new\nline",
                "py-site-venv" => name.to_str().is_none(),
                _ => false,
            };
            assert!(
                allowed || path.status == Status::Ran,
                "{name:?} {}: {:?}",
                path.id,
                path.reason
            );
        }
        let left: Vec<_> = std::fs::read_dir(&folder).expect("list").flatten().collect();
        assert!(left.is_empty(), "{name:?}: {left:?}");
    }
}

/// A run in a mount namespace of its own, in which root can mount what it
/// likes, also over the folder that the program lies in.
fn in_namespace(sandbox: &Sandbox, set_up: &str) -> Option<Command> {
    if !is_root() || !has_tools(&["unshare", "mount"]) {
        return None;
    }
    let works = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "x", "/mnt"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        skip("this machine refuses new mount namespaces");
        return None;
    }
    let line = format!(
        "mount -t tmpfs none /mnt && cp \"$2\" /mnt/nccldiag && {set_up} && \
         shift 2 && exec /mnt/nccldiag env-check \"$@\""
    );
    let mut command = sandbox.prepared("unshare");
    command.args(["-m", "sh", "-ec", &line, "sh"]).arg(sandbox.tmp());
    command.arg(crate::harness::PROGRAM).args(SIMPLE);
    Some(command)
}

#[test]
fn a_temp_folder_that_is_read_only_or_noexec_is_named_and_another_taken() {
    for (options, word) in [("ro", "Read-only"), ("noexec", "noexec")] {
        let sandbox = Sandbox::new();
        let set_up = format!("mount -t tmpfs -o {options} none \"$1\"");
        let Some(mut command) = in_namespace(&sandbox, &set_up) else { return };
        let ended = finish(&mut command);
        let result = ended.exits(0).complains(&[word, "cannot be used"]).result();
        assert_eq!(result.paths[0].status, Status::Ran);
        sandbox.assert_nothing_left();
    }
}

#[test]
fn no_usable_temp_folder_at_all_is_an_error_that_names_them() {
    let sandbox = Sandbox::new();
    let noexec =
        "for d in \"$1\" /tmp /dev/shm /var/tmp; do mount -t tmpfs -o noexec none $d; done";
    let Some(mut command) = in_namespace(&sandbox, noexec) else { return };
    command.env_remove("XDG_RUNTIME_DIR");
    finish(&mut command).exits(3).complains(&["TMPDIR", "/dev/shm", "/var/tmp"]);
}

#[test]
fn a_flood_of_the_log_of_nccl_does_no_harm() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let mut command = sandbox.env_check(["--format", "json", "-e", "NCCL_DEBUG=TRACE"]);
    command.args(["-e", "NCCL_DEBUG_SUBSYS=ALL", "-e", "NCCL_GDRCOPY_ENABLE=4711"]);
    command.args(["--path", "fork-exec,popen,sh-c,py-spawn,py-pool", "--nccl"]).arg(library);
    command.args(["--", "sh", "-c", "{probe}"]);
    let result = finish(&mut command).exits(0).result();
    for path in &result.paths {
        assert_eq!(path.status, Status::Ran, "{}: {:?}", path.id, path.reason);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn names_of_libraries_that_are_none_are_usage_errors() {
    let sandbox = Sandbox::new();
    for (text, hint) in [
        ("pip:../../x", "pip:"),
        ("pip:", "pip:"),
        ("pip:2.27.7+cu11", "cu13"),
        ("pid:abc", "pid"),
        ("pid:-1", "pid"),
        ("wheel:2", "auto"),
        ("", "auto"),
    ] {
        let ended = sandbox.check(["--nccl", text]);
        ended.exits(2).complains(&[hint]);
        assert_eq!(ended.out(), "", "--nccl {text}");
    }
}
