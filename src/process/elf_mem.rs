//! ELF as it lies in the memory of a running process: program headers, the
//! dynamic section, the list of loaded objects, and symbols through the hash
//! tables. Reads no file (`symtab` does). Everything here is hostile input:
//! each address is checked by reading it, and each loop has a cap.

use super::auxv::Auxv;
use super::memory::{Memory, not_mapped};
use super::paged::Paged;
use std::io;

const MAX_PROGRAM_HEADERS: u64 = 256;
const MAX_DYNAMIC: u64 = 512;
const MAX_OBJECTS: usize = 4096;
/// Real chains have a few dozen symbols at most.
const MAX_CHAIN: u64 = 2048;
const MAX_PATH: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PF_W: u32 = 2;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_DEBUG: u64 = 21;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;

/// Whether a program has 32-bit or 64-bit addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// i386 and x32.
    Elf32,
    /// x86-64.
    Elf64,
}

impl Class {
    /// Bytes of a pointer.
    pub fn word(self) -> usize {
        match self {
            Self::Elf32 => 4,
            Self::Elf64 => 8,
        }
    }

    /// Bytes of a program header.
    pub fn program_header(self) -> usize {
        match self {
            Self::Elf32 => 32,
            Self::Elf64 => 56,
        }
    }

    fn file_header(self) -> u64 {
        match self {
            Self::Elf32 => 52,
            Self::Elf64 => 64,
        }
    }

    fn symbol(self) -> u64 {
        match self {
            Self::Elf32 => 16,
            Self::Elf64 => 24,
        }
    }

    /// The little-endian number in at most 8 bytes.
    pub fn number(self, bytes: &[u8]) -> u64 {
        bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Addresses wrap around at the width of the target, as its own linker
    /// computes them.
    pub fn wrap(self, addr: u64) -> u64 {
        match self {
            Self::Elf32 => addr & u64::from(u32::MAX),
            Self::Elf64 => addr,
        }
    }
}

/// Typed reading of a target's memory.
pub struct Target<'m> {
    /// The cached memory.
    pub memory: Paged<'m>,
    /// The width of its addresses.
    pub class: Class,
}

impl<'m> Target<'m> {
    /// Reads through a cache of at most `limit` pages of 4 KiB.
    pub fn new(memory: &'m dyn Memory, class: Class, limit: usize) -> Self {
        Self { memory: Paged::new(memory, limit), class }
    }

    /// Reads a pointer.
    ///
    /// # Errors
    /// As [`Paged::read_exact`].
    pub fn word(&mut self, addr: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let word = self.class.word();
        self.memory.read_exact(addr, &mut bytes[..word])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the `index`-th pointer of an array.
    fn word_at(&mut self, array: u64, index: u64) -> io::Result<u64> {
        self.word(element(array, index, self.class.word() as u64)?)
    }
}

fn element(array: u64, index: u64, size: u64) -> io::Result<u64> {
    index.checked_mul(size).and_then(|offset| array.checked_add(offset)).ok_or_else(not_mapped)
}

/// A writable piece of the main executable, relocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub start: u64,
    /// Its bytes in memory.
    pub size: u64,
}

/// The main executable as the kernel loaded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// What to add to an address of the file to get one of the process.
    pub bias: u64,
    /// Where the dynamic section is; `None` for a static program.
    pub dynamic: Option<u64>,
    /// It names a dynamic linker (`PT_INTERP`): neither a static program nor
    /// the linker itself.
    pub interpreted: bool,
    /// The writable segments, in the order of the program headers.
    pub writable: Vec<Segment>,
}

/// Reads the program headers of the main executable.
///
/// # Errors
/// As [`Memory::read`]; `InvalidData` when the headers make no sense.
pub fn executable(target: &mut Target<'_>, auxv: &Auxv) -> io::Result<Executable> {
    let headers = program_headers(target, auxv)?;
    let class = target.class;
    let bias = bias(target, auxv, &headers)?;
    let at = |vaddr: u64| class.wrap(vaddr.wrapping_add(bias));
    Ok(Executable {
        bias,
        dynamic: headers.iter().find(|header| header.kind == PT_DYNAMIC).map(|h| at(h.vaddr)),
        interpreted: headers.iter().any(|header| header.kind == PT_INTERP),
        writable: headers
            .iter()
            .filter(|header| header.kind == PT_LOAD && header.flags & PF_W != 0)
            .map(|header| Segment { start: at(header.vaddr), size: header.memsz })
            .collect(),
    })
}

struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    memsz: u64,
}

