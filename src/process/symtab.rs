//! The symbol table of an executable file: the only place where a static
//! program says where its `environ` is. Hostile input: sizes are capped before
//! anything is read, and the file is read, never mapped, so that truncating it
//! meanwhile cannot kill us.

use object::Endianness;
use object::elf::{FileHeader32, FileHeader64, SHN_UNDEF, SHT_SYMTAB, STB_GLOBAL, STB_WEAK};
use object::elf::{STT_NOTYPE, STT_OBJECT};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef};
use std::collections::HashSet;
use std::io::{Read, Seek};

const MAX_SECTIONS: u32 = 100_000;
const MAX_TABLE: u64 = 128 << 20;

/// What an executable file says about its `environ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFile {
    /// The address of the variable in the file, before relocation.
    pub address: Option<u64>,
    /// It has no symbol table at all.
    pub stripped: bool,
    /// It was linked by the Go linker.
    pub go: bool,
}

/// Looks the first of `names` that is defined up in the symbol table of an
/// executable.
///
/// # Errors
/// When it is not an ELF file, or a damaged one.
pub fn find<R: Read + Seek>(file: R, names: &[&[u8]]) -> Result<InFile, object::read::Error> {
    let cache = ReadCache::new(file);
    let mut ident = [0; 5];
    ident.copy_from_slice((&cache).read_bytes_at(0, 5).unwrap_or(&[0; 5]));
    match ident {
        [0x7f, b'E', b'L', b'F', 1] => find_in::<FileHeader32<Endianness>, _>(&cache, names),
        _ => find_in::<FileHeader64<Endianness>, _>(&cache, names),
    }
}

fn find_in<'data, Elf, R>(data: R, names: &[&[u8]]) -> Result<InFile, object::read::Error>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Elf::parse(data)?;
    let endian = header.endian()?;
    if header.e_shoff(endian).into() == 0 || header.shnum(endian, data)? > MAX_SECTIONS {
        return Ok(InFile { stripped: true, ..InFile::default() });
    }
    let sections = header.sections(endian, data)?;
    let go = sections.iter().any(|section| {
        matches!(sections.section_name(endian, section), Ok(b".note.go.buildid" | b".gopclntab"))
    });
    let table = sections.iter().find(|section| section.sh_type(endian) == SHT_SYMTAB);
    let Some(table) = table else {
        return Ok(InFile { address: None, stripped: true, go });
    };
    let address = address::<Elf, R>(endian, data, &sections, table, names)?;
    Ok(InFile { address, stripped: false, go })
}

/// Searches the names in the string table first, so that only numbers are
/// compared for each symbol.
fn address<'data, Elf, R>(
    endian: Endianness,
    data: R,
    sections: &SectionTable<'data, Elf, R>,
    table: &Elf::SectionHeader,
    names: &[&[u8]],
) -> Result<Option<u64>, object::read::Error>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let strings = sections.section(table.link(endian))?;
    if table.sh_size(endian).into() > MAX_TABLE || strings.sh_size(endian).into() > MAX_TABLE {
        return Ok(None);
    }
    let strings = strings.data(endian, data)?;
    let symbols: &[Elf::Sym] = table.data_as_array(endian, data)?;
    for name in names {
        let offsets = offsets_of(strings, name);
        let found = symbols.iter().find(|symbol| {
            symbol.st_shndx(endian) != SHN_UNDEF
                && matches!(symbol.st_bind(), STB_GLOBAL | STB_WEAK)
                && matches!(symbol.st_type(), STT_OBJECT | STT_NOTYPE)
                && offsets.contains(&symbol.st_name(endian))
        });
        if let Some(symbol) = found {
            return Ok(Some(symbol.st_value(endian).into()));
        }
    }
    Ok(None)
}

/// Where a NUL-terminated `name` starts. A linker may let a name be the tail
/// of a longer one, so what stands before does not matter.
fn offsets_of(strings: &[u8], name: &[u8]) -> HashSet<u32> {
    let mut wanted = name.to_vec();
    wanted.push(0);
    memchr::memmem::find_iter(strings, &wanted).filter_map(|at| u32::try_from(at).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    #[test]
    fn names_may_be_tails_of_others() {
        let strings = b"\0__environ\0environs\0environ\0";
        assert_eq!(offsets_of(strings, b"environ"), HashSet::from([3, 20]));
        assert_eq!(offsets_of(strings, b"__environ"), HashSet::from([1]));
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let own = std::fs::read("/proc/self/exe").expect("own executable");
        proptest!(ProptestConfig::with_cases(64), |(
            len in 0usize..4096,
            damage in proptest::collection::vec((0usize..200, any::<u8>()), 0..6),
        )| {
            let mut bytes = own[..len.min(own.len())].to_vec();
            for (at, byte) in damage {
                if let Some(slot) = bytes.get_mut(at) {
                    *slot = byte;
                }
            }
            let _ = find(Cursor::new(bytes), &[b"environ"]);
        });
    }
}
