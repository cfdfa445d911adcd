//! From the text of a line to what it means.

use super::event::{ChannelCounts, Choose, Event, Kernel, Member, NcclRank, Place};
use super::line::Line;
use super::scan::Scan;

/// More elements than any list in a log has.
const MOST: usize = 1 << 16;

/// What a line means. [`Event::Other`] for what this program has no use for,
/// for what is cut off, and for text that is not UTF-8.
pub fn event<'a>(line: &Line<'a>) -> Event<'a> {
    let Ok(text) = std::str::from_utf8(line.text) else { return Event::Other };
    by_start(text).or_else(|| by_content(text)).unwrap_or(Event::Other)
}

/// Lines that start in a way of their own.
fn by_start(text: &str) -> Option<Event<'_>> {
    let scan = Scan(text);
    let rest = |start: &str| text.strip_prefix(start).map(Scan);
    match text.as_bytes().first()? {
        b'C' if text.starts_with("Channel ") => channel(rest("Channel ")?),
        b'C' if text.starts_with("Connected ") => Some(Event::Connected(rest("Connected ")?.0)),
        b'R' if text.starts_with("Ring ") => ring(rest("Ring ")?),
        b'T' if text.starts_with("Trees ") => trees(rest("Trees ")?),
        b'P' if text.starts_with("Pattern ") => graph(rest("Pattern ")?),
        b'B' if text.starts_with("Best tuning {") => tuned(scan),
        b'N' if text.starts_with("NCCL version ") => {
            Some(Event::Version(text.strip_prefix("NCCL version ")?.trim_end()))
        }
        b'I' if text.starts_with("Invalid value ") => invalid(rest("Invalid value ")?),
        b'E' if text.starts_with("Enabled NCCL Func/Proto/Algo Matrix") => Some(Event::Matrix),
        b't' => thresholds(rest("threadThresholds ")?),
        b'G' | b'N' | b'C' | b'D' if text.contains(" :") => paths(scan),
        _ => None,
    }
}

/// Lines that are known by something in their middle.
fn by_content(text: &str) -> Option<Event<'_>> {
    if text.contains(" Bytes -> ") {
        return choice(Scan(text)).or_else(|| kernel(Scan(text)));
    }
    if text.contains(" set by environment to ") || text.starts_with("NCCL_") {
        return env(Scan(text));
    }
    if text.contains(" | ") || text.ends_with(" |") {
        return cost(Scan(text));
    }
    if text.contains(" coll channels, ") {
        return channel_counts(Scan(text));
    }
    if text.contains("comm 0x") {
        return member(text).or_else(|| nodes(Scan(text)));
    }
    graph_channel(Scan(text))
}

/// `00/24 : 0 1 2 3`, or `00/0 : 0[0] -> 1[1] via P2P/CUMEM`.
fn channel(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let index = scan.int()?;
    let count = match scan.eat("/") {
        Some(()) => Some(scan.int()?),
        None => None,
    };
    scan.then(":")?;
    if scan.0.contains("->") {
        return transport(scan, index, count);
    }
    let mut ranks = Vec::new();
    while let Some(rank) = scan.int() {
        ranks.push(rank);
    }
    scan.spaces();
    scan.0.is_empty().then_some(Event::Channel { index, count: count?, ranks })
}

fn transport<'a>(mut scan: Scan<'a>, channel: u32, connection: Option<u32>) -> Option<Event<'a>> {
    let from = rank(&mut scan)?;
    scan.then("->")?;
    let to = rank(&mut scan)?;
    scan.spaces();
    let direction = match scan.eat("[") {
        Some(()) => Some(scan.until("]")?),
        None => None,
    };
    scan.then("via ")?;
    let via = scan.0.trim_end();
    Some(Event::Transport { channel, connection, from, to, direction, via })
}

/// `3[1]`
fn rank<'a>(scan: &mut Scan<'a>) -> Option<NcclRank<'a>> {
    let rank = scan.int()?;
    scan.eat("[")?;
    Some(NcclRank { rank, device: scan.until("]")? })
}

/// `00 : 7 -> 0 -> 1`
fn ring(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let index = scan.int()?;
    scan.then(":")?;
    let previous = scan.int()?;
    scan.then("->")?;
    let rank = scan.int()?;
    scan.then("->")?;
    Some(Event::Ring { index, previous, rank, next: scan.int()? })
}

/// `[0] 1/-1/-1->0->-1 [1] ...`; NCCL cuts off a line of more than 1 KiB, and
/// then the last one is left out.
fn trees(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let mut trees = Vec::new();
    while let (Some(tree), true) = (tree(&mut scan), trees.len() < MOST) {
        trees.push(tree);
    }
    (!trees.is_empty()).then_some(Event::Trees(trees))
}

fn tree(scan: &mut Scan<'_>) -> Option<(u32, i32, [i32; 3])> {
    scan.then("[")?;
    let index = scan.int()?;
    scan.eat("]")?;
    let mut down = [scan.int()?, 0, 0];
    for other in &mut down[1..] {
        scan.eat("/")?;
        *other = scan.int()?;
    }
    scan.eat("->")?;
    let _own: i32 = scan.int()?;
    scan.eat("->")?;
    Some((index, scan.int()?, down))
}