fn program_headers(target: &mut Target<'_>, auxv: &Auxv) -> io::Result<Vec<ProgramHeader>> {
    let class = target.class;
    let size = class.program_header();
    let mut headers = Vec::new();
    for index in 0..auxv.phnum.min(MAX_PROGRAM_HEADERS) {
        let mut raw = [0; 56];
        let raw = &mut raw[..size];
        target.memory.read_exact(element(auxv.phdr, index, size as u64)?, raw)?;
        let long = |at: usize| class.number(&raw[at..at + class.word()]);
        let int = |at: usize| Class::Elf32.number(&raw[at..at + 4]) as u32;
        headers.push(match class {
            Class::Elf64 => ProgramHeader {
                kind: int(0),
                flags: int(4),
                offset: long(8),
                vaddr: long(16),
                memsz: long(40),
            },
            Class::Elf32 => ProgramHeader {
                kind: int(0),
                flags: int(24),
                offset: long(4),
                vaddr: long(8),
                memsz: long(20),
            },
        });
    }
    Ok(headers)
}

/// The distance between the addresses in the file and those in the process.
/// `PT_PHDR` says it; static programs lack that, and then the file header is
/// searched right before the program headers, where every linker puts them.
fn bias(target: &mut Target<'_>, auxv: &Auxv, headers: &[ProgramHeader]) -> io::Result<u64> {
    let class = target.class;
    if let Some(header) = headers.iter().find(|header| header.kind == PT_PHDR) {
        return Ok(class.wrap(auxv.phdr.wrapping_sub(header.vaddr)));
    }
    let start = auxv.phdr.checked_sub(class.file_header()).ok_or_else(odd_headers)?;
    if target.memory.array::<4>(start)? != *b"\x7fELF" {
        return Err(odd_headers());
    }
    let first = headers.iter().find(|header| header.kind == PT_LOAD && header.offset == 0);
    let first = first.ok_or_else(odd_headers)?;
    Ok(class.wrap(start.wrapping_sub(first.vaddr)))
}

fn odd_headers() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the program headers are in no known order")
}

/// What is needed of an object's dynamic section, relocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    symtab: u64,
    strtab: u64,
    hash: u64,
    gnu_hash: u64,
    /// `DT_DEBUG`: where the dynamic linker keeps `struct r_debug`; 0 when it
    /// did not run yet.
    pub debug: Option<u64>,
}

/// A loaded object: the main executable or a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// What to add to an address of the file to get one of the process.
    pub bias: u64,
    /// Where its dynamic section is.
    pub dynamic: u64,
    /// Where its path is, as the dynamic linker wrote it; empty for the main
    /// executable.
    pub name: u64,
}

/// Reads a dynamic section.
///
/// # Errors
/// As [`Memory::read`].
pub fn dynamic(target: &mut Target<'_>, object: &Object) -> io::Result<Dynamic> {
    let mut found = Dynamic::default();
    // glibc writes relocated addresses back into the section, musl and the
    // vdso do not: a value below the bias cannot be relocated yet.
    let class = target.class;
    let fix = |value: u64| {
        if value != 0 && value < object.bias {
            class.wrap(value.wrapping_add(object.bias))
        } else {
            value
        }
    };
    for index in 0..MAX_DYNAMIC {
        let tag = target.word_at(object.dynamic, 2 * index)?;
        let value = target.word_at(object.dynamic, 2 * index + 1)?;
        match tag {
            DT_NULL => break,
            DT_HASH => found.hash = fix(value),
            DT_GNU_HASH => found.gnu_hash = fix(value),
            DT_STRTAB => found.strtab = fix(value),
            DT_SYMTAB => found.symtab = fix(value),
            DT_DEBUG => found.debug = Some(value),
            _ => {}
        }
    }
    Ok(found)
}

/// The loaded objects in the order in which the dynamic linker searches them.
/// They are read one by one: what is searched for is mostly in the first few
/// of what may be hundreds.
#[derive(Clone, Debug, Default)]
pub struct LinkMap {
    read: Vec<Object>,
    next: u64,
}

impl LinkMap {
    /// The list in the dynamic linker's `struct r_debug` at `debug`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn new(target: &mut Target<'_>, debug: u64) -> io::Result<Self> {
        Ok(Self { read: Vec::new(), next: target.word_at(debug, 1)? })
    }

    /// A list of only one object.
    pub fn of_one(object: Object) -> Self {
        Self { read: vec![object], next: 0 }
    }

    /// True when nothing is in it: the dynamic linker has not run.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.next == 0
    }

    /// The `index`-th object; those before it must have been asked for.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn get(&mut self, target: &mut Target<'_>, index: usize) -> io::Result<Option<Object>> {
        // A hostile list may be a ring: the cap ends it.
        if index >= self.read.len() && self.next != 0 && self.read.len() < MAX_OBJECTS {
            let node = self.next;
            self.read.push(Object {
                bias: target.word_at(node, 0)?,
                name: target.word_at(node, 1)?,
                dynamic: target.word_at(node, 2)?,
            });
            self.next = target.word_at(node, 3)?;
        }
        Ok(self.read.get(index).copied())
    }
}

