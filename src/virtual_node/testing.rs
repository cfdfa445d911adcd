//! What tests of the virtual node share: a worker inside the test program, and
//! the corpus of real topologies and logs.

use super::node::NodeSpec;
use super::topology::Topology;
use super::worker;
use crate::nccl::cache::Entry;
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

/// The oldest, a middle and the newest library of the cache; all of them with
/// `NCCLDIAG_TEST_WHEELS=all`.
pub(crate) fn some_libraries() -> Vec<Entry> {
    let all = testing::libraries();
    if std::env::var_os("NCCLDIAG_TEST_WHEELS").is_some_and(|value| value == "all") {
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
