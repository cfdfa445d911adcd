//! Launchers of the user's own: everything between the shell that sets the
//! values and a `{probe}`.

use crate::harness::{
    OnTerminal, OpenCopy, Sandbox, finish, has_tools, is_root, main_library, skip,
};
use nccldiag::model::{EnvCheck, Latched, Observation, Seen, Status};
use std::ffi::OsString;
use std::process::Command;

/// A run of one launcher with the main library, or none where it is missing.
fn launcher(sandbox: &Sandbox, words: &[&str]) -> Command {
    let library = main_library().map_or_else(|| "auto".into(), |path| path.into_os_string());
    let before = ["--format", "json", "--timeout", "60", "--nccl"];
    let mut all: Vec<OsString> = before.map(Into::into).into();
    all.push(library);
    all.push("--".into());
    all.extend(words.iter().map(Into::into));
    sandbox.env_check(all)
}

fn run(sandbox: &Sandbox, words: &[&str]) -> EnvCheck {
    let result = finish(&mut launcher(sandbox, words)).exits(0).result();
    sandbox.assert_nothing_left();
    result
}

/// E, L and N of the integer in each observed process: value, no or why not.
fn integers(result: &EnvCheck) -> Vec<[String; 3]> {
    let [path] = &result.paths[..] else { panic!("one path: {result:?}") };
    assert_eq!(path.status, Status::Ran, "{:?}", path.reason);
    let integer = |o: &&Observation| o.variable == "NCCL_GDRCOPY_ENABLE";
    let seen = |seen: &Seen| match seen {
        Seen::Value(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Seen::Absent => "no".into(),
        Seen::Unreadable(why) => why.to_string(),
    };
    let latched = |latched: &Latched| match latched {
        Latched::Value(n) => n.to_string(),
        other => format!("{other:?}"),
    };
    let of = |o: &Observation| [seen(&o.exec), seen(&o.live), latched(&o.latched)];
    path.observations.iter().filter(integer).map(of).collect()
}

const DELIVERED: [&str; 3] = ["100001"; 3];
const LOST: [&str; 3] = ["no", "no", "0"];

fn expect(result: &EnvCheck, expected: &[[&str; 3]]) {
    assert_eq!(integers(result), expected);
}

#[test]
fn launchers_that_inherit_deliver() {
    if main_library().is_none() {
        return;
    }
    for words in [
        &["{probe}"][..],
        &["nice", "{probe}"],
        &["sh", "-c", "{probe}"],
        &["sh", "-c", "exec {probe}"],
        &["bash", "-lc", "true; {probe}; true"],
        &["setsid", "-w", "{probe}"],
        &["stdbuf", "-oL", "{probe}"],
        &["env", "A=1", "sh", "-c", "\"$@\"", "sh", "{probe}"],
    ] {
        expect(&run(&Sandbox::new(), words), &[DELIVERED]);
    }
}

#[test]
fn launchers_that_clear_the_environment_lose() {
    if main_library().is_none() {
        return;
    }
    for words in [&["env", "-i", "{probe}"][..], &["env", "-u", "NCCL_GDRCOPY_ENABLE", "{probe}"]] {
        expect(&run(&Sandbox::new(), words), &[LOST]);
    }
}

#[test]
fn each_of_several_probes_is_observed() {
    if main_library().is_none() {
        return;
    }
    let result = run(&Sandbox::new(), &["sh", "-c", "{probe} & env -i {probe} & wait"]);
    let mut found = integers(&result);
    found.sort();
    assert_eq!(found, [DELIVERED, LOST]);
    let processes: Vec<usize> = result.paths[0].observations.iter().map(|o| o.process).collect();
    assert_eq!(processes, [[0; 7], [1; 7]].concat());
}

#[test]
fn a_probe_that_only_needs_sh_or_python_says_exec_and_live() {
    let why = "does not call NCCL";
    for form in ["{probe-sh}", "{probe-py}"] {
        let result = run(&Sandbox::new(), &[form]);
        let found = integers(&result);
        assert_eq!(found[0][..2], ["100001"; 2], "{form}");
        let lost = integers(&run(&Sandbox::new(), &["env", "-i", "PATH=/usr/bin:/bin", form]));
        assert_eq!(lost[0][..2], ["no"; 2], "{form}");
        if main_library().is_some() {
            assert!(found[0][2].contains(why), "{form}: {}", found[0][2]);
        }
    }
}

/// The report must get through output that looks a little like it.
#[test]
fn noise_around_the_report_does_no_harm() {
    let noise = "echo @nccldiag:; printf '@nccldiag:00:x:0:1:zz@'; head -c 65536 /dev/urandom; \
                 echo; yes noise | head -n 2000; echo @nccldiag:";
    let line = format!("{noise}; {{probe-sh}}; {noise}");
    let result = run(&Sandbox::new(), &["sh", "-c", &line]);
    assert_eq!(integers(&result)[0][..2], ["100001"; 2]);
}

#[test]
fn a_launcher_without_a_place_for_the_probe_is_a_usage_error() {
    let ended = finish(&mut launcher(&Sandbox::new(), &["ssh", "host"]));
    ended.exits(2).complains(&["{probe}"]);
}

#[test]
fn a_launcher_that_does_not_exist_or_fails_is_reported_with_what_it_said() {
    let sandbox = Sandbox::new();
    let failed = |words: &[&str]| {
        let result = finish(&mut launcher(&sandbox, words)).exits(3).result();
        assert_eq!(result.paths[0].status, Status::Failed);
        result.paths[0].reason.clone().unwrap_or_default()
    };
    let missing = failed(&["no-such-launcher-here", "{probe}"]);
    assert!(missing.contains("no-such-launcher-here"), "{missing}");
    let refused = failed(&["sh", "-c", "echo host unreachable >&2; exit 7; : {probe}"]);
    assert!(refused.contains("host unreachable") && refused.contains('7'), "{refused}");
}

#[test]
fn a_probe_under_another_user_is_observed() {
    if !is_root() || !has_tools(&["setpriv"]) {
        return;
    }
    let Some(copy) = OpenCopy::new() else { return };
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared(copy.program());
    command.args(["env-check", "--format", "json", "--nccl"]).arg(copy.library());
    command.args(["--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "{probe}"]);
    expect(&finish(&mut command).exits(0).result(), &[DELIVERED]);
    sandbox.assert_nothing_left();
}

#[test]
fn other_namespaces_are_seen_through() {
    if !is_root() || !has_tools(&["unshare"]) || main_library().is_none() {
        return;
    }
    let works = Command::new("unshare").args(["-m", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("this machine refuses new mount namespaces");
    }
    for words in [
        &["unshare", "-m", "{probe}"][..],
        &["unshare", "--pid", "--fork", "--mount-proc", "{probe}"],
        &["unshare", "-m", "--pid", "--fork", "{probe}"],
        &["unshare", "--net", "{probe}"],
    ] {
        let result = run(&Sandbox::new(), words);
        let found = integers(&result);
        assert_eq!(found[0][..2], ["100001"; 2], "{words:?}");
        assert_eq!(found[0][2], "100001", "{words:?}");
    }
}

/// A server that is already there hands out its own environment.
#[test]
fn tmux_delivers_only_what_its_server_has() {
    if !has_tools(&["tmux"]) || main_library().is_none() {
        return;
    }
    let sandbox = Sandbox::new();
    let server = sandbox.path().join("tmux");
    let server = server.to_str().expect("plain");
    let tmux = |words: &[&str]| {
        let mut command = sandbox.prepared("tmux");
        finish(command.args(["-f", "/dev/null", "-S", server]).args(words))
    };
    tmux(&["new-session", "-d", "-s", "first", "sh"]).exits(0);
    let frozen = ["tmux", "-S", server, "new-window", "-t", "first", "{probe}"];
    let frozen = finish(&mut launcher(&sandbox, &frozen)).exits(0).result();
    tmux(&["kill-server"]).exits(0);
    expect(&frozen, &[LOST]);
    // Not the same socket: the first server may not have left it yet.
    let second = format!("{server}2");
    let fresh = ["tmux", "-f", "/dev/null", "-S", &second, "new-session", "-d", "{probe}"];
    let fresh = finish(&mut launcher(&sandbox, &fresh)).exits(0).result();
    expect(&fresh, &[DELIVERED]);
    sandbox.wait_until_empty();
    assert_eq!(sandbox.leftovers().len(), 0);
}

#[test]
fn a_launcher_can_ask_on_the_terminal() {
    let sandbox = Sandbox::new();
    let script = "read -r answer </dev/tty && test \"$answer\" = secret && {probe-sh}";
    let mut command = sandbox.prepared("setsid");
    command.args(["--ctty", "--wait", crate::harness::PROGRAM, "env-check", "--format", "csv"]);
    command.args(["--", "sh", "-c", script]);
    let mut terminal = OnTerminal::new(&mut command);
    terminal.types("secret\n");
    let (status, text) = terminal.end();
    assert!(status.success(), "{text}");
    assert!(text.contains("custom,custom,ran"), "{text}");
}
