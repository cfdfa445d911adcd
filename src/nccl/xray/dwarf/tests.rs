//! Small libraries that the C compiler makes, whole and damaged.

use super::*;
use crate::nccl::image::source;
use crate::testing::skipped;
use proptest::prelude::*;
use std::io::Write as _;
use std::path::Path;

/// What `ncclComm` is made of, in small.
const SOURCE: &str = "
typedef struct { unsigned long size; int minCTAs, maxCTAs; } ncclConfig_v9;
typedef volatile ncclConfig_v9 Config;
enum { ncclFuncBroadcast, ncclFuncReduce, ncclFuncAllReduce = 4 };
typedef enum { negative = -7 } Other;
struct later;
struct ncclComm {
    unsigned long startMagic;
    const int rank;
    unsigned char flags : 3;
    Other other;
    float bandwidths[5][6][3];
    struct later* next;
    Config config;
    Config pair[2];
    double open[];
};
struct ncclComm* first;
int of_enum = ncclFuncAllReduce;
Other also;
";

const WANTED: Question<'static> = Question {
    source: "init.cc",
    structure: "ncclComm",
    nested: &["config", "pair"],
    enumerators: &["ncclFuncAllReduce", "negative"],
};

/// A library of that source; `None`, said aloud, without a compiler.
fn compiled(options: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // In a folder: the name in the debug information then has one too.
    std::fs::create_dir(folder.path().join("src")).expect("a folder");
    std::fs::write(folder.path().join("src/init.cc"), SOURCE).expect("room for it");
    std::fs::write(folder.path().join("other.c"), "int before = 1;").expect("room for it");
    let mut cc = std::process::Command::new("cc");
    cc.current_dir(folder.path()).args(["-shared", "-fPIC", "-nostdlib", "-o", "it.so"]);
    cc.args(options).args(["other.c", "-x", "c", "src/init.cc"]);
    match cc.output() {
        Ok(done) if done.status.success() => {
            Some(std::fs::read(folder.path().join("it.so")).expect("just made"))
        }
        other => {
            skipped(&format!("cc {options:?}: {other:?}"));
            None
        }
    }
}

fn read(bytes: &[u8], question: &Question<'_>) -> Result<Layout, DwarfError> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    let data = source::cache(&file);
    layout(&Elf::parse(&data, Path::new("it.so"))?, question)
}

#[test]
fn every_kind_of_member_in_every_version_of_the_format() {
    for option in ["-gdwarf-3", "-gdwarf-4", "-gdwarf-5"] {
        let Some(bytes) = compiled(&[option]) else { return };
        let layout = read(&bytes, &WANTED).unwrap_or_else(|error| panic!("{option}: {error}"));
        let field = |name: &str| {
            let field = layout.fields.get(name);
            field.map(|f| (f.offset, f.kind, f.size, f.dims.clone()))
        };
        let signed = Kind::Integer { signed: true };
        let unsigned = Kind::Integer { signed: false };
        assert_eq!(field("startMagic"), Some((0, unsigned, 8, vec![])), "{option}");
        assert_eq!(field("rank"), Some((8, signed, 4, vec![])), "{option}");
        assert_eq!(field("flags"), None, "{option}");
        assert_eq!(field("other"), Some((16, signed, 4, vec![])), "{option}");
        assert_eq!(field("bandwidths"), Some((20, Kind::Float, 4, vec![5, 6, 3])), "{option}");
        assert_eq!(field("next"), Some((384, Kind::Pointer, 8, vec![])), "{option}");
        assert_eq!(field("config"), Some((392, Kind::Structure, 16, vec![])), "{option}");
        assert_eq!(field("config.maxCTAs"), Some((404, signed, 4, vec![])), "{option}");
        assert_eq!(field("pair"), Some((408, Kind::Structure, 16, vec![2])), "{option}");
        assert_eq!(field("pair.maxCTAs"), None, "{option}");
        assert_eq!(layout.size, 440, "{option}");
        let expected = [("ncclFuncAllReduce".to_owned(), 4), ("negative".to_owned(), -7)];
        assert_eq!(layout.enumerators, expected.into(), "{option}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let Some(bytes) = compiled(&["-g"]) else { return };
    let why = |bytes: &[u8], question: &Question<'_>| {
        read(bytes, question).expect_err("it is not there").to_string()
    };
    let missing = Question { structure: "ncclMissing", ..WANTED };
    let expected = "its debug information does not describe ncclMissing in init.cc";
    assert_eq!(why(&bytes, &missing), expected);
    let elsewhere = Question { source: "other.cc", ..WANTED };
    assert!(why(&bytes, &elsewhere).contains("does not describe ncclComm in other.cc"));
    if let Some(bytes) = compiled(&["-s"]) {
        assert!(why(&bytes, &WANTED).contains("it has no debug information (it was stripped)"));
    }
    if let Some(bytes) = compiled(&["-g", "-gz=zlib"]) {
        assert!(why(&bytes, &WANTED).contains(".debug_info: it is compressed"));
    }
}

/// Reads a damaged library; whatever comes out must hold together.
fn survives(bytes: &[u8]) {
    if let Ok(layout) = read(bytes, &WANTED) {
        for (name, field) in &layout.fields {
            let range = field.range().unwrap_or_else(|| panic!("{name}: {field:?}"));
            assert!(range.end <= layout.size, "{name}: {field:?}");
        }
    }
}

#[test]
fn damaged_libraries_do_not_panic() {
    let Some(bytes) = compiled(&["-g"]) else { return };
    let size = bytes.len();
    let damage = proptest::collection::vec((0..size, any::<u8>()), 1..40);
    let mut runner = proptest::test_runner::TestRunner::default();
    let cut = prop_oneof![4 => Just(size), 1 => 0..size];
    runner
        .run(&(damage, cut), |(damage, cut)| {
            let mut bytes = bytes.clone();
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            survives(&bytes);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Damage where it hurts: only in the sections that are read.
#[test]
fn damaged_descriptions_do_not_panic() {
    let Some(bytes) = compiled(&["-gdwarf-4"]) else { return };
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &bytes).expect("room for it");
    let data = source::cache(file.as_file());
    let elf = Elf::parse(&data, file.path()).expect("just made");
    let mut places = Vec::new();
    for name in [".debug_info", ".debug_abbrev", ".debug_str"] {
        places.extend(elf.section_range(name).expect("sound").into_iter().flatten());
    }
    let damage = proptest::collection::vec((0..places.len(), any::<u8>()), 1..12);
    proptest::test_runner::TestRunner::default()
        .run(&damage, |damage| {
            let mut bytes = bytes.clone();
            for (place, byte) in damage {
                bytes[places[place] as usize] = byte;
            }
            survives(&bytes);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
