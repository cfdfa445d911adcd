use super::*;
use crate::nccl::testing;
use proptest::prelude::*;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

/// A complete little libnccl: one parameter, two names, a banner.
mod tiny {
    const BASE: u64 = 0x1000;
    const RODATA: u64 = 0x1100;
    const TEXT: u64 = 0x1200;
    pub(super) const CACHE: u64 = 0x9000;

    fn section(name: u32, kind: u32, at: u64, offset: u64, size: u64, link: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(name.to_le_bytes());
        out.extend(kind.to_le_bytes());
        for value in [2, at, offset, size] {
            out.extend(value.to_le_bytes());
        }
        out.extend(link.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        for value in [8u64, 24] {
            out.extend(value.to_le_bytes());
        }
        out
    }

    fn symbol(name: u32, info: u8, value: u64, size: u64) -> Vec<u8> {
        let mut out = name.to_le_bytes().to_vec();
        out.extend([info, 0, 1, 0]);
        out.extend(value.to_le_bytes());
        out.extend(size.to_le_bytes());
        out
    }

    /// `ncclParamX`: lea rcx, cache; mov rsi, -2; lea rdi, name; call.
    fn code() -> Vec<u8> {
        let near = |target: u64, next: u64| (target as i64 - next as i64) as i32;
        let mut out = vec![0x48, 0x8d, 0x0d];
        out.extend(near(CACHE, TEXT + 7).to_le_bytes());
        out.extend([0x48, 0xc7, 0xc6, 0xfe, 0xff, 0xff, 0xff, 0x48, 0x8d, 0x3d]);
        out.extend(near(RODATA, TEXT + 21).to_le_bytes());
        out.extend([0xe8, 0, 0, 0, 0]);
        out
    }

    pub(super) fn library(symbols: bool) -> Vec<u8> {
        let rodata = b"NCCL_X\0NCCL_ALGO\0NCCL version 2.27.7+cuda12.9\n\0";
        let names = b"\0.rodata\0.symtab\0.strtab\0.shstrtab\0";
        let strings = b"\0_Z10ncclParamXv\0_ZZ10ncclParamXvE5cache\0";
        let code = code();
        let mut table = symbol(0, 0, 0, 0);
        table.extend(symbol(1, 2, TEXT, code.len() as u64));
        table.extend(symbol(17, 1, CACHE, 8));

        let mut out = vec![0u8; 0x300];
        out[0x100..0x100 + rodata.len()].copy_from_slice(rodata);
        out[0x200..0x200 + code.len()].copy_from_slice(&code);
        let (names_at, strings_at) = (out.len() as u64, (out.len() + 64) as u64);
        out.extend(names);
        out.resize(strings_at as usize, 0);
        out.extend(strings);
        out.resize(0x400, 0);
        out.extend(&table);
        let headers_at = out.len() as u64;
        let kind = if symbols { 2 } else { 1 };
        out.extend(section(0, 0, 0, 0, 0, 0));
        out.extend(section(1, 1, RODATA, 0x100, rodata.len() as u64, 0));
        out.extend(section(9, kind, 0, 0x400, table.len() as u64, 3));
        out.extend(section(17, 3, 0, strings_at, strings.len() as u64, 0));
        out.extend(section(25, 3, 0, names_at, names.len() as u64, 0));
        header(&mut out, headers_at);
        out
    }

    fn header(out: &mut [u8], sections_at: u64) {
        out[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        out[16..20].copy_from_slice(&[3, 0, 62, 0]);
        out[20] = 1;
        out[32..40].copy_from_slice(&64u64.to_le_bytes());
        out[40..48].copy_from_slice(&sections_at.to_le_bytes());
        for (at, value) in [(52, 64u16), (54, 56), (56, 1), (58, 64), (60, 5), (62, 4)] {
            out[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        out[64..72].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
        for (at, value) in [(72, 0u64), (80, BASE), (96, 0x300), (104, 0x300), (112, 0x1000)] {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Image, ImageError> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("space for it");
    Image::from_file(&file, Path::new("test"))
}

#[test]
fn a_small_library_is_read_whole() {
    let image = parse(&tiny::library(true)).expect("it is well-formed");
    assert_eq!(image.version, NcclVersion::new(2, 27, 7));
    assert_eq!(image.cuda.as_deref(), Some("12.9"));
    assert!(image.symbols);
    let param = image.param("NCCL_X").expect("its one parameter");
    assert_eq!((param.default, param.cache_vaddr), (Some(-2), tiny::CACHE));
    assert_eq!(image.kind_of("NCCL_X"), Known::Param);
    assert_eq!(image.kind_of("NCCL_ALGO"), Known::String);
    assert_eq!(image.kind_of("NCCL_ALGOO"), Known::Unknown);
    assert_eq!(image.suggest("NCCL_ALGOO").as_deref(), Some("NCCL_ALGO"));
    assert_eq!(image.suggest("nccl_algo").as_deref(), Some("NCCL_ALGO"));
    assert_eq!(image.suggest("NCCL_ALGO"), None);
    assert_eq!(image.suggest("LD_LIBRARY_PATH"), None);
    assert_eq!(image.no_params_reason(), None);
}

#[test]
fn a_stripped_library_keeps_its_names_and_says_why_it_has_no_parameters() {
    let image = parse(&tiny::library(false)).expect("it is well-formed");
    assert!(!image.symbols && image.params.is_empty());
    assert!(image.names.contains("NCCL_ALGO") && image.names.contains("NCCL_X"));
    let why = image.no_params_reason().expect("a reason");
    assert!(why.contains("stripped"), "{why}");
}

#[test]
fn without_symbols_the_same_parameters_are_found_by_their_shape() {
    for entry in testing::libraries() {
        let file = std::fs::File::open(&entry.path).expect("it was listed");
        let data = source::cache(&file);
        let elf = source::Elf::parse(&data, &entry.path).expect("an official wheel");
        let shaped = params_by_shape(&elf).expect("an official wheel");
        let whole = Image::open(&entry.path).expect("an official wheel");
        let nameless = |param: &Arc<Param>| Param { function: None, ..(**param).clone() };
        let named: Vec<Param> = whole.params.iter().map(nameless).collect();
        assert!(shaped.iter().map(nameless).eq(named), "{}", entry.wheel);
    }
}

#[test]
fn a_library_without_section_headers_keeps_its_names() {
    let mut bytes = tiny::library(true);
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let image = parse(&bytes).expect("the segment still has the strings");
    assert!(!image.symbols && image.names.contains("NCCL_ALGO"));
}

#[test]
fn what_is_no_library_gets_a_typed_error() {
    assert!(matches!(parse(b""), Err(ImageError::NotElf { .. })));
    assert!(matches!(parse(b"#!/bin/sh\necho hello\n"), Err(ImageError::NotElf { .. })));
    let mut other = tiny::library(true);
    other[18] = 183;
    let error = parse(&other).unwrap_err();
    assert!(error.to_string().contains("aarch64"), "{error}");
    let mut strange = tiny::library(true);
    let at = memchr::memmem::find(&strange, b"NCCL version").expect("the banner");
    strange[at] = b'X';
    assert!(matches!(parse(&strange), Err(ImageError::NotNccl { .. })));
    let missing = Image::open(Path::new("/nonexistent/libnccl.so.2")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/libnccl.so.2"), "{missing}");
}

#[test]
fn a_fifo_a_directory_and_a_device_are_refused_without_waiting() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let fifo = directory.path().join("libnccl.so.2");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    for path in [&fifo, directory.path(), Path::new("/dev/zero")] {
        assert!(matches!(Image::open(path), Err(ImageError::NotAFile { .. })), "{path:?}");
    }
}

#[test]
fn a_claim_of_a_huge_section_costs_nothing() {
    let file = tempfile::tempfile().expect("a temporary file");
    let mut bytes = tiny::library(true);
    let rodata = bytes.len() - 4 * 64;
    bytes[rodata + 32..rodata + 40].copy_from_slice(&(1u64 << 40).to_le_bytes());
    file.write_all_at(&bytes, 0).expect("space for it");
    file.set_len(2 << 40).expect("a sparse file");
    let error = Image::from_file(&file, Path::new("test")).unwrap_err();
    assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
}

proptest! {
    #[test]
    fn a_library_cut_anywhere_is_survived(end in 0usize..1600) {
        let bytes = tiny::library(true);
        let end = end.min(bytes.len());
        prop_assert_eq!(parse(&bytes[..end]).is_ok(), end == bytes.len());
    }

    #[test]
    fn changed_bytes_are_survived(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = tiny::library(true);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = parse(&bytes);
    }

    #[test]
    fn bogus_header_fields_are_survived(field in 0usize..156, value: u64) {
        let mut bytes = tiny::library(true);
        let sections = bytes.len() - 5 * 64;
        for at in [field, sections + 2 * field] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let _ = parse(&bytes);
    }

    #[test]
    fn any_name_gets_an_answer(name in "\\PC{0,200}") {
        let image = parse(&tiny::library(true)).expect("it is well-formed");
        let _ = (image.kind_of(&name), image.suggest(&name));
    }
}

/// Cached parameters, `noCache` flags and typed objects of the official wheels,
/// counted with `nm` on each library.
const MEASURED: [(NcclVersion, usize, usize, usize); 12] = [
    (NcclVersion::new(2, 18, 3), 86, 0, 0),
    (NcclVersion::new(2, 21, 5), 94, 0, 0),
    (NcclVersion::new(2, 23, 4), 106, 0, 0),
    (NcclVersion::new(2, 26, 2), 121, 0, 0),
    (NcclVersion::new(2, 26, 5), 121, 0, 0),
    (NcclVersion::new(2, 27, 5), 136, 0, 0),
    (NcclVersion::new(2, 27, 7), 136, 0, 0),
    (NcclVersion::new(2, 28, 9), 150, 0, 0),
    (NcclVersion::new(2, 29, 7), 174, 174, 0),
    (NcclVersion::new(2, 30, 7), 198, 198, 9),
    (NcclVersion::new(2, 31, 2), 218, 218, 9),
    (NcclVersion::new(2, 32, 3), 228, 228, 10),
];

#[test]
fn every_parameter_of_the_official_wheels_is_decoded() {
    for entry in testing::libraries() {
        let image = Image::open(&entry.path).expect("an official wheel");
        println!("{}: {} parameters", entry.wheel, image.params.len());
        assert!(entry.wheel.version().starts_with(&image.version.to_string()));
        assert_eq!(image.undecoded, Vec::<String>::new(), "{}", entry.wheel);
        assert!(image.params.iter().all(|param| param.default.is_some()), "{}", entry.wheel);
        assert!(image.build_id.is_some() && image.cuda.is_some());
        for name in ["NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_NET_PLUGIN"] {
            assert_eq!(image.kind_of(name), Known::String, "{} {name}", entry.wheel);
        }
        let buffer = image.param("NCCL_BUFFSIZE").expect("in every version");
        assert_eq!(buffer.default, Some(-2));
        assert_eq!(image.suggest("NCCL_BUFSIZE").as_deref(), Some("NCCL_BUFFSIZE"));
        let flags = image.params.iter().filter(|param| param.no_cache_vaddr.is_some()).count();
        let counts = (image.version, image.params.len(), flags, image.typed.len());
        if MEASURED.iter().any(|(version, ..)| *version == image.version) {
            assert!(MEASURED.contains(&counts), "{}: {counts:?}", entry.wheel);
        }
    }
}

#[test]
fn an_official_wheel_cut_short_is_refused() {
    let Some(entry) = testing::libraries().into_iter().next() else { return };
    let whole = std::fs::File::open(&entry.path).expect("it was listed");
    let mut start = vec![0; 4 << 20];
    whole.read_exact_at(&mut start, 0).expect("it is longer");
    let error = parse(&start).unwrap_err();
    assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
}
