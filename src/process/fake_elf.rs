//! A made-up process image for tests and, included by path, for the fuzz
//! targets: a main executable, a library, the dynamic linker's list and an
//! environment, as bytes at addresses. Uses nothing of the crate.

/// How the image is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// 64-bit instead of 32-bit.
    pub wide: bool,
    /// `DT_GNU_HASH` instead of `DT_HASH`.
    pub gnu_hash: bool,
    /// The dynamic section holds relocated addresses, as glibc leaves it.
    pub relocated: bool,
    /// The main executable defines the variable too.
    pub copied: bool,
}

/// The image, and what the kernel would say about it.
#[derive(Clone, Debug)]
pub struct Image {
    pub pieces: Vec<(u64, Vec<u8>)>,
    pub phdr: u64,
    pub phnum: u64,
    pub entry: u64,
    /// Where the variable is that `getenv` reads.
    pub slot: u64,
}

pub const EXECUTABLE: u64 = 0x5650_0000;
pub const LIBRARY: u64 = 0xf7a0_0000;
pub const LINKER: u64 = 0xf7f0_0000;
pub const STACK: u64 = 0xffa0_0000;

const DYNAMIC: u64 = 0x300;
const SYMTAB: u64 = 0x500;
const STRTAB: u64 = 0x700;
const HASH: u64 = 0x800;
const DATA: u64 = 0xa00;
const ENTRY: u64 = 0x900;

struct Piece {
    bytes: Vec<u8>,
    word: usize,
}

impl Piece {
    fn new(wide: bool) -> Self {
        Self { bytes: vec![0; 0x1000], word: if wide { 8 } else { 4 } }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        for (n, value) in words.iter().enumerate() {
            let word = self.word;
            self.put(at + (n * word) as u64, &value.to_le_bytes()[..word]);
        }
    }

    fn ints(&mut self, at: u64, values: &[u32]) {
        for (n, value) in values.iter().enumerate() {
            self.put(at + 4 * n as u64, &value.to_le_bytes());
        }
    }
}

/// Makes an image whose environment has these entries.
pub fn image(options: Options, entries: &[&str]) -> Image {
    let word = if options.wide { 8 } else { 4 };
    let mut executable = object(options, EXECUTABLE, options.copied, Some(LINKER));
    headers(&mut executable, options.wide);
    let mut library = object(options, LIBRARY, true, None);
    let mut linker = Piece::new(options.wide);
    linker.words(0, &[1, LINKER + 0x100, 0, 0]);
    linker.words(0x100, &[EXECUTABLE, LINKER + 0x300, EXECUTABLE + DYNAMIC, LINKER + 0x200]);
    linker.words(0x200, &[LIBRARY, LINKER + 0x310, LIBRARY + DYNAMIC, 0]);
    linker.put(0x310, b"/lib/libc.so.6\0");
    let slot = if options.copied { &mut executable } else { &mut library };
    slot.words(DATA, &[STACK]);
    let base = if options.copied { EXECUTABLE } else { LIBRARY };
    Image {
        pieces: vec![
            (EXECUTABLE, executable.bytes),
            (LIBRARY, library.bytes),
            (LINKER, linker.bytes),
            (STACK, environment(word, entries)),
        ],
        phdr: EXECUTABLE + file_header(options.wide),
        phnum: 4,
        entry: EXECUTABLE + ENTRY,
        slot: base + DATA,
    }
}

fn file_header(wide: bool) -> u64 {
    if wide { 64 } else { 52 }
}

fn headers(piece: &mut Piece, wide: bool) {
    piece.put(0, b"\x7fELF");
    let all = [(6, 4, file_header(wide)), (3, 4, 0x2f0), (1, 6, 0), (2, 6, DYNAMIC)];
    for (n, (kind, flags, at)) in all.into_iter().enumerate() {
        let n = n as u64;
        if wide {
            let header = 64 + 56 * n;
            piece.ints(header, &[kind, flags]);
            piece.words(header + 8, &[at, at, at, 0x1000, 0x1000, 0x1000]);
        } else {
            let header = 52 + 32 * n;
            piece.ints(header, &[kind, at as u32, at as u32, 0, 0x1000, 0x1000, flags, 0x1000]);
        }
    }
}

