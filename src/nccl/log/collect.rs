//! What each rank said in a log, put together: settings, graphs, channels,
//! the cost table, choices, problems. Later lines about the same thing replace
//! earlier ones, so a second communicator of a rank replaces the first.

use super::event::{ChannelCounts, Event, Kernel, Member, Place};
use super::line::{Level, Line, Record, lines};
use super::parse::{self, MatrixRow, event};
use std::collections::HashMap;

/// More lines about one thing than any honest log has.
const MOST: usize = 1 << 20;

/// More variables than NCCL has (2.32.3: 300).
const MOST_VARIABLES: usize = 4096;

/// In the order of NCCL's tables.
const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];

/// One process and device: a rank, when its lines around init are there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankLog {
    /// Its host, as far as it is UTF-8.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its CUDA device; -1 for what was said before one was set.
    pub device: i32,
    /// Which rank of what it is.
    pub member: Option<Member>,
    /// Machines, and ranks on this one (2.20 and newer).
    pub nodes: Option<(u32, u32)>,
    /// Such as `2.27.7+cuda13.0`; only the first rank of a process says so.
    pub version: Option<String>,
    /// Variables that NCCL read, in order, each once.
    pub env: Vec<EnvLine>,
    /// Results of the search for channels, in order.
    pub graphs: Vec<Graph>,
    /// The order of ranks in each channel (rank 0 only), by channel.
    pub channels: Vec<Vec<u32>>,
    /// The neighbours in each ring, by channel.
    pub rings: Vec<Ring>,
    /// Up and down in the tree of each channel.
    pub trees: Vec<(u32, i32, [i32; 3])>,
    /// The connections that were made, in order.
    pub transports: Vec<Transport>,
    /// How many channels there are.
    pub counts: Option<ChannelCounts>,
    /// See [`Event::Thresholds`].
    pub thresholds: Vec<i64>,
    /// The cost table (rank 0 only).
    pub costs: Vec<Cost>,
    /// Function, protocols and algorithms that are enabled, by name (rank 0
    /// only, from 2.24 on, when `NCCL_ALGO` or `NCCL_PROTO` is set).
    pub enabled: Vec<(String, Vec<String>, Vec<String>)>,
    /// What was chosen for each call, in order.
    pub choices: Vec<Choice>,
    /// Warnings, and values that NCCL did not take.
    pub problems: Vec<Problem>,
}

/// A variable that NCCL read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvLine {
    /// Such as `NCCL_BUFFSIZE`.
    pub name: String,
    /// As NCCL understood it.
    pub value: String,
}

/// A result of the search for channels; see [`Event::Graph`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct.
    pub pattern: u32,
    /// Number of channels.
    pub channels: u32,
    /// GB/s for each channel inside a machine.
    pub bandwidth_intra: f64,
    /// GB/s for each channel between machines.
    pub bandwidth_inter: f64,
    /// The worst kind of path inside.
    pub type_intra: String,
    /// The worst kind of path between.
    pub type_inter: String,
    /// The nodes of each channel.
    pub paths: Vec<String>,
}

/// The neighbours of a rank in one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Its channel.
    pub index: u32,
    /// From this rank.
    pub previous: i32,
    /// To this rank.
    pub next: i32,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Its channel.
    pub channel: u32,
    /// From this rank.
    pub from: u32,
    /// To this rank.
    pub to: u32,
    /// Such as `P2P/CUMEM`.
    pub via: String,
}

/// What NCCL expects of one function, algorithm and protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Such as `AllReduce`.
    pub function: String,
    /// Such as `Ring`.
    pub algorithm: String,
    /// Such as `LL128`.
    pub protocol: &'static str,
    /// Microseconds.
    pub latency: f64,
    /// GB/s; 0 where it is disabled or not possible.
    pub bandwidth: f64,
    /// The most threads in a block (up to 2.30).
    pub max_threads: Option<u32>,
}

/// What was chosen for one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Such as `AllReduce`; 2.20 to 2.22 do not say.
    pub collective: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// Such as `Ring`, or the kind of a choice outside the tables: `Symmetric`.
    pub algorithm: String,
    /// Such as `LL128`, or the kernel of a choice outside the tables.
    pub protocol: String,
    /// First and last channel (2.24 and newer).
    pub channels: Option<(u32, u32)>,
    /// NCCL's estimate in microseconds (2.20 to 2.23, and 2.31).
    pub time_us: Option<f64>,
    /// Threads in a block (2.31, and for choices outside the tables).
    pub threads: Option<u32>,
    /// Blocks in a cluster (2.31 and newer).
    pub cluster: Option<u32>,
}

