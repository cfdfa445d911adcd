//! Bounded, lazy reads from an ELF file that nobody vouches for. It knows ELF
//! and nothing of NCCL. Files are read with `pread` and never mapped: a mapped
//! library that someone shortens meanwhile would kill this process by SIGBUS.

use super::Segment;
use super::error::ImageError;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, ReadCache, ReadCacheOps};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Larger than any section that is read here (NCCL 2.32.3: symbols 0.6 MB,
/// .rodata 0.4 MB), small enough that a bogus size costs nothing.
const SECTION_LIMIT: u64 = 64 << 20;

/// How much of a file without section headers is searched for strings
/// (.rodata ends within the first 4 MB in all wheels up to 2.32.3).
const HEAD_LIMIT: u64 = 16 << 20;

/// Notes take some hundred bytes.
const NOTE_LIMIT: u64 = 64 << 10;

/// The loader of glibc copes with more, but no library has more (2.32.3: 8).
const MOST_PROGRAM_HEADERS: u16 = 256;

/// `pread` under the interface that `object` reads through.
#[derive(Debug)]
pub(in crate::nccl) struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl ReadCacheOps for At<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        self.file.metadata().map(|meta| meta.len()).map_err(drop)
    }

    fn seek(&mut self, offset: u64) -> Result<u64, ()> {
        self.offset = offset;
        Ok(offset)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let read = self.file.read_at(buffer, self.offset).map_err(drop)?;
        self.offset += read as u64;
        Ok(read)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.file.read_exact_at(buffer, self.offset).map_err(drop)?;
        self.offset += buffer.len() as u64;
        Ok(())
    }
}

type Header = FileHeader64<LittleEndian>;
type Cache<'a> = ReadCache<At<'a>>;

/// Opens `path` for reading without waiting, whatever it is.
///
/// # Errors
/// [`ImageError::Open`] when the kernel refuses.
pub(in crate::nccl) fn open(path: &Path) -> Result<File, ImageError> {
    // Opening a device can do things; this look first is only for that, and
    // `require_regular` decides.
    if let Ok(meta) = path.metadata() {
        refuse_special(meta.file_type(), path)?;
    }
    // O_NONBLOCK: opening a FIFO nobody writes to would wait for ever.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| ImageError::Open { path: path.into(), error })
}

/// Refuses everything but a regular file.
///
/// # Errors
/// [`ImageError::NotAFile`] or [`ImageError::Open`].
pub(in crate::nccl) fn require_regular(file: &File, path: &Path) -> Result<(), ImageError> {
    let meta = file.metadata().map_err(|error| ImageError::Open { path: path.into(), error })?;
    refuse_special(meta.file_type(), path)
}

fn refuse_special(of: std::fs::FileType, path: &Path) -> Result<(), ImageError> {
    let kind = match of {
        _ if of.is_file() => return Ok(()),
        _ if of.is_dir() => "a directory",
        _ if of.is_fifo() => "a FIFO",
        _ if of.is_socket() => "a socket",
        _ if of.is_block_device() || of.is_char_device() => "a device",
        _ => "no regular file",
    };
    Err(ImageError::NotAFile { path: path.into(), kind })
}

/// The lazily read bytes of one file.
pub(in crate::nccl) fn cache(file: &File) -> Cache<'_> {
    ReadCache::new(At { file, offset: 0 })
}

/// One ELF file: its headers are checked, its sections are read when asked for.
pub(in crate::nccl) struct Elf<'a> {
    data: &'a Cache<'a>,
    header: &'a Header,
    path: &'a Path,
    sections: object::read::elf::SectionTable<'a, Header, &'a Cache<'a>>,
    /// All PT_LOAD segments in file order.
    pub(in crate::nccl) segments: Vec<Segment>,
}

impl<'a> Elf<'a> {
    /// Reads the ELF, program and section headers.
    ///
    /// # Errors
    /// [`ImageError::NotElf`], [`ImageError::OtherMachine`], [`ImageError::Damaged`].
    pub(in crate::nccl) fn parse(data: &'a Cache<'a>, path: &'a Path) -> Result<Self, ImageError> {
        let header = file_header(data, path)?;
        let endian = LittleEndian;
        let segments = header
            .program_headers(endian, data)
            .map_err(|error| damaged(path, "the program headers", error))?
            .iter()
            .filter(|load| load.p_type(endian) == elf::PT_LOAD)
            .map(|load| Segment {
                file_offset: load.p_offset(endian),
                file_size: load.p_filesz(endian),
                vaddr: load.p_vaddr(endian),
                memory_size: load.p_memsz(endian),
                executable: load.p_flags(endian).0 & elf::PF_X.0 != 0,
            })
            .collect();
        let sections = header
            .sections(endian, data)
            .map_err(|error| damaged(path, "the section headers", error))?;
        Ok(Self { data, header, path, sections, segments })
    }
}

