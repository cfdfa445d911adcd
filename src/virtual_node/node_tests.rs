//! The virtual node against real libraries from the user's cache: three of
//! them, or all with `NCCLDIAG_TEST_WHEELS=all`.

use super::*;
use crate::nccl::cache::Entry;
use crate::nccl::collective::Collective;
use crate::nccl::testing;
use crate::virtual_node::testing::{some_libraries, through_this_program, topology};

const SIZES: [u64; 7] = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30];

/// A node of this library and topology that runs in this test program.
fn spec(library: &Entry, topology: Topology, mode: Mode) -> NodeSpec {
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(library.path.clone(), topology, model).expect("this program");
    spec.mode = mode;
    through_this_program(&mut spec);
    spec
}

#[test]
fn libraries_run_eight_ranks_on_every_model() {
    for library in some_libraries() {
        for name in
            ["handmade-h100-nvswitch", "handmade-a100-nvswitch", "handmade-rtxpro6000-2socket"]
        {
            for mode in [Mode::Processes, Mode::OneProcess] {
                let Some(topology) = topology(&format!("{name}.xml")) else { return };
                run(&library, name, spec(&library, topology, mode));
            }
        }
    }
}

/// Runs every size and prints how long it took.
fn run(library: &Entry, name: &str, spec: NodeSpec) {
    let what = format!("{} {name} {:?}", library.wheel, spec.mode);
    let start = Instant::now();
    let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{what}: {error}"));
    let started = start.elapsed();
    let init = node.init().unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = Instant::now();
    let one = node
        .enqueue(Collective::AllReduce, &SIZES[..1])
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = first.elapsed();
    let all = node
        .enqueue(Collective::AllReduce, &SIZES)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(one.len(), spec.ranks, "{what}: one launch a rank");
    assert!(all.len() >= SIZES.len() * spec.ranks, "{what}: {all:?}");
    assert!(
        all.iter()
            .all(|launch| launch.kernel.contains("AllReduce") || launch.kernel.starts_with("_Z")),
        "{what}"
    );
    node.destroy().unwrap_or_else(|error| panic!("{what}: {error}"));
    println!("{what}: start {started:.2?}, init {init:.2?}, first all-reduce {first:.2?}");
}

/// The library that most tests of the driver use.
fn any_spec(ranks: usize) -> Option<NodeSpec> {
    let library = testing::libraries().pop()?;
    let mut spec = spec(&library, topology("handmade-h100-nvswitch.xml")?, Mode::Processes);
    spec.ranks = ranks;
    Some(spec)
}

#[test]
fn a_function_that_is_not_implemented_is_an_error_with_its_name() {
    let Some(spec) = any_spec(1) else { return };
    let mut description =
        describe(&spec.library, &spec.topology, &spec.model, None).expect("an official wheel");
    let entry = description.entries.iter_mut().find(|entry| entry.name == "cudaDeviceGetAttribute");
    entry.expect("it is there").name = "cudaDeviceGetAttribute_v9".into();
    let mut node = Node::start_as(&spec, &description).expect("a node");
    let error = node.init().expect_err("no such function").to_string();
    assert!(error.contains("NCCL called cudaDeviceGetAttribute_v9, which"), "{error}");
}

#[test]
fn too_few_open_files_are_named_as_the_reason() {
    let Some(mut spec) = any_spec(2) else { return };
    let shell = ["sh", "-c", "ulimit -n 40; exec \"$0\" \"$@\""].map(Into::into);
    spec.command.splice(0..0, shell);
    let error = Node::start(&spec).and_then(|mut node| {
        node.init()?;
        node.enqueue(Collective::AllReduce, &[1 << 20])
    });
    let error = error.expect_err("40 files are too few").to_string();
    assert!(error.contains("Too many open files"), "{error}");
}

#[test]
fn a_rank_that_dies_and_one_that_hangs_are_reported() {
    let Some(mut spec) = any_spec(2) else { return };
    let mut node = Node::start(&spec).expect("a node");
    let victim = nix::unistd::Pid::from_raw(node.pids()[1].cast_signed());
    nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).expect("our own child");
    let error = node.init().expect_err("a rank is gone").to_string();
    assert!(error.contains("virtual rank 1 ended"), "{error}");
    drop(node);
    spec.limit = Duration::from_millis(1500);
    let mut node = Node::start(&spec).expect("a node");
    let victim = nix::unistd::Pid::from_raw(node.pids()[1].cast_signed());
    nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGSTOP).expect("our own child");
    let error = node.init().expect_err("a rank stands still").to_string();
    assert!(error.contains("had not ended after 1.5s"), "{error}");
}