/// Something that NCCL complains about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How much it minds.
    pub level: Level,
    /// Where in its source.
    pub source: String,
    /// What it says.
    pub text: String,
}

/// Puts a log together: one entry for each process and device, in the order in
/// which they first wrote. `log` may be several logs, one after the other.
pub fn collect(log: &[u8]) -> Vec<RankLog> {
    let mut collector = Collector::default();
    let mut matrix = None;
    for record in lines(log) {
        match record {
            Record::Nccl(line) => {
                let at = collector.rank_of(&line);
                let event = event(&line);
                // The rows of the matrix follow without saying whose they are.
                matrix = (event == Event::Matrix).then_some(at);
                collector.take(at, &line, event);
            }
            Record::Plain(plain) => {
                if let (Some(at), Some(row)) = (matrix, parse::matrix_row(plain)) {
                    collector.take_row(at, &row);
                }
            }
        }
    }
    collector.ranks
}

#[derive(Default)]
struct Collector<'a> {
    ranks: Vec<RankLog>,
    known: HashMap<(&'a [u8], u32, i32), usize>,
    parts: Vec<Parts<'a>>,
}

/// What lines say about the lines after them.
#[derive(Default)]
struct Parts<'a> {
    algorithms: Vec<&'a str>,
    threads: Vec<u32>,
    names: Option<MatrixRow<'a>>,
    tuned: Option<(f64, &'a str, &'a str, u32)>,
}

impl<'a> Collector<'a> {
    fn rank_of(&mut self, line: &Line<'a>) -> usize {
        let key = (line.host, line.pid, line.device);
        *self.known.entry(key).or_insert_with(|| {
            self.parts.push(Parts::default());
            self.ranks.push(RankLog {
                host: String::from_utf8_lossy(line.host).into_owned(),
                pid: line.pid,
                device: line.device,
                ..RankLog::default()
            });
            self.ranks.len() - 1
        })
    }

    fn take(&mut self, at: usize, line: &Line<'a>, event: Event<'a>) {
        let (rank, parts) = (&mut self.ranks[at], &mut self.parts[at]);
        if line.level != Level::Info || matches!(event, Event::Invalid { .. }) {
            rank.complain(line);
        }
        match event {
            Event::Version(text) => rank.version = Some(text.to_owned()),
            Event::Member(member) => rank.member = Some(member),
            Event::Nodes { nodes, local_ranks, .. } => rank.nodes = Some((nodes, local_ranks)),
            Event::Channels(counts) => rank.counts = Some(counts),
            Event::Thresholds(all) => rank.thresholds = all,
            Event::Trees(trees) => rank.trees = trees,
            Event::CostAlgorithms(names) => parts.start_costs(names, rank),
            Event::CostThreads(threads) => parts.threads = threads,
            Event::CostRow { function, cells } => parts.add_costs(function, &cells, rank),
            Event::Matrix => rank.enabled.clear(),
            Event::Tuned { time_us, algorithm, protocol, warps, .. } => {
                parts.tuned = Some((time_us, algorithm, protocol, warps));
            }
            Event::Choice(choose) => rank.add_choice(parts.choice(&choose)),
            Event::Kernel(kernel) => rank.add_choice(outside(&kernel)),
            other => rank.take(other),
        }
    }

    fn take_row(&mut self, at: usize, row: &MatrixRow<'a>) {
        let (rank, parts) = (&mut self.ranks[at], &mut self.parts[at]);
        if row.function == "Function" {
            parts.names = Some(row.clone());
            return;
        }
        let Some(names) = &parts.names else { return };
        // LL128 can be 2: NCCL decides by the hardware.
        let on = |names: &[&str], cells: &[&str]| {
            let named = names.iter().zip(cells).filter(|(_, cell)| **cell != "0");
            named.map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()
        };
        if rank.enabled.len() < MOST {
            rank.enabled.push((
                row.function.to_owned(),
                on(&names.protocols, &row.protocols),
                on(&names.algorithms, &row.algorithms),
            ));
        }
    }
}