fn environment(word: usize, entries: &[&str]) -> Vec<u8> {
    let mut at = STACK + ((entries.len() + 1) * word) as u64;
    let (mut array, mut strings) = (Vec::new(), Vec::new());
    for entry in entries {
        array.extend_from_slice(&at.to_le_bytes()[..word]);
        strings.extend_from_slice(entry.as_bytes());
        strings.push(0);
        at += entry.len() as u64 + 1;
    }
    array.resize(array.len() + word, 0);
    [array, strings].concat()
}

/// An object with the symbols `first` and, perhaps, `__environ` and `environ`.
fn object(options: Options, base: u64, defines: bool, debug: Option<u64>) -> Piece {
    let mut piece = Piece::new(options.wide);
    let shift = if options.relocated { base } else { 0 };
    let hash_tag = if options.gnu_hash { 0x6fff_fef5 } else { 4 };
    let mut dynamic = vec![hash_tag, HASH + shift, 5, STRTAB + shift, 6, SYMTAB + shift];
    if let Some(debug) = debug {
        dynamic.extend([21, debug]);
    }
    dynamic.extend([0, 0]);
    piece.words(DYNAMIC, &dynamic);
    piece.put(STRTAB, b"\0first\0__environ\0environ\0");
    // The gnu table wants symbols of one bucket next to each other; one bucket
    // for all makes any order right.
    let mut symbols: Vec<(u32, &[u8])> = vec![(1, b"first")];
    if defines {
        symbols.extend([(7, &b"__environ"[..]), (17, b"environ")]);
    }
    for (n, (name, text)) in symbols.iter().enumerate() {
        let value = if *text == b"first" { DATA + 0x80 } else { DATA };
        symbol(&mut piece, options.wide, n as u64 + 1, *name, value);
    }
    let names: Vec<&[u8]> = symbols.iter().map(|(_, text)| *text).collect();
    if options.gnu_hash {
        gnu_table(&mut piece, &names);
    } else {
        let count = names.len() as u32 + 1;
        piece.ints(HASH, &[1, count, 1, 0]);
        let chain: Vec<u32> =
            (2..=count).map(|next| if next == count { 0 } else { next }).collect();
        piece.ints(HASH + 16, &chain);
    }
    piece
}

fn symbol(piece: &mut Piece, wide: bool, index: u64, name: u32, value: u64) {
    let (info, section) = ([0x11], [7, 0]);
    let at = SYMTAB + index * if wide { 24 } else { 16 };
    piece.ints(at, &[name]);
    let (info_at, section_at, value_at) = if wide { (4, 6, 8) } else { (12, 14, 4) };
    piece.put(at + info_at, &info);
    piece.put(at + section_at, &section);
    piece.words(at + value_at, &[value]);
}

fn gnu_table(piece: &mut Piece, names: &[&[u8]]) {
    let bits = 8 * piece.word as u32;
    let shift = 5;
    let hashes: Vec<u32> = names
        .iter()
        .map(|name| {
            name.iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)))
        })
        .collect();
    let filter = hashes
        .iter()
        .fold(0, |filter: u64, hash| filter | 1 << (hash % bits) | 1 << ((hash >> shift) % bits));
    piece.ints(HASH, &[1, 1, 1, shift]);
    piece.words(HASH + 16, &[filter]);
    let buckets = HASH + 16 + piece.word as u64;
    piece.ints(buckets, &[1]);
    for (n, hash) in hashes.iter().enumerate() {
        let last = u32::from(n + 1 == hashes.len());
        piece.ints(buckets + 4 + 4 * n as u64, &[hash & !1 | last]);
    }
}
