//! What a virtual node leaves behind: nothing. No process, no shared memory, no
//! open files; and what it never touches: the driver's libraries and devices,
//! and the file of the library.

use super::describe::{DescribeError, describe};
use super::node::{Mode, Node, NodeSpec};
use super::node_trace;
use super::testing::{rank_zero, started, through_this_program, topology};
use crate::nccl::collective::Collective;
use crate::nccl::testing;
use crate::testing::skipped;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RTX: &str = "handmade-rtxpro6000-2socket.xml";
const H100: &str = "handmade-h100-nvswitch.xml";

/// A node on the first (`oldest`) or last library of the cache.
fn spec(oldest: bool, name: &str) -> Option<NodeSpec> {
    let mut libraries = testing::libraries();
    let library = if oldest { libraries.drain(..).next() } else { libraries.pop() }?;
    let topology = topology(name)?;
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(library.path, topology, model).expect("this program");
    through_this_program(&mut spec);
    Some(spec)
}

#[test]
fn a_hundred_communicators_leave_no_file_open() {
    for (oldest, name, mode) in [
        (false, H100, Mode::Processes),
        (true, RTX, Mode::Processes),
        (false, RTX, Mode::OneProcess),
    ] {
        let Some(mut spec) = spec(oldest, name) else { return };
        (spec.ranks, spec.mode) = (2, mode);
        let mut node = Node::start(&spec).expect("a node");
        let mut open = Vec::new();
        for round in 0..100 {
            node.init().unwrap_or_else(|error| panic!("round {round}: {error}"));
            node.enqueue(Collective::AllReduce, &[1 << 20]).expect("an all-reduce");
            open.push(node.destroy().expect("destroyed")[0]);
        }
        assert!(open[99] <= open[9], "{name} {mode:?}: {open:?}");
    }
}

#[test]
fn sixteen_nodes_at_once_do_not_disturb_each_other_and_leave_nothing() {
    let Some(mut spec) = spec(false, H100) else { return };
    spec.ranks = 2;
    let run = || {
        let mut node = started(&spec);
        let sizes = [1 << 10, 1 << 28];
        let done = node.enqueue(Collective::AllReduce, &sizes);
        let launches = done.unwrap_or_else(|error| panic!("{error}"));
        let times = node.simulate(Collective::AllReduce, &sizes);
        let times = times.unwrap_or_else(|error| panic!("{error}"));
        (launches, times, rank_zero(&node.logs()[0]).choices, node.pids())
    };
    let before = shared_memory();
    let (launches, times, choices, _) = run();
    assert_eq!((times.len(), choices.len()), (2, 2));
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(run)).collect();
        for one in all {
            let one = one.join().expect("no panic");
            assert_eq!((&one.0, &one.1, &one.2), (&launches, &times, &choices));
            let there = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
            assert!(!one.3.iter().any(there), "{:?} have been waited for", one.3);
        }
    });
    assert_eq!(shared_memory(), before);
}

/// A collective of one rank is a copy from one buffer to the other.
#[test]
fn a_gigabyte_on_one_rank_takes_no_memory() {
    for oldest in [true, false] {
        let Some(mut spec) = spec(oldest, H100) else { return };
        spec.ranks = 1;
        let mut node = started(&spec);
        node.enqueue(Collective::AllReduce, &[1 << 30]).expect("an all-reduce");
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.pids()[0]));
        let status = status.expect("our own child");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most = most.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        assert!(most.is_some_and(|kib| kib < 512 << 10), "{most:?} KiB");
    }
}