/// A symbol with an address, as far as it matters here.
pub(in crate::nccl) struct Symbol<'a> {
    pub(in crate::nccl) name: &'a [u8],
    pub(in crate::nccl) vaddr: u64,
    pub(in crate::nccl) size: u64,
    pub(in crate::nccl) function: bool,
}

impl<'a> Elf<'a> {
    /// The named section, or `None` when the file has no such section.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] when the headers promise bytes that are not there.
    pub(in crate::nccl) fn section(&self, name: &str) -> Result<Option<&'a [u8]>, ImageError> {
        let found = self.sections.section_by_name(LittleEndian, name.as_bytes());
        found.map(|(_, header)| self.bytes_of(header, name)).transpose()
    }

    /// As [`section`](Self::section), with the link-time address.
    ///
    /// # Errors
    /// [`ImageError::Damaged`].
    pub(in crate::nccl) fn section_with_address(
        &self,
        name: &str,
    ) -> Result<Option<(u64, &'a [u8])>, ImageError> {
        let found = self.sections.section_by_name(LittleEndian, name.as_bytes());
        let with_address = |(_, header): (_, &SectionHeader)| {
            Ok((header.sh_addr(LittleEndian), self.bytes_of(header, name)?))
        };
        found.map(with_address).transpose()
    }

    /// Where in the file the bytes of a section are. Nothing is read.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] when they are compressed: such a range is of no
    /// use.
    pub(in crate::nccl) fn section_range(
        &self,
        name: &str,
    ) -> Result<Option<Range<u64>>, ImageError> {
        let found = self.sections.section_by_name(LittleEndian, name.as_bytes());
        let Some((_, header)) = found else { return Ok(None) };
        if header.sh_flags(LittleEndian).0 & elf::SHF_COMPRESSED.0 != 0 {
            return Err(damaged(self.path, name, "it is compressed, which is not read here"));
        }
        let (start, size) = (header.sh_offset(LittleEndian), header.sh_size(LittleEndian));
        let no_bytes = header.sh_type(LittleEndian) == elf::SHT_NOBITS;
        Ok(start.checked_add(size).filter(|_| !no_bytes).map(|end| start..end))
    }

    /// Bytes at a place in the file; `None` when it ends before.
    pub(in crate::nccl) fn read(&self, offset: u64, size: u64) -> Option<&'a [u8]> {
        use object::ReadRef as _;
        (size <= SECTION_LIMIT).then(|| self.data.read_bytes_at(offset, size).ok()).flatten()
    }

    fn bytes_of(&self, header: &SectionHeader, name: &str) -> Result<&'a [u8], ImageError> {
        let size = header.sh_size(LittleEndian);
        if size > SECTION_LIMIT {
            return Err(damaged(self.path, name, format!("it claims {size} bytes")));
        }
        header.data(LittleEndian, self.data).map_err(|error| damaged(self.path, name, error))
    }

    /// Calls `each` for every named symbol of `.symtab` that has an address.
    /// Returns false when the file has no `.symtab` (a stripped library).
    ///
    /// # Errors
    /// [`ImageError::Damaged`].
    pub(in crate::nccl) fn symbols(
        &self,
        mut each: impl FnMut(Symbol<'a>),
    ) -> Result<bool, ImageError> {
        let endian = LittleEndian;
        let Some(table) = self.sections.iter().find(|s| s.sh_type(endian) == elf::SHT_SYMTAB)
        else {
            return Ok(false);
        };
        let link = object::SectionIndex(table.sh_link(endian) as usize);
        let strings = self
            .sections
            .section(link)
            .map_err(|error| damaged(self.path, "the symbol names", error))?;
        let names = self.bytes_of(strings, "the symbol names")?;
        let bytes = self.bytes_of(table, "the symbol table")?;
        let count = bytes.len() / size_of::<elf::Sym64<LittleEndian>>();
        let (table, _) = object::slice_from_bytes::<elf::Sym64<LittleEndian>>(bytes, count)
            .map_err(|()| damaged(self.path, "the symbol table", "it is not aligned"))?;
        for symbol in table.iter().filter(|symbol| symbol.st_value.get(endian) != 0) {
            if let Some(name) = c_string(names, u64::from(symbol.st_name.get(endian))) {
                each(Symbol {
                    name,
                    vaddr: symbol.st_value.get(endian),
                    size: symbol.st_size.get(endian),
                    function: symbol.st_info.st_type() == elf::STT_FUNC,
                });
            }
        }
        Ok(true)
    }

    /// `size` bytes at a virtual address, when one segment of the file holds them.
    pub(in crate::nccl) fn at(&self, vaddr: u64, size: u64) -> Option<&'a [u8]> {
        use object::ReadRef as _;
        let segment = self.segments.iter().find(|segment| segment.holds(vaddr, size))?;
        let offset = (vaddr - segment.vaddr).checked_add(segment.file_offset)?;
        (size <= SECTION_LIMIT).then(|| self.data.read_bytes_at(offset, size).ok()).flatten()
    }

    /// The start of the first segment, where linkers put the read-only strings.
    /// For files whose section headers were removed.
    pub(in crate::nccl) fn head(&self) -> &'a [u8] {
        let first = self.segments.first().copied();
        first
            .and_then(|load| self.at(load.vaddr, load.file_size.min(HEAD_LIMIT)))
            .unwrap_or_default()
    }

    /// The GNU build id in lower-case hex.
    pub(in crate::nccl) fn build_id(&self) -> Option<String> {
        let endian = LittleEndian;
        let headers = self.header.program_headers(endian, self.data).ok()?;
        let small = |h: &&elf::ProgramHeader64<LittleEndian>| h.p_filesz(endian) <= NOTE_LIMIT;
        for header in headers.iter().filter(small) {
            let Ok(Some(mut notes)) = header.notes(endian, self.data) else { continue };
            while let Ok(Some(note)) = notes.next() {
                if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                    return Some(note.desc().iter().map(|byte| format!("{byte:02x}")).collect());
                }
            }
        }
        None
    }
}

