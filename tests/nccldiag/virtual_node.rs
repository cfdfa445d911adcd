//! What a run on a virtual node does to this machine: nothing.

use crate::harness::{PROGRAM, Sandbox, finish, has_tools, main_library, node_trace, skip};
use std::path::{Path, PathBuf};

/// A topology of the corpus; skips when it is not there.
fn topology(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    let root = std::env::var_os("NCCLDIAG_CORPUS").map_or(beside, PathBuf::from);
    let path = root.join("topologies").join(name);
    if path.is_file() {
        return Some(path);
    }
    skip(&format!("no {} (set NCCLDIAG_CORPUS)", path.display()));
    None
}

#[test]
fn explain_touches_no_driver_no_device_and_no_file() {
    let Some(library) = main_library().filter(|_| has_tools(&["strace"])) else { return };
    let Some(topology) = topology("handmade-rtxpro6000-2socket.xml") else { return };
    let sandbox = Sandbox::new();
    let trace = sandbox.path().join("trace");
    let mut command = sandbox.prepared("strace");
    command.args(["-f", "-qq", "-s", "512", "-e", node_trace::CALLS, "-o"]).arg(&trace);
    command.args([PROGRAM, "explain", "--topology"]).arg(topology).arg("--nccl").arg(library);
    let ended = finish(&mut command);
    if ended.status.code() == Some(1) && ended.err().contains("PTRACE_TRACEME") {
        return skip("strace may not trace here");
    }
    ended.exits(0);
    let trace = std::fs::read(&trace).expect("a trace");
    let trace = String::from_utf8_lossy(&trace);
    assert!(trace.contains("libnccl.so.2"), "the trace is of a whole run");
    let wrong = node_trace::wrong(&trace, Some(&sandbox.tmp()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(sandbox.leftovers(), Vec::<PathBuf>::new());
}
