//! Arguments, exit codes, and how a run ends.

use super::{asking, explain};
use crate::harness::{Sandbox, Started, eventually, finish, main_library};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

#[test]
fn wrong_usage_is_told_before_anything_runs() {
    let Some(library) = main_library() else { return };
    for (args, text) in [
        (&["--topology", "h100x8", "--sizes", "1T"][..], "--sizes"),
        (&["--topology", "h100x8", "--collective", "alltoall"], "--collective"),
        (&["--topology", "h100x8", "-e", "NCCL_ALGO"], "NAME=VALUE"),
        (&["--topology", "h100x8", "--vs", "A='1"], "--vs"),
        (&["--topology", "h100x8", "--driver", "550"], "--driver"),
        (&["--topology", "h100x8", "--gpus", "9"], "--gpus 9"),
        (&["--topology", "h100x8", "--fail-on", "ND9999"], "--fail-on"),
        (&[], "--topology"),
    ] {
        explain(&library, args.iter()).exits(2).complains(&[text]);
    }
    for (args, text) in [
        (&["--topology", "/no/such/file"][..], "/no/such/file"),
        (&["--topology", "h100x9"], "h100x8"),
        (&["--topology", "h100x8", "--gpu", "rtx4090"], "compute capability"),
    ] {
        explain(&library, args.iter()).exits(3).complains(&[text]);
    }
    explain(Path::new("/no/such/library"), ["--topology", "h100x8"])
        .exits(3)
        .complains(&["--nccl"]);
}

#[test]
fn findings_can_fail_a_script() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "rtxpro6000x8", "--sizes", "8", "--once", "--fail-on"];
    explain(&library, args.iter().chain(&["no-channels-found"])).exits(1);
    explain(&library, args.iter().chain(&["ND0208"])).exits(0);
    explain(&library, args.iter().chain(&["any"])).exits(1);
}

#[test]
fn the_presets_are_listed() {
    let ended = finish(Sandbox::new().program().args(["explain", "--list"]));
    let text = ended.exits(0).out();
    for name in ["h100x8", "rtxpro6000x8-switch", "rtx4090-p2p"] {
        assert!(text.contains(name), "{text}");
    }
}

/// NCCL opens its graph file at init, and opening a pipe waits for a writer: so
/// all ranks are inside NCCL when the program is killed.
#[test]
fn a_killed_explain_leaves_no_rank_behind() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let pipe = sandbox.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("make a pipe");
    let graph = format!("NCCL_GRAPH_FILE={}", pipe.display());
    let args = ["--topology", "h100x8", "-e", &graph];
    let mut run = Started::new(&mut asking(&sandbox, &library, args));
    eventually("eight ranks", || {
        assert!(run.is_running(), "it ended by itself");
        let ranks = sandbox.processes().iter().filter(|p| p.1.contains("__vrank")).count();
        (ranks == 8).then_some(())
    });
    run.signal(Signal::SIGKILL);
    assert_eq!(run.end().status.signal(), Some(Signal::SIGKILL as i32), "it was running");
    sandbox.wait_until_empty();
    sandbox.assert_nothing_left();
}
