use super::*;
use crate::model::{Communicator, Source};
use crate::nccl::testing;
use crate::nccl::xray::dwarf::{Field, Kind, Layout};
use crate::process::memory::{Memory, SparseMemory};
use proptest::prelude::*;
use std::fs::File;
use std::time::Instant;

/// `sizeof(ncclComm)` and the offsets of commHash, rank, nRanks, nChannels,
/// buffSizes, bandwidths, maxThreads and config.minCTAs, measured with another
/// DWARF reader. Only tests know offsets.
const MEASURED: [(&str, u64, [u64; 8]); 10] = [
    ("2.18.3", 11176, [9168, 9176, 9180, 9416, 9568, 10088, 10448, 11112 + 24]),
    ("2.21.5", 16288, [13528, 13536, 13540, 13800, 13952, 14480, 14900, 15656 + 24]),
    ("2.23.4", 253152, [246944, 246952, 246956, 247224, 247376, 247988, 248468, 252464 + 24]),
    ("2.26.5", 506752, [492720, 492728, 492732, 493008, 493288, 493900, 494320, 500904 + 24]),
    (
        "2.27.5",
        1080320,
        [1066160, 1066168, 1066172, 1066448, 1066728, 1067340, 1067760, 1074384 + 24],
    ),
    (
        "2.28.9",
        1082968,
        [1066184, 1066192, 1066196, 1066496, 1066780, 1068540, 1068960, 1075592 + 24],
    ),
    (
        "2.29.7",
        1199592,
        [1181392, 1181400, 1181404, 1181704, 1181988, 1183748, 1184168, 1191400 + 24],
    ),
    (
        "2.30.7",
        1199744,
        [1181416, 1181424, 1181428, 1181728, 1182020, 1183788, 1184208, 1191424 + 24],
    ),
    (
        "2.31.2",
        1196464,
        [1181408, 1181416, 1181420, 1181728, 1182020, 1182048 + 2412, 1182048 + 3000, 1193608 + 24],
    ),
    (
        "2.32.3",
        1196536,
        [1181408, 1181416, 1181420, 1181736, 1182028, 1182056 + 2412, 1182056 + 3000, 1193624 + 24],
    ),
];

#[test]
fn layouts_are_those_that_another_reader_found() {
    for entry in testing::libraries() {
        let start = Instant::now();
        let file = File::open(&entry.path).expect("it was listed");
        let described = layout::describe(&file, &entry.path);
        let (described, list) = described.unwrap_or_else(|why| panic!("{why}"));
        let layout = CommLayout::new(&described, list).expect("all members");
        println!("{}: {} bytes in {:.1?}", entry.wheel, described.size, start.elapsed());
        let number = |number| layout.number(number).expect("in all versions").offset;
        let table = |table: &Option<layout::Table>| table.as_ref().expect("there").field.offset;
        let found = [
            number(layout::Number::Hash),
            number(layout::Number::Rank),
            number(layout::Number::Ranks),
            number(layout::Number::Channels),
            layout.buffers.as_ref().expect("in all versions").offset,
            table(&layout.bandwidths),
            table(&layout.max_threads),
            number(layout::Number::MinCtas),
        ];
        let version = entry.wheel.to_string();
        // The builds for CUDA 13 differ a little from those measured.
        let known = MEASURED.iter().find(|(name, ..)| version.starts_with(name));
        if let Some((_, size, offsets)) = known
            && !version.contains("cu13")
        {
            assert_eq!((described.size, found), (*size, *offsets), "{version}");
        }
        assert!(layout.latencies.is_some(), "{version}");
    }
}

/// A small layout as of 2.18: no marks, tables of one function.
fn small(marks: bool) -> CommLayout {
    let mut layout = Layout { size: 256, ..Layout::default() };
    let mut add = |name: &str, offset, kind, size, dims: &[u64]| {
        layout.fields.insert(name.to_owned(), Field { offset, kind, size, dims: dims.to_vec() });
    };
    let int = Kind::Integer { signed: true };
    add("commHash", 16, Kind::Integer { signed: false }, 8, &[]);
    for (at, name) in (24..).step_by(4).zip(["rank", "nRanks", "cudaDev", "compCap", "nNodes"]) {
        add(name, at, int, 4, &[]);
    }
    add("busId", 48, int, 8, &[]);
    add("opCount", 56, Kind::Integer { signed: false }, 8, &[]);
    add("buffSizes", 64, int, 4, &[3]);
    add("bandwidths", 80, Kind::Float, 4, &[1, 2, 3]);
    add("maxThreads", 104, int, 4, &[2, 3]);
    if marks {
        add("startMagic", 0, Kind::Integer { signed: false }, 8, &[]);
        add("endMagic", 248, Kind::Integer { signed: false }, 8, &[]);
    }
    layout.enumerators.insert("ncclFuncAllReduce".to_owned(), 0);
    CommLayout::new(&layout, None).expect("all is there")
}

/// A communicator of that layout: rank 1 of 2 on device 3.
fn sample() -> Vec<u8> {
    let mut bytes = vec![0; 256];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    for at in [0, 248] {
        put(at, &snapshot::MARK.to_le_bytes());
    }
    put(16, &0xfeed_u64.to_le_bytes());
    for (at, value) in [(24, 1), (28, 2), (32, 3), (36, 90), (40, 1)] {
        put(at, &i32::to_le_bytes(value));
    }
    put(48, &0x0011_b000_i64.to_le_bytes());
    for (at, value) in [(64, 1000), (68, 2000), (72, 1 << 22)] {
        put(at, &i32::to_le_bytes(value));
    }
    put(84, &7.5f32.to_le_bytes());
    put(108, &640i32.to_le_bytes());
    bytes
}

