//! The members of a structure: where they lie, what they are, how many.

use super::unit::{Entry, Unit};
use super::{DwarfError, Question};
use gimli::{AttributeValue, UnitOffset};
use std::collections::BTreeMap;
use std::ops::Range;

/// More members than any structure of NCCL has (`ncclComm` of 2.32.3: 190),
/// and more entries than any of its units.
const MOST_MEMBERS: usize = 4096;

/// More than any name of NCCL has, and more subranges than any array has.
const MOST_NAME: usize = 128;
const MOST_SUBRANGES: usize = 64;

/// Typedefs and qualifiers and arrays around one type.
const DEEPEST: usize = 24;

/// Arrays of arrays.
const MOST_DIMENSIONS: usize = 8;

/// What a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An integer of a C type, or an enumeration.
    Integer { signed: bool },
    /// `float` or `double`.
    Float,
    /// An address.
    Pointer,
    /// A structure, class or union.
    Structure,
    /// Anything else, and what is declared only.
    Other,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Bytes from the start of the outermost structure.
    pub(crate) offset: u64,
    /// Of one element.
    pub(crate) kind: Kind,
    /// Bytes of one element.
    pub(crate) size: u64,
    /// Elements in each dimension; empty for a single value.
    pub(crate) dims: Vec<u64>,
}

impl Field {
    /// The number of elements.
    pub(crate) fn count(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim))
    }

    /// Where it lies in the structure, in bytes.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.count()?.checked_mul(self.size)?)?;
        Some(self.offset..end)
    }
}

/// One structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Its members by name, those of nested structures as `config.minCTAs`.
    /// All lie within `size`.
    pub(crate) fields: BTreeMap<String, Field>,
    /// The enumerators that were asked for.
    pub(crate) enumerators: BTreeMap<String, i64>,
}

impl Layout {
    /// `None` when the unit does not define the structure.
    pub(super) fn read(unit: &Unit<'_>, wanted: &Question<'_>) -> Result<Option<Self>, DwarfError> {
        let mut layout = Self::default();
        let mut found = None;
        let mut cursor = unit.header.entries(&unit.abbreviations);
        // To the root, and on to its first child.
        let mut more = cursor.next_entry()? && cursor.next_entry()?;
        while let (true, Some(entry)) = (more, cursor.current()) {
            if is_structure(entry)
                && found.is_none()
                && unit.name_of(entry) == Some(wanted.structure.as_bytes())
            {
                found = number(entry, gimli::DW_AT_byte_size).map(|size| (entry.offset(), size));
            } else if entry.tag() == gimli::DW_TAG_enumeration_type {
                layout.take_enumerators(unit, entry.offset(), wanted.enumerators)?;
            }
            more = cursor.next_sibling()?.is_some();
        }
        let Some((at, size)) = found else { return Ok(None) };
        layout.size = size;
        layout.take_members(unit, at, "", 0, wanted.nested)?;
        layout.fields.retain(|_, field| field.range().is_some_and(|range| range.end <= size));
        Ok(Some(layout))
    }

    fn take_enumerators(
        &mut self,
        unit: &Unit<'_>,
        at: UnitOffset,
        wanted: &[&str],
    ) -> Result<(), DwarfError> {
        for_each_child(unit, at, MOST_MEMBERS, |entry| {
            let name = short_name(unit, entry);
            let known = name.filter(|name| wanted.contains(name));
            let value =
                entry.attr(gimli::DW_AT_const_value).and_then(gimli::Attribute::sdata_value);
            if let (Some(name), Some(value)) = (known, value) {
                self.enumerators.entry(name.to_owned()).or_insert(value);
            }
            Ok(())
        })
    }

    /// Adds the members of the structure at `at`, which itself lies at `base`.
    fn take_members(
        &mut self,
        unit: &Unit<'_>,
        at: UnitOffset,
        prefix: &str,
        base: u64,
        nested: &[&str],
    ) -> Result<(), DwarfError> {
        let mut inside = Vec::new();
        for_each_child(unit, at, MOST_MEMBERS, |entry| {
            let name = short_name(unit, entry);
            let offset = number(entry, gimli::DW_AT_data_member_location);
            let place = offset.and_then(|offset| offset.checked_add(base));
            let bits = entry.has_attr(gimli::DW_AT_bit_size);
            if let (gimli::DW_TAG_member, Some(name), Some(offset), false, Some(of)) =
                (entry.tag(), name, place, bits, reference(entry))
            {
                let resolved = Type::resolve(unit, of)?;
                let name = format!("{prefix}{name}");
                if let (true, Some(at)) = (nested.contains(&&*name), resolved.structure) {
                    inside.push((at, format!("{name}."), offset));
                }
                let Type { kind, size, dims, .. } = resolved;
                self.fields.entry(name).or_insert(Field { offset, kind, size, dims });
            }
            Ok(())
        })?;
        // No name is nested in itself, so this ends.
        for (at, prefix, offset) in inside {
            self.take_members(unit, at, &prefix, offset, nested)?;
        }
        Ok(())
    }
}