type SectionHeader = elf::SectionHeader64<LittleEndian>;

/// The bytes from `at` up to the next NUL.
pub(in crate::nccl) fn c_string(bytes: &[u8], at: u64) -> Option<&[u8]> {
    let tail = bytes.get(usize::try_from(at).ok()?..)?;
    Some(&tail[..memchr::memchr(0, tail)?])
}

fn file_header<'a>(data: &'a Cache<'a>, path: &Path) -> Result<&'a Header, ImageError> {
    use object::ReadRef as _;
    let not_elf = |why| ImageError::NotElf { path: path.into(), why };
    let ident = data.read_bytes_at(0, 16).map_err(|()| not_elf("it is shorter than a header"))?;
    if ident[..4] != elf::ELFMAG {
        return Err(not_elf("it does not begin with \\x7fELF"));
    }
    if ident[4] != elf::ELFCLASS64.0 {
        return Err(not_elf("it is a 32-bit one"));
    }
    if ident[5] != elf::ELFDATA2LSB.0 {
        let machine = "a big-endian processor".into();
        return Err(ImageError::OtherMachine { path: path.into(), machine });
    }
    let header: &Header =
        data.read_at(0).map_err(|()| damaged(path, "the ELF header", "it is cut off"))?;
    let machine = header.e_machine(LittleEndian);
    if machine != elf::EM_X86_64 {
        let machine = match machine {
            elf::EM_AARCH64 => "aarch64".into(),
            elf::EM_PPC64 => "ppc64".into(),
            other => format!("ELF machine {}", other.0),
        };
        return Err(ImageError::OtherMachine { path: path.into(), machine });
    }
    // With a count of 0 and a table, the true count (up to 2^32) is elsewhere.
    if header.e_shnum(LittleEndian) == 0 && header.e_shoff(LittleEndian) != 0 {
        return Err(damaged(path, "the section headers", "their number is not given"));
    }
    if header.e_phnum(LittleEndian) > MOST_PROGRAM_HEADERS {
        return Err(damaged(path, "the program headers", "there are too many"));
    }
    Ok(header)
}

fn damaged(path: &Path, part: &str, why: impl std::fmt::Display) -> ImageError {
    ImageError::Damaged { path: path.into(), what: format!("{part}: {why}") }
}
