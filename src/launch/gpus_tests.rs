//! A probe with a communicator on the virtual node, inside a real Python: it
//! ends as Python ends, with the exit code of its own.

use super::*;
use crate::launch::hub::Hub;
use crate::nccl::testing;
use crate::probes::session::SPEC;
use crate::testing::skipped;
use std::process::Stdio;

/// Starts the Python probe in the way `kind`, lets it go when it has reported,
/// and gives its exit code and report.
fn end_of(kind: &str, library: &Path) -> Option<(Option<i32>, Fields)> {
    let folder = RunFolder::create().expect("a usable folder");
    let hub = Hub::listen(&folder.socket()).expect("a socket");
    let arrivals = hub.expect("0");
    let launch = folder.launch(0).expect("a folder");
    let (description, _) = described(library).expect("an official library");
    let node = folder.put("node", description.as_bytes()).expect("space for it");
    let topology = folder.put("topology.xml", TOPOLOGY.as_bytes()).expect("space for it");
    let mut spec = Fields::default();
    spec.push("launch", "0")
        .push("socket", folder.socket().as_os_str().as_bytes())
        .push("probe_library", folder.probe_library().as_os_str().as_bytes())
        .push("library", library.as_os_str().as_bytes());
    folder.keep_out(&mut spec, true);
    tell_node(&mut spec, &node, &topology);
    std::fs::write(launch.join(SPEC), spec.encode()).expect("space for it");
    let mut python = Command::new("python3");
    python.arg(folder.script()).arg(kind).arg(&launch).stdin(Stdio::null());
    let Ok(mut child) = python.spawn() else {
        skipped("no python3");
        return None;
    };
    loop {
        let arrival = arrivals.recv_timeout(Duration::from_secs(60)).expect("a report in time");
        if arrival.fields.text("role") == Some("parent") {
            // It goes on when the hub answers it, and stays connected.
            std::mem::forget(arrival);
            continue;
        }
        let report = arrival.fields.clone();
        arrival.release();
        return Some((child.wait().expect("own child").code(), report));
    }
}

#[test]
fn python_children_with_a_communicator_end_as_python_does() {
    let libraries = testing::libraries();
    let (Some(oldest), Some(newest)) = (libraries.first(), libraries.last()) else { return };
    for library in [oldest, newest] {
        for kind in ["self", "py-fork", "py-spawn", "py-forkserver"] {
            let Some((code, report)) = end_of(kind, &library.path) else { return };
            let what = format!("{} {kind}", library.wheel);
            assert_eq!(report.text("init"), Some("1"), "{what}: {:?}", report.text("init-error"));
            assert_eq!(code, Some(0), "{what}");
        }
    }
}

#[test]
fn a_probe_that_sees_the_files_keeps_them_and_another_makes_its_own() {
    let Some(library) = testing::libraries().pop() else { return };
    let folder = tempfile::tempdir().expect("temp folder");
    let node = folder.path().join("node");
    std::fs::write(&node, "x").expect("space for it");
    let mut spec = Fields::default();
    spec.push("library", library.path.as_os_str().as_bytes());
    assert_eq!(readable_here(&spec), spec, "no communicator was asked for");
    tell_node(&mut spec, &node, &node);
    assert_eq!(readable_here(&spec), spec);
    std::fs::remove_file(&node).expect("it is there");
    let own = readable_here(&spec);
    assert_ne!(own.path("node"), spec.path("node"));
    let text = std::fs::read_to_string(own.path("node").expect("a node")).expect("a file");
    assert!(text.starts_with("nccldiag-virtual-node"), "{text}");
    let (_, topology) = own.assignments("substitute").next().expect("the own topology comes first");
    let topology = Path::new(std::ffi::OsStr::from_bytes(topology));
    assert_eq!(std::fs::read_to_string(topology).expect("a file"), TOPOLOGY);
}

/// Another machine has other GPUs, and a result says where its effect is from.
#[test]
fn real_gpus_are_left_to_probes_that_reach_the_driver() {
    let mut spec = Fields::default();
    spec.push("visible", "GPU-a,GPU-b").push("library", "/nccl");
    assert_eq!(readable_here(&spec), spec);
    let away_from_it = away(&spec);
    assert_eq!(away_from_it.first("visible"), None);
    assert_eq!(away_from_it.text("library"), Some("/nccl"));
    assert!(away_from_it.text("init-error").is_some_and(|why| why.contains("out of reach")));
    spec.push(TRIAL, "1");
    assert_eq!(away(&spec), spec, "the trial has no socket, and is here");
}