/// A type without its names and qualifiers.
struct Type {
    kind: Kind,
    size: u64,
    dims: Vec<u64>,
    /// The entry of a single structure.
    structure: Option<UnitOffset>,
}

impl Type {
    fn resolve(unit: &Unit<'_>, mut at: UnitOffset) -> Result<Self, DwarfError> {
        let mut dims = Vec::new();
        for _ in 0..DEEPEST {
            let entry = unit.header.entry(&unit.abbreviations, at)?;
            match entry.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_atomic_type => {}
                gimli::DW_TAG_array_type => dimensions(unit, at, &mut dims)?,
                _ => return Ok(Self::of(&entry, dims)),
            }
            let Some(next) = reference(&entry) else { break };
            at = next;
        }
        Ok(Self { kind: Kind::Other, size: 0, dims, structure: None })
    }

    fn of(entry: &Entry<'_>, dims: Vec<u64>) -> Self {
        let size = number(entry, gimli::DW_AT_byte_size);
        let kind = match (entry.tag(), size) {
            (gimli::DW_TAG_base_type, Some(_)) => match entry.attr_value(gimli::DW_AT_encoding) {
                Some(AttributeValue::Encoding(encoding)) => base_kind(encoding),
                _ => Kind::Other,
            },
            (gimli::DW_TAG_enumeration_type, Some(_)) => Kind::Integer { signed: true },
            (gimli::DW_TAG_pointer_type, _) => Kind::Pointer,
            (_, Some(_)) if is_structure(entry) => Kind::Structure,
            _ => Kind::Other,
        };
        let default = if kind == Kind::Pointer { 8 } else { 0 };
        let structure = (kind == Kind::Structure && dims.is_empty()).then(|| entry.offset());
        Self { kind, size: size.unwrap_or(default), dims, structure }
    }
}

fn base_kind(encoding: gimli::DwAte) -> Kind {
    match encoding {
        gimli::DW_ATE_float => Kind::Float,
        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => Kind::Integer { signed: true },
        gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_boolean => {
            Kind::Integer { signed: false }
        }
        _ => Kind::Other,
    }
}

/// Adds the dimensions of an array type; 0 for one without a size.
fn dimensions(unit: &Unit<'_>, at: UnitOffset, dims: &mut Vec<u64>) -> Result<(), DwarfError> {
    for_each_child(unit, at, MOST_SUBRANGES, |entry| {
        if entry.tag() == gimli::DW_TAG_subrange_type && dims.len() < MOST_DIMENSIONS {
            let last = number(entry, gimli::DW_AT_upper_bound);
            let count = number(entry, gimli::DW_AT_count);
            dims.push(count.or(last.and_then(|last| last.checked_add(1))).unwrap_or(0));
        }
        Ok(())
    })
}

fn short_name<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Option<&'a str> {
    let name = unit.name_of(entry).filter(|name| name.len() <= MOST_NAME)?;
    std::str::from_utf8(name).ok()
}

fn for_each_child<'a>(
    unit: &Unit<'a>,
    at: UnitOffset,
    most: usize,
    mut each: impl FnMut(&Entry<'a>) -> Result<(), DwarfError>,
) -> Result<(), DwarfError> {
    let mut cursor = unit.header.entries_at_offset(&unit.abbreviations, at)?;
    let parent = cursor.next_entry()? && cursor.current().is_some_and(Entry::has_children);
    let mut more = parent && cursor.next_entry()?;
    for _ in 0..most {
        let (true, Some(entry)) = (more, cursor.current()) else { break };
        each(entry)?;
        more = cursor.next_sibling()?.is_some();
    }
    Ok(())
}

fn is_structure(entry: &Entry<'_>) -> bool {
    let structures =
        [gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type, gimli::DW_TAG_union_type];
    structures.contains(&entry.tag())
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    entry.attr(name)?.udata_value()
}

/// The type of an entry, when it is in the same unit.
fn reference(entry: &Entry<'_>) -> Option<UnitOffset> {
    match entry.attr_value(gimli::DW_AT_type)? {
        AttributeValue::UnitRef(at) => Some(at),
        _ => None,
    }
}