const BASE: u64 = 0x7000_0000;

fn all_of(size: u64) -> Vec<std::ops::Range<u64>> {
    std::iter::once(BASE..BASE + size).collect()
}

fn memory_with(at: u64, bytes: &[u8]) -> SparseMemory {
    let mut all = vec![0xa5; 3 << 20];
    all[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    let mut memory = SparseMemory::new();
    memory.put(BASE, all);
    memory
}

#[test]
fn searches_find_what_lies_anywhere_also_across_pieces() {
    let (marked, plain) = (small(true), small(false));
    for at in [0, 8, (1 << 20) - 8, (1 << 20) - 24, (1 << 20) - 248, (2 << 20) + 16] {
        let memory = memory_with(at, &sample());
        let runs = all_of(3 << 20);
        let by_marks = find::by_marks(&memory, &runs, 0).expect("readable").addresses;
        // The mark at the end is a candidate too, until it is read.
        assert_eq!(by_marks, [BASE + at, BASE + at + 248], "{at}");
        let by_shape = find::by_shape(&memory, &runs, &plain).expect("readable").addresses;
        assert_eq!(by_shape, [BASE + at], "{at}");
        let all = snapshot::read_all(&memory, &marked, &[BASE + at, 8]).expect("readable");
        let one = all[0].as_ref().expect("it is mapped");
        assert!(one.is_certain() && all[1].is_none());
        let told = one.interpret(one);
        assert_eq!((told.rank, told.ranks, told.cuda_device), (1, 2, 3));
        assert_eq!(told.bus_id.as_deref(), Some("0001:1b:00.0"));
        assert_eq!(told.buffers.map(|buffers| buffers.simple), Some(1 << 22));
        let on: Vec<_> = told.pairs("AllReduce").iter().filter(|choice| choice.enabled).collect();
        assert_eq!((on.len(), &*on[0].algorithm, &*on[0].protocol), (1, "Tree", "LL128"));
        assert_eq!((on[0].bandwidth, on[0].max_threads), (7.5, Some(640)));
    }
}

/// What a text once was taken for: numbers that fit, tables that do not.
#[test]
fn what_only_looks_like_a_communicator_is_none() {
    let layout = small(false);
    let certain = |bytes: &[u8]| {
        let memory = memory_with(0, bytes);
        let all = snapshot::read_all(&memory, &layout, &[BASE]).expect("readable");
        all[0].as_ref().expect("it is mapped").is_certain()
    };
    assert!(certain(&sample()));
    let text = u32::from_le_bytes(*b"rank");
    let (noise, threads) = (1e-19f32.to_bits(), 4000);
    for (at, word) in [(80, text), (92, noise), (104, threads), (84, 0), (48, 0x1b008), (36, 7)] {
        let mut bytes = sample();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        assert!(!certain(&bytes), "{at}: {word:#x}");
    }
}

#[test]
fn communicators_survive_json() {
    let layout = small(true);
    let memory = memory_with(0, &sample());
    let all = snapshot::read_all(&memory, &layout, &[BASE]).expect("readable");
    let one = all[0].as_ref().expect("it is mapped");
    let found = vec![one.interpret(one)];
    let all = Communicators { found, source: Source::Marks, notes: vec!["why".into()] };
    let text = serde_json::to_string(&all).expect("plain data");
    assert_eq!(serde_json::from_str::<Communicators>(&text).expect("own output"), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_memory_does_not_panic(
        start in proptest::collection::vec(any::<u8>(), 256..600),
        words in proptest::collection::vec((0usize..64, any::<i32>()), 0..12),
        count in any::<i32>(), array in prop_oneof![any::<u64>(), Just(BASE), Just(BASE + 4)],
    ) {
        let mut bytes = start;
        for (at, word) in words {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        let mut memory = SparseMemory::new();
        memory.put(BASE, bytes.clone());
        memory.put(64, [&array.to_le_bytes()[..], &count.to_le_bytes()].concat());
        let list = layout::List { array: 64, count: 72 };
        let mut addresses = find::by_list(&memory, list, 0).unwrap_or_default();
        let runs = all_of(bytes.len() as u64 + 4096);
        for marks in [true, false] {
            let layout = small(marks);
            addresses.extend(find::by_marks(&memory, &runs, 0).expect("readable").addresses);
            addresses.extend(find::by_shape(&memory, &runs, &layout).expect("readable").addresses);
            addresses.extend([BASE, u64::MAX - 8, BASE + 16]);
            let all = snapshot::read_all(&memory, &layout, &addresses).expect("readable");
            for one in all.iter().flatten() {
                one.is_certain();
                let told = one.interpret(one);
                let text = serde_json::to_string(&told).expect("plain data");
                let back: Communicator = serde_json::from_str(&text).expect("own output");
                prop_assert_eq!(back, told);
            }
        }
        let mut byte = [0];
        prop_assert!(memory.read(BASE, &mut byte).is_ok());
    }
}