/// The path of a loaded object, as the dynamic linker wrote it.
///
/// # Errors
/// As [`Paged::c_string`].
pub fn object_name(target: &mut Target<'_>, object: &Object) -> io::Result<Vec<u8>> {
    if object.name == 0 { Ok(Vec::new()) } else { target.memory.c_string(object.name, MAX_PATH) }
}

/// The address in the process of the data symbol `name`, when this object
/// defines it for others.
///
/// # Errors
/// As [`Memory::read`].
pub fn lookup(
    target: &mut Target<'_>,
    object: &Object,
    tables: &Dynamic,
    name: &[u8],
) -> io::Result<Option<u64>> {
    if tables.symtab == 0 || tables.strtab == 0 {
        Ok(None)
    } else if tables.gnu_hash != 0 {
        by_gnu_hash(target, object, tables, name)
    } else if tables.hash != 0 {
        by_sysv_hash(target, object, tables, name)
    } else {
        Ok(None)
    }
}

fn by_gnu_hash(
    target: &mut Target<'_>,
    object: &Object,
    tables: &Dynamic,
    name: &[u8],
) -> io::Result<Option<u64>> {
    let table = tables.gnu_hash;
    let [buckets, first, words, shift] = {
        let raw: [u8; 16] = target.memory.array(table)?;
        [0, 4, 8, 12].map(|at| Class::Elf32.number(&raw[at..at + 4]))
    };
    if buckets == 0 || words == 0 {
        return Ok(None);
    }
    let hash = u64::from(gnu_hash(name));
    let bits = 8 * target.class.word() as u64;
    let filters = element(table, 16, 1)?;
    let filter = target.word_at(filters, (hash / bits) % words)?;
    let seen = |hash: u64| filter >> (hash % bits) & 1 == 1;
    if !seen(hash) || !seen(hash.checked_shr(shift as u32).unwrap_or(0)) {
        return Ok(None);
    }
    let bucket_array = element(filters, words, target.class.word() as u64)?;
    let start = u64::from(target.memory.u32(element(bucket_array, hash % buckets, 4)?)?);
    let chains = element(bucket_array, buckets, 4)?;
    for index in start..start + MAX_CHAIN {
        let Some(chain) = index.checked_sub(first) else { return Ok(None) };
        let stored = u64::from(target.memory.u32(element(chains, chain, 4)?)?);
        if stored | 1 == hash | 1
            && let Some(found) = symbol(target, object, tables, index, name)?
        {
            return Ok(Some(found));
        }
        if stored & 1 == 1 {
            break;
        }
    }
    Ok(None)
}

fn by_sysv_hash(
    target: &mut Target<'_>,
    object: &Object,
    tables: &Dynamic,
    name: &[u8],
) -> io::Result<Option<u64>> {
    let buckets = u64::from(target.memory.u32(tables.hash)?);
    if buckets == 0 {
        return Ok(None);
    }
    let bucket_array = element(tables.hash, 2, 4)?;
    let chains = element(bucket_array, buckets, 4)?;
    let bucket = element(bucket_array, u64::from(sysv_hash(name)) % buckets, 4)?;
    let mut index = u64::from(target.memory.u32(bucket)?);
    for _ in 0..MAX_CHAIN {
        if index == 0 {
            break;
        }
        if let Some(found) = symbol(target, object, tables, index, name)? {
            return Ok(Some(found));
        }
        index = u64::from(target.memory.u32(element(chains, index, 4)?)?);
    }
    Ok(None)
}

/// The `index`-th symbol, when it is defined data of this name.
fn symbol(
    target: &mut Target<'_>,
    object: &Object,
    tables: &Dynamic,
    index: u64,
    name: &[u8],
) -> io::Result<Option<u64>> {
    let class = target.class;
    let mut raw = [0; 24];
    let raw = &mut raw[..class.symbol() as usize];
    target.memory.read_exact(element(tables.symtab, index, class.symbol())?, raw)?;
    let (info, section, value) = match class {
        Class::Elf64 => (raw[4], &raw[6..8], &raw[8..16]),
        Class::Elf32 => (raw[12], &raw[14..16], &raw[4..8]),
    };
    let (section, value) = (class.number(section), class.number(value));
    if section == 0 || value == 0 || !matches!(info & 0xf, STT_NOTYPE | STT_OBJECT) {
        return Ok(None);
    }
    let text = element(tables.strtab, Class::Elf32.number(&raw[..4]), 1)?;
    let mut stored = vec![0; name.len() + 1];
    target.memory.read_exact(text, &mut stored)?;
    let same = stored.split_last() == Some((&0, name));
    Ok(same.then(|| class.wrap(object.bias.wrapping_add(value))))
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

fn sysv_hash(name: &[u8]) -> u32 {
    name.iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}