impl RankLog {
    fn complain(&mut self, line: &Line<'_>) {
        if line.level != Level::Trace && self.problems.len() < MOST {
            self.problems.push(Problem {
                level: line.level,
                source: String::from_utf8_lossy(line.source).into_owned(),
                text: String::from_utf8_lossy(line.text).into_owned(),
            });
        }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Env { name, value } => self.add_env(name, value),
            Event::Graph {
                pattern,
                channels,
                bandwidth_intra,
                bandwidth_inter,
                type_intra,
                type_inter,
                ..
            } if self.graphs.len() < MOST => {
                self.graphs.push(Graph {
                    pattern,
                    channels,
                    bandwidth_intra,
                    bandwidth_inter,
                    type_intra: type_intra.to_owned(),
                    type_inter: type_inter.to_owned(),
                    paths: Vec::new(),
                });
            }
            Event::GraphChannel { nodes, .. } => {
                if let Some(graph) = self.graphs.last_mut()
                    && graph.paths.len() < MOST
                {
                    graph.paths.push(nodes.to_owned());
                }
            }
            Event::Channel { index, ranks, .. } => {
                // A channel 0 starts the list of a communicator.
                self.channels.truncate(index as usize);
                if self.channels.len() == index as usize && self.channels.len() < MOST {
                    self.channels.push(ranks);
                }
            }
            Event::Ring { index, previous, next, .. } if self.rings.len() < MOST => {
                if index == 0 {
                    self.rings.clear();
                }
                self.rings.push(Ring { index, previous, next });
            }
            Event::Transport { channel, from, to, via, .. } if self.transports.len() < MOST => {
                let (from, to) = (from.rank, to.rank);
                self.transports.push(Transport { channel, from, to, via: via.to_owned() });
            }
            _ => {}
        }
    }

    fn add_choice(&mut self, choice: Choice) {
        if self.choices.len() < MOST {
            self.choices.push(choice);
        }
    }

    fn add_env(&mut self, name: &str, value: &str) {
        let known = self.env.iter().position(|line| line.name == name);
        match known {
            Some(at) => value.clone_into(&mut self.env[at].value),
            None if self.env.len() < MOST_VARIABLES => {
                self.env.push(EnvLine { name: name.to_owned(), value: value.to_owned() });
            }
            None => {}
        }
    }
}

impl<'a> Parts<'a> {
    fn start_costs(&mut self, names: Vec<&'a str>, rank: &mut RankLog) {
        // The table of another communicator starts anew.
        if names.iter().any(|name| rank.costs.iter().any(|cost| cost.algorithm == *name)) {
            rank.costs.clear();
        }
        self.algorithms = names;
        self.threads.clear();
    }

    fn add_costs(&self, function: &str, cells: &[(f64, f64)], rank: &mut RankLog) {
        for (at, &(latency, bandwidth)) in cells.iter().enumerate() {
            let Some(algorithm) = self.algorithms.get(at / PROTOCOLS.len()) else { break };
            if rank.costs.len() < MOST {
                rank.costs.push(Cost {
                    function: function.to_owned(),
                    algorithm: (*algorithm).to_owned(),
                    protocol: PROTOCOLS[at % PROTOCOLS.len()],
                    latency,
                    bandwidth: bandwidth.max(0.0),
                    max_threads: self.threads.get(at).copied(),
                });
            }
        }
    }

    fn choice(&mut self, choose: &super::Choose<'_>) -> Choice {
        let mut choice = Choice {
            collective: choose.collective.map(str::to_owned),
            bytes: choose.bytes,
            algorithm: named(&choose.algorithm, &ALGORITHMS),
            protocol: named(&choose.protocol, &PROTOCOLS),
            channels: choose.channels,
            time_us: choose.time_us,
            threads: None,
            cluster: choose.cluster,
        };
        let same = |place: &Place<'_>, name: &str| *place == Place::Name(name);
        if let Some((time_us, algorithm, protocol, warps)) = self.tuned.take()
            && same(&choose.algorithm, algorithm)
            && same(&choose.protocol, protocol)
        {
            choice.time_us = choice.time_us.or(Some(time_us));
            choice.threads = warps.checked_mul(32);
        }
        choice
    }
}

/// One spelling for both forms: `Ring` for 1 and for `RING`. A name that is
/// not known stays as it is.
fn named(place: &Place<'_>, names: &[&str]) -> String {
    match place {
        Place::Index(index) => {
            names.get(*index as usize).map_or_else(|| index.to_string(), |name| (*name).to_owned())
        }
        Place::Name(name) => {
            let plain = name.replace('_', "");
            let known = names.iter().find(|known| known.eq_ignore_ascii_case(&plain));
            known.map_or_else(|| (*name).to_owned(), |known| (*known).to_owned())
        }
    }
}

fn outside(kernel: &Kernel<'_>) -> Choice {
    Choice {
        collective: Some(kernel.collective.to_owned()),
        bytes: kernel.bytes,
        algorithm: kernel.kind.to_owned(),
        protocol: kernel.what.to_owned(),
        channels: kernel.channels.and_then(|count| Some((0, count.checked_sub(1)?))),
        time_us: None,
        threads: kernel.threads,
        cluster: None,
    }
}
