//! What a line can mean. Texts point into the log.

/// Algorithm or protocol as a log has it: up to 2.23 a number, then a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place<'a> {
    /// Index into NCCL's tables.
    Index(u32),
    /// In capitals: `RING`, `SIMPLE`.
    Name(&'a str),
}

/// Rank and device of one end of a connection, as in `3[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclRank<'a> {
    /// The rank.
    pub rank: u32,
    /// Its device number; before 2.18 and in some warnings its PCI address.
    pub device: &'a str,
}

/// The identity of one rank, from the lines around init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Address of the communicator in its process.
    pub comm: u64,
    /// The rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Its CUDA device.
    pub device: i32,
    /// Its PCI address, as NCCL packs it: hex `17000` is `0000:17:00.0`.
    pub bus_id: u64,
    /// The communicator, the same on all ranks.
    pub id: Option<u64>,
    /// Init is over.
    pub complete: bool,
}

/// What was chosen for one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choose<'a> {
    /// Such as `AllReduce`; 2.20 to 2.22 do not say.
    pub collective: Option<&'a str>,
    /// Size in bytes.
    pub bytes: u64,
    /// The algorithm.
    pub algorithm: Place<'a>,
    /// The protocol.
    pub protocol: Place<'a>,
    /// First and last channel (2.24 and newer).
    pub channels: Option<(u32, u32)>,
    /// NCCL's estimate in microseconds (2.20 to 2.23).
    pub time_us: Option<f64>,
    /// Blocks in a cluster (2.31 and newer).
    pub cluster: Option<u32>,
}

/// A choice outside the tables of algorithms and protocols (2.27 and newer).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel<'a> {
    /// Such as `AllReduce`.
    pub collective: &'a str,
    /// `Symmetric`, `Copy Engine`, ...
    pub kind: &'a str,
    /// Size in bytes.
    pub bytes: u64,
    /// What runs.
    pub what: &'a str,
    /// Number of channels.
    pub channels: Option<u32>,
    /// Threads a block.
    pub threads: Option<u32>,
}

/// How many channels there are for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Collectives.
    pub collective: u32,
    /// CollNet (2.20 and newer).
    pub collnet: Option<u32>,
    /// NVLS.
    pub nvls: Option<u32>,
    /// Send and receive.
    pub p2p: u32,
    /// Send and receive with one other rank.
    pub p2p_per_peer: u32,
}

/// What a line means.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// `NCCL version 2.27.7+cuda13.0`: the part after the words.
    Version(&'a str),
    /// A variable that NCCL read. Without its own full stop after numbers.
    Env {
        /// Such as `NCCL_BUFFSIZE`.
        name: &'a str,
        /// As NCCL understood it: `8M` shows as `8`.
        value: &'a str,
    },
    /// A value that NCCL did not take.
    Invalid {
        /// The variable.
        name: &'a str,
        /// Its text.
        value: &'a str,
        /// What NCCL uses instead.
        default: &'a str,
    },
    /// Start or end of init.
    Member(Member),
    /// `comm 0x... rank 0 nRanks 8 nNodes 1 localRanks 8 ...`
    Nodes {
        /// Address of the communicator.
        comm: u64,
        /// Machines.
        nodes: u32,
        /// Ranks on this one.
        local_ranks: u32,
    },
    /// A result of the search for channels.
    Graph {
        /// 1: balanced tree, 2: split tree, 3: tree, 4: ring, 5: NVLS, 6:
        /// CollNet direct.
        pattern: u32,
        /// Number of channels; 0: nothing was found.
        channels: u32,
        /// GB/s for each channel inside a machine.
        bandwidth_intra: f64,
        /// GB/s for each channel between machines.
        bandwidth_inter: f64,
        /// The worst kind of path inside: `NVL`, `PIX`, `PHB`, `SYS`.
        type_intra: &'a str,
        /// The worst kind of path between.
        type_inter: &'a str,
        /// Whether all channels are alike.
        same_channels: bool,
    },
    /// One channel of the graph before it: `GPU/0-17000 GPU/0-65000`.
    GraphChannel {
        /// Its number.
        index: u32,
        /// Names separated by spaces.
        nodes: &'a str,
    },
    /// The paths of one node: pieces like `GPU/1-2 (1/240.0/NVL)`.
    Paths {
        /// The node that they start from.
        from: &'a str,
        /// Hops, GB/s and type to each other node.
        to: Vec<(&'a str, u32, f64, &'a str)>,
    },
    /// The order of ranks in one channel (rank 0 logs it).
    Channel {
        /// Its number.
        index: u32,
        /// How many there are.
        count: u32,
        /// In the order of the ring.
        ranks: Vec<u32>,
    },
    /// The neighbours of this rank in one ring.
    Ring {
        /// Its channel.
        index: u32,
        /// From this rank.
        previous: i32,
        /// This rank.
        rank: i32,
        /// To this rank.
        next: i32,
    },
    /// This rank in the tree of each channel: channel, up, down.
    Trees(Vec<(u32, i32, [i32; 3])>),
    /// A connection that was made.
    Transport {
        /// Its channel.
        channel: u32,
        /// Which of several connections; absent for SHM.
        connection: Option<u32>,
        /// From.
        from: NcclRank<'a>,
        /// To.
        to: NcclRank<'a>,
        /// `send` or `receive`, between machines.
        direction: Option<&'a str>,
        /// `P2P/CUMEM`, `SHM/direct/direct`, `NET/Socket/0`, ...
        via: &'a str,
    },
    /// Bytes per thread from which on all threads are used: LL, LL128, Simple
    /// of tree, then of ring, then those of CollNet.
    Thresholds(Vec<i64>),
    /// How many channels there are.
    Channels(ChannelCounts),
    /// The algorithms of the part of the cost table that follows.
    CostAlgorithms(Vec<&'a str>),
    /// The most threads for each algorithm and protocol (up to 2.30).
    CostThreads(Vec<u32>),
    /// One line of the cost table.
    CostRow {
        /// Such as `AllReduce`.
        function: &'a str,
        /// Latency in microseconds and bandwidth in GB/s, 0.0 where disabled
        /// (up to 2.30), -1.0 where there is none (since 2.31).
        cells: Vec<(f64, f64)>,
    },
    /// `Enabled NCCL Func/Proto/Algo Matrix:`; rows follow as plain lines.
    Matrix,
    /// The choice for one call.
    Choice(Choose<'a>),
    /// A choice outside the tables.
    Kernel(Kernel<'a>),
    /// The result of the tuning of one call, with NCCL's estimate in
    /// microseconds (2.31).
    Tuned {
        /// Microseconds.
        time_us: f64,
        /// The algorithm.
        algorithm: &'a str,
        /// The protocol.
        protocol: &'a str,
        /// Number of channels.
        channels: u32,
        /// Warps in a block: 32 threads each.
        warps: u32,
    },
    /// `Connected all rings`, `Connected all trees`, ...
    Connected(&'a str),
    /// Anything else.
    Other,
}
