//! The result of `explain`, which is also its JSON
//! (`"schema": "nccldiag/explain/1"`). All of it is predicted: what NCCL would
//! choose on a described machine, with its own estimates.

use super::Finding;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The value of the `schema` field.
pub const EXPLAIN_SCHEMA: &str = "nccldiag/explain/1";

/// The value of the `provenance` field.
pub const PREDICTED: &str = "predicted";

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explain {
    /// Always [`EXPLAIN_SCHEMA`].
    pub schema: String,
    /// Always [`PREDICTED`]: no GPU took part.
    pub provenance: String,
    /// What NCCL would do.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// The other side, when two are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs: Option<Prediction>,
    /// Where the two sides differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differences: Option<Differences>,
    /// What follows, with settings that were tried.
    pub findings: Vec<ExplainFinding>,
    /// What has to be known to read this: assumptions about the machine, what
    /// could not be asked.
    pub notes: Vec<String>,
}

/// What NCCL would do on one machine with one set of settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The library that was asked.
    pub nccl: NcclAsked,
    /// The machine.
    pub node: NodeAsked,
    /// The settings, and what became of each.
    pub settings: Vec<SettingAsked>,
    /// What NCCL chose, for each size asked for.
    pub choices: Vec<PredictedChoice>,
    /// The same, where neighbouring sizes with one algorithm and protocol are
    /// one entry.
    pub ranges: Vec<PredictedRange>,
    /// Results of NCCL's search for channels.
    pub graph: Vec<GraphFound>,
    /// What NCCL expects of each algorithm and protocol.
    pub cost_table: Vec<CostCell>,
    /// The order of ranks in each channel; channels with the same order are one
    /// entry.
    pub rings: Vec<RingOrder>,
    /// Trees, likewise.
    pub trees: Vec<TreeShape>,
    /// How ranks reach each other.
    pub transports: Vec<Reached>,
    /// What rank 0 had decided after init.
    pub communicator: Option<Limits>,
    /// Why there is no answer, or not all of it.
    pub failure: Option<Failure>,
    /// NCCL's own warnings, each once.
    pub warnings: Vec<String>,
}

/// A library that was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclAsked {
    /// Such as `2.27.7`.
    pub version: String,
    /// The CUDA version that it was built with.
    pub cuda: Option<String>,
    /// Its file.
    pub path: String,
}

/// A machine that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAsked {
    /// How many GPUs take part: one rank each.
    pub gpus: usize,
    /// How the driver names them.
    pub model: String,
    /// The preset or file that describes it.
    pub topology: String,
    /// Always true: these GPUs do not exist.
    #[serde(rename = "virtual")]
    pub is_virtual: bool,
}

/// One setting of a prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingAsked {
    /// Such as `NCCL_BUFFSIZE`.
    pub name: String,
    /// As it was given.
    pub value: String,
    /// As NCCL's log has it; `None` when NCCL did not read it.
    pub understood: Option<String>,
    /// What is in force instead, where NCCL adjusted the value.
    pub adjusted_to: Option<String>,
    /// What became of it.
    pub effect: SettingEffect,
    /// What NCCL itself says about it.
    pub messages: Vec<String>,
}

impl fmt::Display for SettingAsked {
    /// As it was given: `NCCL_ALGO=Ring`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// What became of a setting, by asking NCCL again without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingEffect {
    /// Choices, or what stands behind them, differ without it.
    Changes,
    /// NCCL read it, and everything shown here is the same without it.
    None,
    /// NCCL did not read it.
    NotRead,
    /// This NCCL knows no variable of that name.
    Unknown,
    /// NCCL did not accept the value.
    Refused,
    /// NCCL took the value, and its ranks end in a crash.
    Crashes,
    /// It was not asked again.
    NotTried,
}

/// What NCCL chose for one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedChoice {
    /// Such as `AllReduce`.
    pub collective: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Such as `Ring`; `None` where this version does not tell (up to 2.19).
    pub algo: Option<String>,
    /// Such as `LL128`.
    pub proto: Option<String>,
    /// Number of channels: blocks of the kernel.
    pub channels: Option<u32>,
    /// Threads in a block.
    pub threads: Option<u32>,
    /// NCCL's own estimate in microseconds (2.20 and newer).
    pub time_us: Option<f64>,
    /// Bytes by that time, in GB/s (1e9 bytes).
    pub algbw: Option<f64>,
    /// As nccl-tests defines it: algbw by the collective's factor, in GB/s.
    pub busbw: Option<f64>,
}

/// Neighbouring sizes with the same algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedRange {
    /// Such as `AllReduce`.
    pub collective: String,
    /// The smallest size asked for, in bytes.
    pub from: u64,
    /// The largest size asked for, in bytes.
    pub to: u64,
    /// As in [`PredictedChoice`].
    pub algo: Option<String>,
    /// As in [`PredictedChoice`].
    pub proto: Option<String>,
    /// The fewest and the most channels.
    pub channels: Option<[u32; 2]>,
    /// The fewest and the most threads in a block.
    pub threads: Option<[u32; 2]>,
    /// NCCL's estimates for the smallest and the largest size, in microseconds.
    pub time_us: Option<[f64; 2]>,
    /// By these estimates, in GB/s.
    pub busbw: Option<[f64; 2]>,
}