/// Not a test by itself: a driver in a process of its own, for the tests below.
/// Prints its ranks, then does nothing.
#[test]
fn driver_child() {
    let Some(oldest) = std::env::var_os("NCCLDIAG_TEST_DRIVER") else { return };
    let Some(spec) = spec(oldest == "oldest", RTX) else { return };
    let mut node = Node::start(&spec).expect("a node");
    node.init().expect("a communicator");
    node.enqueue(Collective::AllReduce, &[1 << 20]).expect("an all-reduce");
    println!("\nranks {:?}", node.pids());
    if std::env::var_os("NCCLDIAG_TEST_HOLD").is_some() {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn driver(oldest: bool) -> Vec<std::ffi::OsString> {
    let program = std::env::current_exe().expect("this test");
    let mut command = vec!["env".into()];
    command
        .push(format!("NCCLDIAG_TEST_DRIVER={}", if oldest { "oldest" } else { "newest" }).into());
    command.push(program.into());
    let name = "virtual_node::leftover_tests::driver_child";
    command.extend(["--exact", name, "--nocapture"].map(Into::into));
    command
}

fn shared_memory() -> BTreeSet<String> {
    let list = std::fs::read_dir("/dev/shm").expect("it exists").flatten();
    let names = list.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("nccl-")).collect()
}

#[test]
fn a_driver_that_is_killed_leaves_nothing_behind() {
    for oldest in [true, false] {
        if spec(oldest, RTX).is_none() {
            return;
        }
        let before = shared_memory();
        let words = driver(oldest);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("NCCLDIAG_TEST_HOLD", "1").stdout(Stdio::piped());
        let mut child = command.spawn().expect("this test again");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ranks = lines.map_while(Result::ok).find_map(|line| {
            let list = line.strip_prefix("ranks [")?.strip_suffix(']')?.to_owned();
            Some(list.split(", ").map(|pid| pid.parse().expect("a pid")).collect::<Vec<u32>>())
        });
        let ranks = ranks.expect("the driver prints its ranks");
        assert_eq!(ranks.len(), 8);
        assert_eq!(shared_memory(), before, "no names in /dev/shm while ranks run");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        let limit = Instant::now() + Duration::from_secs(10);
        let alive = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        while ranks.iter().any(alive) {
            assert!(Instant::now() < limit, "ranks are still there");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(shared_memory(), before);
    }
}

/// The files that a whole run opens, changes and executes, by strace.
fn traced(oldest: bool) -> Option<String> {
    let folder = tempfile::tempdir().expect("temp folder");
    let trace = folder.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-s", "512", "-e", node_trace::CALLS, "-o"]);
    let why = match command.arg(&trace).args(driver(oldest)).output() {
        Ok(output) if output.status.success() => {
            let bytes = std::fs::read(&trace).expect("a trace");
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    skipped(&format!("strace: {why}"));
    None
}

#[test]
fn no_driver_no_device_and_no_written_file() {
    if spec(false, RTX).is_none() {
        return;
    }
    for text in [true, false].into_iter().filter_map(traced) {
        assert!(text.contains("libnccl.so.2"), "the trace is of a whole run");
        let wrong = node_trace::wrong(&text, None);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn an_ordinary_user_needs_nothing_more() {
    if !nix::unistd::geteuid().is_root() {
        return; // every other test has shown it
    }
    let Some(mut spec) = spec(true, RTX) else { return };
    // The cache and this program may be in a folder that only root can enter.
    let folder = tempfile::tempdir().expect("temp folder");
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    };
    open(folder.path());
    for (name, from) in [("lib.so", spec.library.clone()), ("test", spec.command[0].clone().into())]
    {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).expect("space for it");
        open(&to);
    }
    spec.library = folder.path().join("lib.so");
    spec.command[0] = folder.path().join("test").into();
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(Into::into);
    spec.command.splice(0..0, user);
    let mut node = match Node::start(&spec) {
        Ok(node) => node,
        Err(error) => {
            skipped(&format!("setpriv: {error}"));
            return;
        }
    };
    node.init().unwrap_or_else(|error| panic!("{error}"));
    node.enqueue(Collective::AllReduce, &[1 << 20]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_library_without_symbols_is_refused_with_the_way_out() {
    let Some(spec) = spec(true, RTX) else { return };
    let folder = tempfile::tempdir().expect("temp folder");
    let stripped = folder.path().join("libnccl.so.2");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&spec.library).status();
    if !strip.is_ok_and(|status| status.success()) {
        skipped("no strip");
        return;
    }
    let error = describe(&stripped, &spec.topology, &spec.model, None).expect_err("it is stripped");
    assert!(matches!(error, DescribeError::Stripped { .. }), "{error}");
    let other = describe(Path::new("/proc/self/exe"), &spec.topology, &spec.model, None);
    assert!(matches!(other, Err(DescribeError::NoRuntime { .. })), "{other:?}");
}
