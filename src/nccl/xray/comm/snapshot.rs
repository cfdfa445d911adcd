//! The bytes of one communicator at one moment, and what they mean.

use super::layout::{CommLayout, Number, Table};
use crate::model::{Activity, Buffers, CollectivePairs, Communicator, Pair};
use crate::nccl::xray::dwarf::{Field, Kind};
use crate::process::memory::{Memory, Part};
use std::io;

/// Around every communicator since 2.21.
pub(super) const MARK: u64 = 0x0280_0280_0280_0280;

/// More ranks than any job has.
const MOST_RANKS: i64 = 1 << 22;

/// The order of NCCL's tables in all versions from 2.18.3 to 2.32.3; 2.18 to
/// 2.21 have no PAT.
const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];

/// What NCCL writes for "not set" into a configuration.
const UNSET: i64 = i32::MIN as i64;

/// The wanted members of one communicator.
#[derive(Clone, Debug)]
pub(super) struct Snapshot<'l> {
    layout: &'l CommLayout,
    pub(super) address: u64,
    /// Offset and bytes of each, by offset.
    members: Vec<(u64, Vec<u8>)>,
}

/// Reads many communicators with as few system calls as possible. `None` where
/// one is not in readable memory.
pub(super) fn read_all<'l>(
    memory: &dyn Memory,
    layout: &'l CommLayout,
    addresses: &[u64],
) -> io::Result<Vec<Option<Snapshot<'l>>>> {
    let fields = layout.fields();
    let blank = |field: &&Field| {
        let size = field.range().map_or(0, |range| range.end - range.start);
        (field.offset, vec![0; size as usize])
    };
    let mut all: Vec<_> = addresses
        .iter()
        .map(|&address| Snapshot { layout, address, members: fields.iter().map(blank).collect() })
        .collect();
    let mut parts: Vec<Part<'_>> = all
        .iter_mut()
        .flat_map(|one| {
            let base = one.address;
            one.members.iter_mut().map(move |(at, into)| Part::new(base.wrapping_add(*at), into))
        })
        .collect();
    memory.read_many(&mut parts)?;
    let whole: Vec<bool> =
        parts.chunks(fields.len().max(1)).map(|one| one.iter().all(Part::is_whole)).collect();
    Ok(all.into_iter().zip(whole).map(|(one, whole)| whole.then_some(one)).collect())
}

