//! What this tool knows about `struct ncclComm`: the names of the members that
//! it reads, and which of them a version must have. Where they lie comes from
//! the debug information of the library file.

use crate::model::Unreadable;
use crate::nccl::image::ImageError;
use crate::nccl::image::source::{self, Elf};
use crate::nccl::xray::dwarf::{self, Field, Kind, Layout, Question};
use std::fs::File;
use std::path::Path;

const ALL_REDUCE: &str = "ncclFuncAllReduce";

/// The collectives that have tables.
const FUNCTIONS: [&str; 5] = [
    "ncclFuncBroadcast",
    "ncclFuncReduce",
    "ncclFuncAllGather",
    "ncclFuncReduceScatter",
    ALL_REDUCE,
];

const QUESTION: Question<'static> = Question {
    source: "init.cc",
    structure: "ncclComm",
    nested: &["config", "tuningContext"],
    enumerators: &FUNCTIONS,
};

/// A larger member is not what its name says.
const MOST_BYTES: u64 = 16 << 10;

/// Its name in each version, oldest first, for those that moved in 2.31.
const BANDWIDTHS: [&str; 2] = ["bandwidths", "tuningContext.generalBandwidths"];
const LATENCIES: [&str; 2] = ["latencies", "tuningContext.generalLatencies"];
const MAX_THREADS: [&str; 2] = ["maxThreads", "tuningContext.maxThreads"];

/// Single integers. Which of them are there depends on the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Rank,
    Ranks,
    Hash,
    CudaDevice,
    BusId,
    ComputeCapability,
    Nodes,
    LocalRank,
    LocalRanks,
    Channels,
    MinCtas,
    MaxCtas,
    Operations,
    StartMark,
    EndMark,
}

/// With the names in all versions from 2.18.3 to 2.32.3.
pub(super) const NUMBERS: [(Number, &str); 15] = [
    (Number::Rank, "rank"),
    (Number::Ranks, "nRanks"),
    (Number::Hash, "commHash"),
    (Number::CudaDevice, "cudaDev"),
    (Number::BusId, "busId"),
    (Number::ComputeCapability, "compCap"),
    (Number::Nodes, "nNodes"),
    (Number::LocalRank, "localRank"),
    (Number::LocalRanks, "localRanks"),
    (Number::Channels, "nChannels"),
    (Number::MinCtas, "config.minCTAs"),
    (Number::MaxCtas, "config.maxCTAs"),
    (Number::Operations, "opCount"),
    (Number::StartMark, "startMagic"),
    (Number::EndMark, "endMagic"),
];

/// Where NCCL keeps its own list of communicators (2.24 and newer), as
/// link-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// `ncclComms`: the address of an array of addresses, some of them 0.
    pub(super) array: u64,
    /// `nNcclComms`: an `int`, the length of the array.
    pub(super) count: u64,
}

/// A table with one entry for each algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) field: Field,
    pub(super) algorithms: usize,
    pub(super) protocols: usize,
}

/// How to read the communicators of one library file.
#[derive(Clone, Debug)]
pub(super) struct CommLayout {
    pub(super) list: Option<List>,
    numbers: Vec<(Number, Field)>,
    pub(super) buffers: Option<Field>,
    /// Since 2.24: how many collectives there were, for each function.
    pub(super) collectives: Option<Field>,
    pub(super) bandwidths: Option<Table>,
    pub(super) latencies: Option<Table>,
    pub(super) max_threads: Option<Table>,
    /// Since 2.31: which of the tables' entries may be used, for all functions.
    pub(super) enabled: Option<Field>,
    /// Names and indices of the collectives in the tables; all-reduce is there.
    pub(super) functions: Vec<(&'static str, usize)>,
}

impl CommLayout {
    /// Reads it from an open library file; `path` is only for messages.
    pub(super) fn from_file(file: &File, path: &Path) -> Result<Self, Unreadable> {
        let (layout, list) = describe(file, path).map_err(|error| explain(path, &error))?;
        Self::new(&layout, list).map_err(|what| {
            let why = format!("its debug information has no usable member {what} of ncclComm");
            explain(path, &why)
        })
    }

