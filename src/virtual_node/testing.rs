//! What tests of the virtual node share: a worker inside the test program, and
//! the corpus of real topologies and logs.

use super::node::{Node, NodeSpec};
use super::topology::Topology;
use super::worker;
use crate::nccl::cache::Entry;
use crate::nccl::log::{RankLog, collect};
use crate::nccl::testing;
use crate::testing::skipped;
use std::path::PathBuf;

/// Not a test by itself: becomes a worker when a test starts this program again
/// for that.
#[test]
fn worker_child() {
    if std::env::var_os("NCCLDIAG_TEST_WORKER").is_some() {
        worker::run();
    }
}

/// Whether the tests are to take all libraries of the cache.
pub(crate) fn all_wheels() -> bool {
    std::env::var_os("NCCLDIAG_TEST_WHEELS").is_some_and(|value| value == "all")
}

/// The oldest, a middle and the newest library of the cache; all of them with
/// `NCCLDIAG_TEST_WHEELS=all`.
pub(crate) fn some_libraries() -> Vec<Entry> {
    let all = testing::libraries();
    if all_wheels() {
        return all;
    }
    let last = all.len().saturating_sub(1);
    let chosen = [0, last / 2, last];
    let kept = all.into_iter().enumerate().filter(|(at, _)| chosen.contains(at));
    kept.map(|(_, library)| library).collect()
}

/// Makes a node start this test program as its ranks.
pub(crate) fn through_this_program(spec: &mut NodeSpec) {
    let program = std::env::current_exe().expect("this test");
    let name = "virtual_node::testing::worker_child";
    spec.command = vec![program.into()];
    spec.command.extend(["--exact", name, "--nocapture"].map(Into::into));
    spec.variables.push(("NCCLDIAG_TEST_WORKER".into(), "1".into()));
}

/// A file of the corpus, or a line that says that there is none.
pub(crate) fn corpus(name: &str) -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    let root = std::env::var_os("NCCLDIAG_CORPUS").map_or(beside, PathBuf::from);
    let path = root.join(name);
    let there = path.exists();
    if !there {
        skipped(&format!("no {} (set NCCLDIAG_CORPUS)", path.display()));
    }
    there.then_some(path)
}

/// A topology of the corpus.
pub(crate) fn topology(name: &str) -> Option<Topology> {
    let path = corpus(&format!("topologies/{name}"))?;
    Some(Topology::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

/// The cached wheel `name`, such as `2.32.3-cu12`.
pub(crate) fn library(name: &str) -> Option<Entry> {
    let found = testing::libraries().into_iter().find(|entry| {
        entry.path.parent().and_then(|p| p.file_name()).is_some_and(|folder| folder == name)
    });
    if found.is_none() {
        skipped(&format!("no libnccl {name} in the cache"));
    }
    found
}

/// A node with all GPUs of a topology of the corpus, in this test program.
pub(crate) fn spec(library: &Entry, name: &str, variables: &[(&str, &str)]) -> Option<NodeSpec> {
    let topology = topology(name)?;
    let model = topology.model(None).expect("a model fits");
    let mut spec = NodeSpec::new(library.path.clone(), topology, model).expect("this program");
    through_this_program(&mut spec);
    let pair = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
    spec.variables.extend(variables.iter().map(pair));
    Some(spec)
}

/// A node of this specification with a communicator.
pub(crate) fn started(spec: &NodeSpec) -> Node {
    let mut node =
        Node::start(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.library.display()));
    node.init().unwrap_or_else(|error| panic!("{}: {error}", spec.library.display()));
    node
}

/// What rank 0 says in the log of its process.
pub(crate) fn rank_zero(log: &str) -> RankLog {
    let ranks = collect(log.as_bytes());
    ranks.into_iter().find(|rank| rank.member.is_some()).expect("rank 0 logs its init")
}
