use super::*;
use crate::nccl::testing;
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
        [
            1181408,
            1181416,
            1181420,
            1181728,
            1182020,
            1182048 + 2412,
            1182048 + 3000,
            1193608 + 24,
        ],
    ),
    (
        "2.32.3",
        1196536,
        [
            1181408,
            1181416,
            1181420,
            1181736,
            1182028,
            1182056 + 2412,
            1182056 + 3000,
            1193624 + 24,
        ],
    ),
];

fn layout_of(path: &std::path::Path) -> Result<CommLayout, Unreadable> {
    CommLayout::from_file(&File::open(path).expect("it was listed"), path)
}

#[test]
fn layouts_are_those_that_another_reader_found() {
    for entry in testing::libraries() {
        let start = Instant::now();
        let layout = layout_of(&entry.path).unwrap_or_else(|why| panic!("{why}"));
        println!("{}: {} bytes in {:.1?}", entry.wheel, layout.size, start.elapsed());
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
            assert_eq!((layout.size, found), (*size, *offsets), "{version}");
        }
        assert!(layout.latencies.is_some(), "{version}");
    }
}