#[test]
fn capture_makes_and_launches_graphs() {
    for library in some_libraries() {
        let Some(topology) = topology("handmade-h100-nvswitch.xml") else { return };
        let mut spec = spec(&library, topology, Mode::Processes);
        spec.ranks = 2;
        let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{error}"));
        node.init().unwrap_or_else(|error| panic!("{}: {error}", library.wheel));
        let launches = node.capture(Collective::AllReduce, &[1 << 20, 1 << 10]);
        let launches = launches.unwrap_or_else(|error| panic!("{}: {error}", library.wheel));
        assert!(launches.len() >= 4, "{}: {launches:?}", library.wheel);
        node.destroy().unwrap_or_else(|error| panic!("{}: {error}", library.wheel));
    }
}

#[test]
fn more_ranks_than_gpus_are_refused() {
    let Some(spec) = any_spec(9) else { return };
    assert!(matches!(Node::start(&spec), Err(NodeError::Ranks { ranks: 9, gpus: 8 })));
}

/// Every machine that somebody dumped or wrote down, on three libraries.
#[test]
fn every_topology_of_the_corpus_runs() {
    for library in some_libraries() {
        for (name, model) in [
            ("azure-ndv4", Some("a100")),
            ("azure-ndv5", Some("h100")),
            ("aws-p4d", Some("a100")),
            ("handmade-b200-nvswitch", None),
            ("handmade-rtx4090", None),
            ("handmade-rtxpro6000-pcieswitch", None),
            ("l20", Some("rtx4090")),
            ("oci-flattened", Some("a100")),
            ("oci-h100", None),
            ("rtx4090x4", None),
        ] {
            let Some(topology) = topology(&format!("{name}.xml")) else { return };
            let what = format!("{} {name}", library.wheel);
            let model = topology.model(model).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut spec = NodeSpec::new(library.path.clone(), topology, model).expect("a spec");
            through_this_program(&mut spec);
            let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{what}: {error}"));
            node.init().unwrap_or_else(|error| panic!("{what}: {error}\n{}", node.logs().concat()));
            node.enqueue(Collective::AllReduce, &SIZES)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            println!("{what}: {} ranks", spec.ranks);
        }
    }
}

/// What steers NCCL on this machine must not steer it on the described one,
/// unless the user says so.
#[test]
fn conf_files_and_the_callers_variables_stay_out_unless_asked_for() {
    let Some(library) = testing::libraries().pop() else { return };
    let folder = tempfile::tempdir().expect("temp folder");
    let conf = folder.path().join(".nccl.conf");
    std::fs::write(&conf, "NCCL_ALGO=Tree\n").expect("space for it");
    let home = ("HOME", folder.path());
    let named = ("NCCL_CONF_FILE", conf.as_path());
    for (inherit, variable, expected) in
        [(false, home, "RING"), (true, home, "TREE"), (false, named, "TREE")]
    {
        let Some(topology) = topology("handmade-a100-nvswitch.xml") else { return };
        let mut spec = spec(&library, topology, Mode::Processes);
        (spec.ranks, spec.conf_files) = (2, inherit);
        spec.variables.push((variable.0.into(), variable.1.into()));
        let mut node = Node::start(&spec).unwrap_or_else(|error| panic!("{error}"));
        node.init().unwrap_or_else(|error| panic!("{error}"));
        let launches = node
            .enqueue(Collective::AllReduce, &[1 << 30])
            .unwrap_or_else(|error| panic!("{error}"));
        let log = node.logs().swap_remove(0);
        assert!(log.contains(&format!("Algo {expected} ")), "{inherit} {variable:?}: {launches:?}");
    }
}

/// Prints where the time goes; docs/measurements.md has the figures.
#[test]
fn twenty_eight_sizes_on_eight_ranks() {
    for library in some_libraries() {
        let Some(topology) = topology("handmade-h100-nvswitch.xml") else { return };
        let start = Instant::now();
        let mut last = start;
        let mut times = Vec::new();
        let mut lap = |what: &str| {
            times.push(format!("{what} {:.2?}", last.elapsed()));
            last = Instant::now();
        };
        let mut node = Node::start(&spec(&library, topology, Mode::Processes)).expect("a node");
        lap("start");
        node.init().expect("a communicator");
        lap("init");
        let sizes: Vec<u64> = (3..=30).map(|power| 1 << power).collect();
        let mut launches = node.enqueue(Collective::AllReduce, &sizes[..1]).expect("all-reduces");
        lap("first");
        launches.extend(node.enqueue(Collective::AllReduce, &sizes[1..]).expect("all-reduces"));
        lap("others");
        let simulated = node.simulate(Collective::AllReduce, &sizes).map_or(0, |times| times.len());
        lap("estimates");
        drop(node);
        lap("end");
        println!("{}: {:.2?}: {}", library.wheel, start.elapsed(), times.join(", "));
        assert!(launches.len() >= sizes.len() * 8, "{}: {launches:?}", library.wheel);
        assert!(simulated == 0 || simulated == sizes.len(), "{}: {simulated}", library.wheel);
    }
}