/// The addresses at which there is what `wanted` wants. A few at a time, because
/// there may be many guesses.
pub(super) fn keep(
    memory: &dyn Memory,
    layout: &CommLayout,
    addresses: &[u64],
    wanted: impl Fn(&Snapshot<'_>) -> bool,
) -> io::Result<Vec<u64>> {
    const AT_ONCE: usize = 128;
    let mut kept = Vec::new();
    for some in addresses.chunks(AT_ONCE) {
        let all = read_all(memory, layout, some)?.into_iter().flatten();
        kept.extend(all.filter(|one| wanted(one)).map(|one| one.address));
    }
    Ok(kept)
}

impl Snapshot<'_> {
    fn bytes(&self, field: &Field) -> &[u8] {
        let found = self.members.binary_search_by_key(&field.offset, |(offset, _)| *offset);
        found.map_or(&[], |at| &self.members[at].1)
    }

    /// A member that is one integer. Unsigned ones of 8 bytes come back as the
    /// same bits.
    pub(super) fn number(&self, number: Number) -> Option<i64> {
        let field = self.layout.number(number)?;
        let bytes = self.bytes(field);
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let value = i64::from_le_bytes(wide);
        let shift = 64 - 8 * u32::try_from(bytes.len()).ok().filter(|n| (1..=8).contains(n))?;
        let negative = field.kind == (Kind::Integer { signed: true });
        Some(if negative { value << shift >> shift } else { value })
    }

    fn integers(&self, field: &Field) -> Vec<i32> {
        let (values, _) = self.bytes(field).as_chunks();
        values.iter().copied().map(i32::from_le_bytes).collect()
    }

    fn floats(&self, field: &Field) -> Vec<f32> {
        let (values, _) = self.bytes(field).as_chunks();
        values.iter().copied().map(f32::from_le_bytes).collect()
    }

    /// Whether this is a communicator whose members are filled in.
    pub(super) fn is_plausible(&self) -> bool {
        let marked = |number| self.number(number).is_none_or(|mark| mark as u64 == MARK);
        let at_least = |number, least| self.number(number).is_none_or(|value| value >= least);
        let (Some(rank), Some(ranks)) = (self.number(Number::Rank), self.number(Number::Ranks))
        else {
            return false;
        };
        (0..ranks).contains(&rank)
            && ranks <= MOST_RANKS
            && marked(Number::StartMark)
            && marked(Number::EndMark)
            && at_least(Number::CudaDevice, 0)
            && at_least(Number::Nodes, 0)
            && at_least(Number::LocalRanks, 0)
            && at_least(Number::Channels, 0)
    }

    /// Whether every member looks as it does after init. For versions without
    /// marks: other memory may look a little like a communicator, and with
    /// numbers alone some did; the tables then hold no sense.
    pub(super) fn is_certain(&self) -> bool {
        let number = |number| self.number(number).unwrap_or(1);
        let ranks = number(Number::Ranks);
        let local = number(Number::LocalRanks);
        let buffers = self.layout.buffers.as_ref().map(|field| self.integers(field));
        self.is_plausible()
            && number(Number::CudaDevice) < 1024
            && (30..1000).contains(&number(Number::ComputeCapability))
            && (1..=ranks).contains(&number(Number::Nodes))
            && (1..=ranks).contains(&local)
            && self.number(Number::LocalRank).is_none_or(|rank| (0..local).contains(&rank))
            && (1..=1024).contains(&number(Number::Channels))
            && self.number(Number::BusId).is_none_or(is_bus_id)
            && buffers.is_some_and(|sizes| sizes.iter().all(|size| *size > 0))
            && self.has_sound_tables(ranks > 1)
    }

    /// Whether the tables hold bandwidths, latencies and numbers of threads; a
    /// communicator of one rank may have none, and one in which everything is
    /// off has latencies only.
    fn has_sound_tables(&self, filled: bool) -> bool {
        let tables = [&self.layout.bandwidths, &self.layout.latencies];
        let [bandwidths, latencies] = tables
            .map(|table| table.as_ref().map_or_else(Vec::new, |table| self.floats(&table.field)));
        let threads = self.layout.max_threads.as_ref();
        let threads = threads.map_or_else(Vec::new, |table| self.integers(&table.field));
        let sound = |value: &f32| *value == 0.0 || (1e-3..1e6).contains(value);
        bandwidths.iter().chain(&latencies).all(sound)
            && threads.iter().all(|threads| (0..=1024).contains(threads))
            && (!filled || bandwidths.iter().chain(&latencies).any(|value| *value > 0.0))
    }

    /// Whether the other differs in more than the count of operations.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let counters = [self.layout.number(Number::Operations), self.layout.collectives.as_ref()];
        let counters = counters.map(|field| field.map(|field| field.offset));
        let settled = |one: &Self| -> Vec<_> {
            one.members.iter().filter(|(at, _)| !counters.contains(&Some(*at))).cloned().collect()
        };
        settled(self) == settled(other)
    }

    /// How many operations there were. `opCount` counts all of them, but stays
    /// 0 from 2.27 to 2.30; since 2.24 there is also a count of collectives.
    fn operations(&self) -> Option<u64> {
        let all = self.number(Number::Operations).map(|count| count as u64);
        let collectives = self.layout.collectives.as_ref().map(|field| {
            let (counts, _) = self.bytes(field).as_chunks();
            let counts = counts.iter().copied().map(u64::from_le_bytes);
            counts.fold(0, u64::saturating_add)
        });
        all.max(collectives)
    }

    /// What it says; `earlier` is the same communicator some time ago.
    pub(super) fn interpret(&self, earlier: &Self) -> Communicator {
        let count = |number| self.number(number).and_then(|value| u32::try_from(value).ok());
        let set = |number| {
            let value = self.number(number).filter(|value| *value != UNSET);
            value.and_then(|value| i32::try_from(value).ok())
        };
        let hash = self.number(Number::Hash).unwrap_or(0);
        let operations = self.operations();
        Communicator {
            address: format!("{:#x}", self.address),
            rank: count(Number::Rank).unwrap_or(0),
            ranks: count(Number::Ranks).unwrap_or(0),
            hash: format!("{:#x}", hash as u64),
            cuda_device: set(Number::CudaDevice).unwrap_or(-1),
            bus_id: self.number(Number::BusId).map(bus_id),
            nodes: count(Number::Nodes),
            local_ranks: count(Number::LocalRanks),
            channels: count(Number::Channels),
            buffers: self.buffers(),
            min_ctas: set(Number::MinCtas),
            max_ctas: set(Number::MaxCtas),
            operations,
            activity: match (earlier.operations(), operations) {
                (Some(before), Some(now)) if before == now => Activity::Idle,
                (Some(_), Some(_)) => Activity::Moving,
                _ => Activity::Unknown,
            },
            collectives: self.collectives(),
        }
    }

    fn buffers(&self) -> Option<Buffers> {
        match *self.integers(self.layout.buffers.as_ref()?) {
            [ll, ll128, simple] => {
                let size = |bytes| u64::try_from(bytes).ok();
                Some(Buffers { ll: size(ll)?, ll128: size(ll128)?, simple: size(simple)? })
            }
            _ => None,
        }
    }

    fn collectives(&self) -> Vec<CollectivePairs> {
        let one = |&(collective, function): &(&str, usize)| {
            Some(CollectivePairs { collective: collective.into(), pairs: self.pairs(function)? })
        };
        self.layout.functions.iter().filter_map(one).collect()
    }

    /// What NCCL expects of each pair for one function; `None` before it has
    /// computed that.
    fn pairs(&self, function: usize) -> Option<Vec<Pair>> {
        let table = self.layout.bandwidths.as_ref()?;
        let pairs = table.algorithms.checked_mul(table.protocols)?;
        let bandwidths = self.of_function(table, function)?;
        let latencies = self.layout.latencies.as_ref();
        let latencies = latencies.filter(|other| other.field.dims == table.field.dims);
        let latencies = latencies.and_then(|latencies| self.of_function(latencies, function));
        let threads = self.layout.max_threads.as_ref();
        let threads = threads.filter(|other| other.algorithms == table.algorithms);
        let threads = threads.map(|threads| self.integers(&threads.field));
        // Where all is off no bandwidth is left (up to 2.30), but NCCL's
        // latencies still are.
        if bandwidths.iter().chain(latencies.iter().flatten()).all(|value| *value == 0.0) {
            return None;
        }
        // Where NCCL has computed nothing there is -1 (since 2.31).
        let usable = |value: &f32| value.is_finite() && *value >= 0.0;
        let one = |pair: usize| Pair {
            algorithm: name(&ALGORITHMS, pair / table.protocols, "algorithm"),
            protocol: name(&PROTOCOLS, pair % table.protocols, "protocol"),
            enabled: bandwidths[pair] > 0.0 && self.is_enabled(pair, function) != Some(false),
            bandwidth: Some(bandwidths[pair]).filter(usable).unwrap_or(0.0),
            latency: latencies.as_ref().and_then(|all| all.get(pair).copied()).filter(usable),
            max_threads: threads.as_ref().and_then(|all| u32::try_from(*all.get(pair)?).ok()),
        };
        Some((0..pairs).map(one).collect())
    }

    /// The part of a table that is about one function.
    fn of_function(&self, table: &Table, function: usize) -> Option<Vec<f32>> {
        let pairs = table.algorithms.checked_mul(table.protocols)?;
        let first = function.checked_mul(pairs)?;
        let all = self.floats(&table.field);
        Some(all.get(first..first.checked_add(pairs)?)?.to_vec())
    }

    /// Since 2.31 a pair that is off keeps its bandwidth.
    fn is_enabled(&self, pair: usize, function: usize) -> Option<bool> {
        let field = self.layout.enabled.as_ref()?;
        let functions = usize::try_from(*field.dims.get(1)?).ok()?;
        let at = pair.checked_mul(functions)?.checked_add(function)?;
        Some(*self.integers(field).get(at)? != 0)
    }
}

/// The name at an index, or words for one that is newer than this program.
fn name(names: &[&str], index: usize, what: &str) -> String {
    names.get(index).map_or_else(|| format!("{what} {index}"), |name| (*name).to_owned())
}

/// Whether it is a packed PCI address: 32 devices with 8 functions on a bus.
fn is_bus_id(packed: i64) -> bool {
    packed > 0 && packed >> 4 & 0xff < 32 && packed & 0xf < 8
}

/// NCCL packs `0000:17:00.0` into hex digits: 0x17000.
fn bus_id(packed: i64) -> String {
    let packed = packed as u64;
    let (bus, device) = (packed >> 12 & 0xff, packed >> 4 & 0xff);
    format!("{:04x}:{bus:02x}:{device:02x}.{:x}", packed >> 20, packed & 0xf)
}