/// `4, crossNic 0, nChannels 12, bw 30.0/30.0, type NVL/PIX, sameChannels 1`
fn graph(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let pattern = scan.int()?;
    scan.until("nChannels ")?;
    let channels = scan.int()?;
    scan.eat(", bw ")?;
    let bandwidth_intra = scan.number()?;
    scan.eat("/")?;
    let bandwidth_inter = scan.number()?;
    scan.eat(", type ")?;
    let type_intra = scan.until("/")?;
    let type_inter = scan.until(",")?;
    scan.then("sameChannels ")?;
    let same_channels = scan.int::<u32>()? != 0;
    Some(Event::Graph {
        pattern,
        channels,
        bandwidth_intra,
        bandwidth_inter,
        type_intra,
        type_inter,
        same_channels,
    })
}

/// ` 0 : GPU/0-17000 GPU/0-65000`
fn graph_channel(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let index = scan.int()?;
    scan.eat(" : ")?;
    let kinds = ["GPU/", "NET/", "CPU/", "NVS/", "NIC/"];
    let nodes = scan.0.trim_end();
    kinds.iter().any(|kind| nodes.starts_with(kind)).then_some(Event::GraphChannel { index, nodes })
}

/// `GPU/0-1 :GPU/0-1 (0/5000.0/LOC) GPU/0-2 (1/240.0/NVL) `
fn paths(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let from = scan.until(" :")?;
    let mut to = Vec::new();
    while let (Some(node), true) = (scan.word(), to.len() < MOST) {
        // The rest of a line that was cut off is left out.
        let Some((hops, bandwidth, kind)) = path(&mut scan) else { break };
        to.push((node, hops, bandwidth, kind));
    }
    (!to.is_empty() && !from.contains(' ')).then_some(Event::Paths { from, to })
}

fn path<'a>(scan: &mut Scan<'a>) -> Option<(u32, f64, &'a str)> {
    scan.then("(")?;
    let hops = scan.int()?;
    scan.eat("/")?;
    let bandwidth = scan.number()?;
    scan.eat("/")?;
    Some((hops, bandwidth, scan.until(")")?))
}

/// ` 8/8/64 | 64/8/64 | 512 | 512`
fn thresholds(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let mut all = vec![scan.int()?];
    loop {
        scan.spaces();
        if scan.0.is_empty() || all.len() > MOST {
            return Some(Event::Thresholds(all));
        }
        scan.eat("/").or_else(|| scan.eat("|"))?;
        all.push(scan.int()?);
    }
}

/// `24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, ...`
fn channel_counts(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let mut counts = ChannelCounts::default();
    loop {
        let count = scan.int()?;
        scan.spaces();
        let kind = scan.until(" channels")?;
        match kind {
            "coll" => counts.collective = count,
            "collnet" => counts.collnet = Some(count),
            "nvls" => counts.nvls = Some(count),
            "p2p" if scan.0.starts_with(" per peer") => counts.p2p_per_peer = count,
            "p2p" => counts.p2p = count,
            _ => {}
        }
        let Some(_) = scan.until(",") else { return Some(Event::Channels(counts)) };
    }
}

/// `NCCL_BUFFSIZE set by environment to 8.`
fn env(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let name = scan.until(" set ")?;
    scan.eat("by environment ");
    scan.eat("to ")?;
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.starts_with("NCCL_") || !name.bytes().all(plain) {
        return None;
    }
    // NCCL ends sentences with numbers by a full stop, those with texts not.
    let value = match scan.0.strip_suffix('.') {
        Some(number) if number.parse::<i64>().is_ok() => number,
        _ => scan.0,
    };
    Some(Event::Env { name, value })
}

/// `abc for NCCL_MIN_NCHANNELS, using default -2.`
fn invalid(scan: Scan<'_>) -> Option<Event<'_>> {
    let (head, default) = scan.0.rsplit_once(", using default ")?;
    let (value, name) = head.rsplit_once(" for ")?;
    let default = default.trim_end().strip_suffix('.').unwrap_or(default);
    Some(Event::Invalid { name, value, default })
}

/// `... comm 0x... rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 commId 0x... - Init START`
fn member(text: &str) -> Option<Event<'_>> {
    let complete = match text.trim_end().rsplit_once(" - Init ")?.1 {
        "START" => false,
        "COMPLETE" => true,
        _ => return None,
    };
    let mut scan = Scan(text);
    scan.until("comm ")?;
    let comm = scan.hex()?;
    scan.then("rank ")?;
    let rank = scan.int()?;
    scan.then("nranks ")?;
    let ranks = scan.int()?;
    scan.then("cudaDev ")?;
    let device = scan.int()?;
    scan.until("busId ")?;
    let bus_id = u64::from_str_radix(scan.word()?, 16).ok()?;
    scan.spaces();
    let id = scan.eat("commId ").and_then(|()| scan.hex());
    Some(Event::Member(Member { comm, rank, ranks, device, bus_id, id, complete }))
}

