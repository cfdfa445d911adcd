//! A communicator of a running process, as it lies in the memory of NCCL.

use serde::{Deserialize, Serialize};

/// What NCCL decided for one communicator on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Communicator {
    /// Where `struct ncclComm` lies in the process, as `0x7f...`; the same as
    /// `comm 0x...` in NCCL's log.
    pub address: String,
    /// This process's rank in it.
    pub rank: u32,
    /// How many ranks it has.
    pub ranks: u32,
    /// What all its ranks share, as `0x...`; `commId` in NCCL's log since 2.26
    /// (2.25 and older log another number).
    pub hash: String,
    /// The CUDA device of this rank.
    pub cuda_device: i32,
    /// The PCI address of that device, as `0000:17:00.0`.
    pub bus_id: Option<String>,
    /// How many machines take part.
    pub nodes: Option<u32>,
    /// How many ranks are on this machine.
    pub local_ranks: Option<u32>,
    /// Channels for collectives.
    pub channels: Option<u32>,
    /// Buffer sizes in bytes.
    pub buffers: Option<Buffers>,
    /// The fewest blocks for a kernel; `None` when nobody set it, or this
    /// version keeps it elsewhere.
    pub min_ctas: Option<i32>,
    /// The most blocks for a kernel.
    pub max_ctas: Option<i32>,
    /// Operations so far; only collectives from 2.27 to 2.30.
    pub operations: Option<u64>,
    /// Whether that count moved between two looks.
    pub activity: Activity,
    /// What may be used for each collective. Empty when NCCL has decided nothing
    /// yet, and for a communicator of one rank, which needs none of them.
    pub collectives: Vec<CollectivePairs>,
}

/// What may be used for one collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectivePairs {
    /// Such as `AllReduce`.
    pub collective: String,
    /// Its pairs.
    pub pairs: Vec<Pair>,
}

impl Communicator {
    /// What may be used for a collective, by its name in NCCL's log; empty when
    /// that is not known.
    pub fn pairs(&self, collective: &str) -> &[Pair] {
        let found = self.collectives.iter().find(|one| one.collective == collective);
        found.map_or(&[], |one| &one.pairs)
    }
}

/// Sizes in bytes of the buffers of each protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// LL.
    pub ll: u64,
    /// LL128.
    pub ll128: u64,
    /// Simple: what `NCCL_BUFFSIZE` sets.
    pub simple: u64,
}

/// Whether a communicator is used at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// The same count twice.
    Idle,
    /// The count grew between two looks.
    Moving,
    /// There is no count to look at.
    Unknown,
}

/// One pair of algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// As `NCCL_ALGO` has it: `Ring`, `Tree`, `NVLS`...
    pub algorithm: String,
    /// As `NCCL_PROTO` has it: `LL`, `LL128`, `Simple`.
    pub protocol: String,
    /// Whether NCCL may choose it.
    pub enabled: bool,
    /// The bandwidth that NCCL expects, in GB/s; 0 where it expects none.
    pub bandwidth: f32,
    /// The latency that NCCL expects, in microseconds.
    pub latency: Option<f32>,
    /// The most threads in a block.
    pub max_threads: Option<u32>,
}

/// How communicators were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// NCCL has read no setting in this process yet, so it made none.
    #[default]
    NeverInitialised,
    /// NCCL's own list (since 2.24).
    List,
    /// A search of the memory for the marks around each (since 2.21).
    Marks,
    /// A search of the memory for what looks like one (up to 2.20).
    Shape,
}

/// What was found in one libnccl of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Communicators {
    /// Those that could be read, by address.
    pub found: Vec<Communicator>,
    /// How they were found.
    pub source: Source,
    /// Why there may be others: one lower-case sentence for each reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