/// One result of NCCL's search for channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphFound {
    /// NCCL's number.
    pub pattern: u32,
    /// What that number stands for: `ring`, `balanced tree`...
    pub name: String,
    /// Number of channels; 0: nothing was found.
    pub channels: u32,
    /// GB/s for each channel inside a machine.
    pub bw_intra: f64,
    /// GB/s for each channel between machines.
    pub bw_inter: f64,
    /// The worst kind of path inside: `NVL`, `PIX`, `PXB`, `PHB`, `SYS`.
    pub type_intra: String,
    /// The worst kind of path between machines.
    pub type_inter: String,
}

/// What NCCL expects of one algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostCell {
    /// Such as `AllReduce`.
    pub collective: String,
    /// Such as `Ring`.
    pub algo: String,
    /// Such as `LL128`.
    pub proto: String,
    /// Microseconds.
    pub latency_us: f64,
    /// GB/s; 0 where NCCL expects none.
    pub bandwidth: f64,
    /// The most threads in a block (where the version tells).
    pub max_threads: Option<u32>,
    /// Whether NCCL may choose it.
    pub enabled: bool,
    /// Why not.
    pub disabled_by: Option<String>,
    /// A setting enables it where NCCL itself does not.
    pub forced: bool,
}

/// The order of ranks in one or more channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingOrder {
    /// The channels with this order.
    pub channels: Vec<u32>,
    /// Ranks, in the order in which data goes round.
    pub ranks: Vec<u32>,
}

/// The tree of one or more channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeShape {
    /// The channels with this tree.
    pub channels: Vec<u32>,
    /// For each rank the rank above it; -1 for the root.
    pub parents: Vec<i32>,
}

/// The ways in which data goes between some pairs of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Such as `P2P/CUMEM` or `SHM/direct/direct`.
    pub via: String,
    /// From and to.
    pub pairs: Vec<[u32; 2]>,
    /// Connections: one for each pair and channel.
    pub connections: usize,
}

/// What a communicator holds after init, read from rank 0's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Channels for collectives.
    pub channels: Option<u32>,
    /// Bytes of the buffers of LL, LL128 and Simple.
    pub buffers: Option<[u64; 3]>,
    /// The fewest blocks for a kernel, where somebody set it.
    pub min_ctas: Option<i32>,
    /// The most blocks for a kernel.
    pub max_ctas: Option<i32>,
}

/// Why NCCL gave no answer, or not for all sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was being done: `communicator init`, `enqueue`...
    pub step: String,
    /// What happened, in one sentence.
    pub message: String,
    /// What kind of failure it is.
    pub kind: FailureKind,
}

/// How NCCL came to give no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// NCCL returned an error.
    Refused,
    /// A rank was ended by a signal for what its code did.
    Crashed,
    /// A rank was ended from outside, or ended itself.
    Ended,
    /// It took longer than `--timeout`.
    TooLate,
}

/// Where two predictions differ. Empty lists: they are alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// Sizes for which choice or estimate differ; neighbours with the same pair
    /// of choices are one entry.
    pub choices: Vec<ChoiceDifference>,
    /// All else, one line each: what, this side, the other side.
    pub facts: Vec<FactDifference>,
}

/// Sizes for which two predictions differ in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceDifference {
    /// Such as `AllReduce`.
    pub collective: String,
    /// The smallest size, in bytes, as it was asked for: each side takes the
    /// next larger one that it can split, so choices may have another.
    pub from: u64,
    /// The largest size, in bytes, as it was asked for.
    pub to: u64,
    /// One side's choice.
    pub this: Chosen,
    /// The other side's.
    pub other: Chosen,
    /// The other side's estimate divided by this side's, for the smallest and
    /// the largest size: above 1 the other side is slower.
    pub time_ratio: Option<[f64; 2]>,
}

/// A choice without its size and time. Each part as in [`PredictedChoice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Such as `Ring`.
    pub algo: Option<String>,
    /// Such as `LL128`.
    pub proto: Option<String>,
    /// Number of channels.
    pub channels: Option<u32>,
    /// Threads in a block.
    pub threads: Option<u32>,
}

/// Something besides choices that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactDifference {
    /// Such as `ring graph` or `AllReduce Ring LL`.
    pub what: String,
    /// This side.
    pub this: String,
    /// The other side.
    pub other: String,
}

/// A finding, with settings that were tried against it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainFinding {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// What was tried on the virtual node, and what came of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
}

/// A set of settings that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Such as `NCCL_MIN_NCHANNELS=8`.
    pub settings: String,
    /// Channels for collectives then.
    pub channels: Option<u32>,
    /// The ring's graph then, in words: `8 channels, 15 GB/s, PHB/PIX`.
    pub ring: Option<String>,
    /// How ranks reach each other then.
    pub via: Vec<String>,
    /// A few sizes: the choice then, and NCCL's estimate.
    pub choices: Vec<PredictedChoice>,
    /// Whether NCCL's estimate counts this change: it does not count channels
    /// that are added by hand, and means nothing where the search found none.
    pub counted: bool,
    /// NCCL's estimate then divided by the one without, for the largest size:
    /// below 1 NCCL expects it to be faster. `None` where one of them does not
    /// count.
    pub time_ratio: Option<f64>,
    /// Why it could not be tried.
    pub failure: Option<String>,
}