    /// The name of the missing member when one is missing without which nothing
    /// can be told.
    pub(super) fn new(layout: &Layout, list: Option<List>) -> Result<Self, &'static str> {
        let number = |&(number, name): &(Number, &'static str)| {
            let field = layout.fields.get(name).filter(|field| is_number(field))?;
            Some((number, field.clone()))
        };
        let numbers: Vec<_> = NUMBERS.iter().filter_map(number).collect();
        for (required, name) in &NUMBERS[..4] {
            if !numbers.iter().any(|(number, _)| number == required) {
                return Err(name);
            }
        }
        let function = |name: &'static str| {
            let index = usize::try_from(*layout.enumerators.get(name)?).ok();
            Some((name.strip_prefix("ncclFunc")?, index.filter(|index| *index < 64)?))
        };
        function(ALL_REDUCE).ok_or(ALL_REDUCE)?;
        let table = |names: [&str; 2], kind, dims| {
            let mut fields = names.iter().filter_map(|name| layout.fields.get(*name));
            fields.find_map(|field| Table::new(field, kind, dims))
        };
        let (float, int) = (Kind::Float, Kind::Integer { signed: true });
        let buffers = layout.fields.get("buffSizes");
        let enabled = layout.fields.get("tuningContext.enabled");
        let collectives = layout.fields.get("seqNumber");
        Ok(Self {
            list,
            numbers,
            buffers: buffers.filter(|f| f.dims == [3] && is_table(f, int)).cloned(),
            collectives: collectives.filter(|f| f.dims.len() == 1 && is_counters(f)).cloned(),
            bandwidths: table(BANDWIDTHS, float, 3),
            latencies: table(LATENCIES, float, 3),
            max_threads: table(MAX_THREADS, int, 2),
            enabled: enabled.filter(|f| f.dims.len() == 2 && is_table(f, int)).cloned(),
            functions: FUNCTIONS.into_iter().filter_map(function).collect(),
        })
    }

    pub(super) fn number(&self, number: Number) -> Option<&Field> {
        self.numbers.iter().find(|(other, _)| *other == number).map(|(_, field)| field)
    }

    /// All members to read, in the order of their addresses.
    pub(super) fn fields(&self) -> Vec<&Field> {
        let tables = [&self.bandwidths, &self.latencies, &self.max_threads];
        let tables = tables.into_iter().flatten().map(|table| &table.field);
        let arrays = [&self.buffers, &self.collectives, &self.enabled].into_iter().flatten();
        let numbers = self.numbers.iter().map(|(_, field)| field);
        let mut fields: Vec<&Field> = numbers.chain(arrays).chain(tables).collect();
        fields.sort_by_key(|field| field.offset);
        fields
    }
}

impl Table {
    fn new(field: &Field, kind: Kind, dims: usize) -> Option<Self> {
        let (algorithms, protocols) = match *field.dims {
            [_, algorithms, protocols] if dims == 3 => (algorithms, protocols),
            [algorithms, protocols] if dims == 2 => (algorithms, protocols),
            _ => return None,
        };
        is_table(field, kind).then(|| Self {
            field: field.clone(),
            algorithms: algorithms as usize,
            protocols: protocols as usize,
        })
    }
}

fn is_number(field: &Field) -> bool {
    let integer = matches!(field.kind, Kind::Integer { .. });
    integer && field.dims.is_empty() && matches!(field.size, 1 | 2 | 4 | 8)
}

/// 4-byte elements of a kind, few enough that no product of them overflows.
fn is_table(field: &Field, kind: Kind) -> bool {
    field.kind == kind && field.size == 4 && is_small(field)
}

fn is_counters(field: &Field) -> bool {
    field.kind == Kind::Integer { signed: false } && field.size == 8 && is_small(field)
}

fn is_small(field: &Field) -> bool {
    let small = field.range().is_some_and(|range| range.end - range.start <= MOST_BYTES);
    small && field.dims.iter().all(|dim| *dim > 0)
}

fn explain(path: &Path, why: &dyn std::fmt::Display) -> Unreadable {
    Unreadable::new(format!("the layout of communicators in {}: {why}", path.display()))
}

/// What the file says about `ncclComm`, and where NCCL's own list is.
pub(super) fn describe(
    file: &File,
    path: &Path,
) -> Result<(Layout, Option<List>), dwarf::DwarfError> {
    source::require_regular(file, path)?;
    let data = source::cache(file);
    let elf = Elf::parse(&data, path)?;
    Ok((dwarf::layout(&elf, &QUESTION)?, list(&elf)?))
}

/// NCCL's own list, by the names of its two variables.
fn list(elf: &Elf<'_>) -> Result<Option<List>, ImageError> {
    let (mut array, mut count) = (None, None);
    elf.symbols(|symbol| match symbol.name {
        b"ncclComms" if symbol.size == 8 => array = Some(symbol.vaddr),
        b"nNcclComms" if symbol.size == 4 => count = Some(symbol.vaddr),
        _ => {}
    })?;
    Ok(array.zip(count).map(|(array, count)| List { array, count }))
}
