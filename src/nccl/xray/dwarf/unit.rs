//! Finds one compilation unit. Each unit is read by itself, as if it were a
//! whole `.debug_info`, because that section has up to 40 MB in libnccl and the
//! wanted unit lies within its first 2 MB (2.18.3 to 2.32.3).

use super::DwarfError;
use crate::nccl::image::source::Elf;
use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugInfo, DebugLineStr,
    DebugStr, DebugStrOffsets, DebuggingInformationEntry, DwarfFileType, EndianSlice, LittleEndian,
    UnitHeader,
};
use std::ops::Range;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// Larger than any unit of libnccl (2.32.3: 0.5 MB).
const UNIT_LIMIT: u64 = 32 << 20;

/// More units than any libnccl has (2.32.3: 203).
const MOST_UNITS: usize = 2048;

/// Larger than the abbreviations of any unit (2.32.3: 14 KB). A limit, because
/// every unit of a bogus file may name the same huge table.
const ABBREVIATIONS_LIMIT: usize = 256 << 10;

/// A unit starts with its length, in one of two formats.
const LENGTH_BYTES: u64 = 12;

/// The sections that describe a structure.
pub(super) struct Sections<'a> {
    info: Range<u64>,
    abbrev: &'a [u8],
    text: Text<'a>,
}

/// Where names are.
#[derive(Clone, Copy)]
struct Text<'a> {
    strings: DebugStr<Slice<'a>>,
    line_strings: DebugLineStr<Slice<'a>>,
    offsets: DebugStrOffsets<Slice<'a>>,
}

impl<'a> Sections<'a> {
    /// `None` when the file has no debug information.
    pub(super) fn open(elf: &Elf<'a>) -> Result<Option<Self>, DwarfError> {
        let bytes = |name| -> Result<&'a [u8], DwarfError> {
            // Also refuses a compressed section.
            let there = elf.section_range(name)?.is_some();
            Ok(if there { elf.section(name)?.unwrap_or_default() } else { &[] })
        };
        let slice = |name| bytes(name).map(|bytes| Slice::new(bytes, LittleEndian));
        let Some(info) = elf.section_range(".debug_info")? else { return Ok(None) };
        let text = Text {
            strings: DebugStr::from(slice(".debug_str")?),
            line_strings: DebugLineStr::from(slice(".debug_line_str")?),
            offsets: DebugStrOffsets::from(slice(".debug_str_offsets")?),
        };
        Ok(Some(Self { info, abbrev: bytes(".debug_abbrev")?, text }))
    }

    fn abbreviations(&self, offset: usize) -> Result<Abbreviations, DwarfError> {
        let tail = self.abbrev.get(offset..).unwrap_or_default();
        let table = &tail[..tail.len().min(ABBREVIATIONS_LIMIT)];
        let table = DebugAbbrev::from(Slice::new(table, LittleEndian));
        Ok(table.abbreviations(DebugAbbrevOffset(0))?)
    }

    /// All units, in the order of the file.
    pub(super) fn units<'s>(&'s self, elf: &'s Elf<'a>) -> Units<'s, 'a> {
        Units { sections: self, elf, next: self.info.start, left: MOST_UNITS }
    }
}

/// Walks over the units.
pub(super) struct Units<'s, 'a> {
    sections: &'s Sections<'a>,
    elf: &'s Elf<'a>,
    next: u64,
    left: usize,
}

impl<'a> Units<'_, 'a> {
    /// The next unit that was compiled from a file of this name, in whatever
    /// folder.
    pub(super) fn next_named(&mut self, source: &str) -> Result<Option<Unit<'a>>, DwarfError> {
        while let Some(bytes) = self.next_bytes() {
            let debug_info = DebugInfo::from(Slice::new(bytes, LittleEndian));
            let Some(header) = debug_info.units().next()? else { continue };
            let abbreviations = self.sections.abbreviations(header.debug_abbrev_offset().0)?;
            let unit = Unit::new(header, abbreviations, self.sections.text)?;
            let name = unit.name.map(|name| name.rsplit(|b| *b == b'/').next());
            if name.flatten() == Some(source.as_bytes()) {
                return Ok(Some(unit));
            }
        }
        Ok(None)
    }

    /// The bytes of the next unit; `None` at the end, and where a length leads
    /// nowhere.
    fn next_bytes(&mut self) -> Option<&'a [u8]> {
        let room = self.sections.info.end.checked_sub(self.next)?;
        let head = self.elf.read(self.next, room.min(LENGTH_BYTES))?;
        let size = match u32::from_le_bytes(*head.first_chunk()?) {
            u32::MAX => u64::from_le_bytes(*head.get(4..)?.first_chunk()?).checked_add(12)?,
            length => u64::from(length) + 4,
        };
        self.left = self.left.checked_sub(1)?;
        let bytes = self.elf.read(self.next, size.min(room).min(UNIT_LIMIT))?;
        self.next = self.next.checked_add(size)?;
        Some(bytes)
    }
}

/// One compilation unit.
pub(super) struct Unit<'a> {
    pub(super) header: UnitHeader<Slice<'a>>,
    pub(super) abbreviations: Abbreviations,
    text: Text<'a>,
    offsets_base: gimli::DebugStrOffsetsBase<usize>,
    name: Option<&'a [u8]>,
}

impl<'a> Unit<'a> {
    fn new(
        header: UnitHeader<Slice<'a>>,
        abbreviations: Abbreviations,
        text: Text<'a>,
    ) -> Result<Self, DwarfError> {
        let offsets_base = gimli::DebugStrOffsetsBase::default_for_encoding_and_file(
            header.encoding(),
            DwarfFileType::Main,
        );
        let mut unit = Self { header, abbreviations, text, offsets_base, name: None };
        let root = unit.header.entry(&unit.abbreviations, unit.header.root_offset())?;
        if let Some(AttributeValue::DebugStrOffsetsBase(base)) =
            root.attr_value(gimli::DW_AT_str_offsets_base)
        {
            unit.offsets_base = base;
        }
        unit.name = unit.name_of(&root);
        Ok(unit)
    }

    /// The name of an entry.
    pub(super) fn name_of(&self, entry: &Entry<'a>) -> Option<&'a [u8]> {
        let string = match entry.attr_value(gimli::DW_AT_name)? {
            AttributeValue::String(string) => Some(string),
            AttributeValue::DebugStrRef(at) => self.text.strings.get_str(at).ok(),
            AttributeValue::DebugLineStrRef(at) => self.text.line_strings.get_str(at).ok(),
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let format = self.header.format();
                let at = self.text.offsets.get_str_offset(format, self.offsets_base, index);
                at.and_then(|at| self.text.strings.get_str(at)).ok()
            }
            _ => None,
        };
        string.map(|string| string.slice())
    }
}
