//! A second witness: a profiler plugin of ours (`probes/profiler.rs`), which
//! NCCL itself loads and tells what it enqueues, against what NCCL logs for
//! the same calls.

use super::testing::{rank_zero, spec, started};
use crate::nccl::cache::Entry;
use crate::nccl::collective::Collective;
use crate::nccl::image::{Image, NcclVersion};
use crate::nccl::log::Choice;
use crate::nccl::testing::libraries;
use std::collections::HashMap;
use std::path::Path;

const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnccldiag_profiler.so"));

/// What the plugin says about one call.
#[derive(Clone, Debug)]
struct Told(HashMap<String, String>);

impl Told {
    fn text(&self, key: &str) -> &str {
        self.0.get(key).unwrap_or_else(|| panic!("no {key}: {self:?}"))
    }

    fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap_or_else(|_| panic!("{key} is no number: {self:?}"))
    }

    /// One of NCCL's tables: the name, which v1 gives as an index.
    fn name<'a>(&'a self, key: &str, names: &[&'a str]) -> &'a str {
        let text = self.text(key);
        text.parse().map_or(text, |index: usize| names[index])
    }
}

/// NCCL's order of functions, algorithms and protocols in 2.23.
const FUNCTIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];

/// The interface that NCCL takes of all that the plugin has.
fn interface(version: NcclVersion) -> u64 {
    match version.minor {
        ..=23 => 1,
        24..=25 => 2,
        26 => 3,
        27 => 4,
        28 => 5,
        29..=30 => 6,
        _ => 7,
    }
}

/// Whether NCCL tells a profiler of such a call: from 2.29 on broadcasts have a
/// queue of their own, which `ncclProfilerStartTaskEvents` does not look at.
fn is_told(collective: Collective, version: NcclVersion) -> bool {
    collective != Collective::Broadcast || version.minor < 29
}

fn told(file: &Path) -> Vec<Told> {
    let text = std::fs::read_to_string(file).expect("the plugin wrote it");
    let line = |line: &str| {
        let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        Told(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    };
    text.lines().map(line).collect()
}

/// The calls of one node: what rank 0 logs, and what each rank's plugin is told.
fn witnesses(
    library: &Entry,
    topology: &str,
    calls: &[(Collective, u64)],
) -> Option<(Vec<Choice>, Vec<Told>)> {
    let folder = tempfile::tempdir().expect("temp folder");
    let (plugin, file) = (folder.path().join("plugin.so"), folder.path().join("told"));
    std::fs::write(&plugin, PLUGIN).expect("space for it");
    let mut spec = spec(library, topology, &[])?;
    spec.variables.push(("NCCL_PROFILER_PLUGIN".into(), plugin.into()));
    spec.variables.push(("NCCLDIAG_PROFILE".into(), file.clone().into()));
    let mut node = started(&spec);
    for (collective, bytes) in calls {
        let done = node.enqueue(*collective, &[*bytes]);
        done.unwrap_or_else(|error| panic!("{topology} {collective} {bytes}: {error}"));
    }
    Some((rank_zero(&node.logs()[0]).choices, told(&file)))
}

/// Compares one call.
fn check(what: &str, told: &Told, choice: &Choice, collective: Collective, bytes: u64) {
    let what = format!("{what} {collective} {bytes}: {choice:?} {told:?}");
    assert_eq!(told.name("function", &FUNCTIONS), collective.name(), "{what}");
    let plain =
        |key: &str, names: &[&str]| told.name(key, names).to_ascii_lowercase().replace('_', "");
    assert_eq!(plain("algorithm", &ALGORITHMS), choice.algorithm.to_ascii_lowercase(), "{what}");
    assert_eq!(plain("protocol", &PROTOCOLS), choice.protocol.to_ascii_lowercase(), "{what}");
    if let Some((first, last)) = choice.channels {
        let (told_channels, logged) = (told.number("channels"), u64::from(last - first) + 1);
        // Up to v3 it is told the most that the call may take.
        let fits = told_channels == logged || told.number("version") <= 3 && told_channels > logged;
        assert!(fits, "{what}");
    }
}

#[test]
fn a_profiler_inside_nccl_is_told_what_the_log_says() {
    let sizes: Vec<u64> = (3..=30).map(|power| 1 << power).collect();
    let calls: Vec<(Collective, u64)> = Collective::ALL
        .iter()
        .flat_map(|&one| sizes.iter().map(move |&size| (one, size)))
        .collect();
    for library in libraries() {
        let version = Image::open(&library.path).expect("it was listed").version;
        if version < NcclVersion::new(2, 23, 4) {
            continue; // it has no such interface
        }
        for topology in ["handmade-h100-nvswitch", "handmade-rtxpro6000-2socket", "a100x2-pcie"] {
            let what = format!("{} {topology}", library.wheel);
            let found = witnesses(&library, &format!("{topology}.xml"), &calls);
            let Some((choices, told)) = found else { return };
            assert_eq!(choices.len(), calls.len(), "{what}");
            let ranks = told.iter().map(|one| one.number("rank")).max().expect("events") + 1;
            for rank in 0..ranks {
                let own = told.iter().filter(|one| one.number("rank") == rank);
                let own: Vec<&Told> = own.collect();
                let both = choices.iter().zip(&calls).filter(|(_, call)| is_told(call.0, version));
                let both: Vec<_> = both.collect();
                assert_eq!(own.len(), both.len(), "{what}: rank {rank}");
                for (one, (choice, &(collective, bytes))) in own.into_iter().zip(both) {
                    assert_eq!(one.number("version"), interface(version), "{what}");
                    check(&what, one, choice, collective, bytes);
                }
            }
            println!("{what}: {} calls of {ranks} ranks agree", told.len() as u64 / ranks);
        }
    }
}