/// `comm 0x... rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0`
fn nodes(mut scan: Scan<'_>) -> Option<Event<'_>> {
    scan.eat("comm ")?;
    let comm = scan.hex()?;
    scan.until(" nNodes ")?;
    let nodes = scan.int()?;
    scan.then("localRanks ")?;
    Some(Event::Nodes { comm, nodes, local_ranks: scan.int()? })
}

/// A line of the cost table: its name, then cells that end with `|`.
fn cost(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let name = scan.until("|")?.trim();
    let mut cells = scan.0.split('|').map(str::trim).filter(|cell| !cell.is_empty());
    match name {
        "Algorithm" => Some(Event::CostAlgorithms(cells.take(MOST).collect())),
        "Max NThreads" => {
            let threads: Option<Vec<u32>> = cells.map(|cell| cell.parse().ok()).collect();
            threads.map(Event::CostThreads)
        }
        _ => {
            let cells: Option<Vec<_>> = cells.by_ref().map(cost_cell).collect();
            let cells = cells.filter(|cells| !cells.is_empty() && !name.contains(' '))?;
            Some(Event::CostRow { function: name, cells })
        }
    }
}

/// `8.0/  37.9`
fn cost_cell(cell: &str) -> Option<(f64, f64)> {
    let (latency, bandwidth) = cell.split_once('/')?;
    Some((latency.trim().parse().ok()?, bandwidth.trim().parse().ok()?))
}

/// One row of the matrix of enabled algorithms and protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MatrixRow<'a> {
    /// `Function` in the row of names.
    pub(super) function: &'a str,
    pub(super) protocols: Vec<&'a str>,
    pub(super) algorithms: Vec<&'a str>,
}

/// `AllReduce |  1  0  0 |  0  1  0  0  0  0  0`; more columns follow in 2.31.
pub(super) fn matrix_row(plain: &[u8]) -> Option<MatrixRow<'_>> {
    let mut parts = std::str::from_utf8(plain).ok()?.split('|');
    let function = parts.next()?.trim();
    let protocols: Vec<_> = parts.next()?.split_ascii_whitespace().take(MOST).collect();
    let algorithms: Vec<_> = parts.next()?.split_ascii_whitespace().take(MOST).collect();
    let fits = protocols.len() == 3 && !algorithms.is_empty() && !function.is_empty();
    (fits && !function.contains(' ')).then_some(MatrixRow { function, protocols, algorithms })
}

/// The three forms of a choice; see [`Choose`].
fn choice(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let collective = match scan.0.split_once(": ") {
        Some((name, rest)) if !name.contains(' ') => {
            scan = Scan(rest);
            Some(name)
        }
        _ => None,
    };
    let bytes = scan.int()?;
    scan.eat(" Bytes -> Algo ")?;
    let algorithm = place(scan.word()?);
    scan.then("proto ")?;
    let protocol = place(scan.word()?);
    scan.spaces();
    let time_us = scan.eat("time ").and_then(|()| scan.number());
    let channels = scan.eat("channel{Lo..Hi}={").and_then(|()| {
        let first = scan.int()?;
        scan.eat("..")?;
        let last = scan.int()?;
        scan.eat("}")?;
        Some((first, last))
    });
    scan.spaces();
    let cluster = scan.eat("cgaClusterSize ").and_then(|()| scan.int());
    Some(Event::Choice(Choose {
        collective,
        bytes,
        algorithm,
        protocol,
        channels,
        time_us,
        cluster,
    }))
}

fn place(word: &str) -> Place<'_> {
    word.parse().map_or(Place::Name(word), Place::Index)
}

/// `AllReduce [Symmetric]: 8 Bytes -> Kernel X nchannels 8 nthreads 512 nWorks 1`
fn kernel(mut scan: Scan<'_>) -> Option<Event<'_>> {
    let collective = scan.until(" [")?;
    let kind = scan.until("]: ")?;
    let bytes = scan.int()?;
    scan.eat(" Bytes -> ")?;
    scan.eat("Kernel ");
    let number = |name: &str| {
        let mut after = Scan(scan.0.split_once(name)?.1);
        after.int()
    };
    let (channels, threads) = (number(" nchannels "), number(" nthreads "));
    let what = scan.0.split(" nchannels ").next()?.trim_end();
    Some(Event::Kernel(Kernel { collective, kind, bytes, what, channels, threads }))
}

/// `Best tuning { .id = 3, .valid = 1, timeUs = 28.0,  .algo = RING, ... }`
fn tuned(scan: Scan<'_>) -> Option<Event<'_>> {
    let after = |name: &str| scan.0.split_once(name).map(|(_, rest)| Scan(rest));
    Some(Event::Tuned {
        time_us: after("timeUs = ")?.number()?,
        algorithm: after(".algo = ")?.until(",")?,
        protocol: after(".proto = ")?.until(",")?,
        channels: after(" nChannels = ")?.int()?,
        warps: after("nWarps = ")?.int()?,
    })
}
