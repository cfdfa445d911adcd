//! Reads the layout of one C++ structure and the values of enumerators from the
//! DWARF of a library file. Only the compilation unit that is asked for is
//! looked at, and nothing in it is trusted. It knows nothing of NCCL.

mod layout;
mod unit;

pub(super) use layout::{Field, Kind, Layout};

use crate::nccl::image::ImageError;
use crate::nccl::image::source::Elf;
use unit::Sections;

/// Why a file gives no layout.
#[derive(Debug, thiserror::Error)]
pub(super) enum DwarfError {
    /// The file contradicts itself.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It was stripped, or built without `-g`.
    #[error("it has no debug information (it was stripped), so the layout of {0} is not known")]
    NoDebug(String),
    /// No unit of that name defines the structure.
    #[error("its debug information does not describe {0} in {1}")]
    NotDescribed(String, String),
    /// The debug information contradicts itself.
    #[error("its debug information is damaged: {0}")]
    Damaged(gimli::Error),
}

impl From<gimli::Error> for DwarfError {
    fn from(error: gimli::Error) -> Self {
        Self::Damaged(error)
    }
}

/// What is asked of a file.
pub(super) struct Question<'a> {
    /// The source file of the unit, without folders: `init.cc`.
    pub(super) source: &'a str,
    /// The structure.
    pub(super) structure: &'a str,
    /// Members of it that are structures and whose members are wanted too.
    pub(super) nested: &'a [&'a str],
    /// Enumerators whose values are wanted.
    pub(super) enumerators: &'a [&'a str],
}

/// Reads the layout that `question` asks for.
///
/// # Errors
/// [`DwarfError`].
pub(super) fn layout(elf: &Elf<'_>, question: &Question<'_>) -> Result<Layout, DwarfError> {
    let missing = || DwarfError::NoDebug(question.structure.to_owned());
    let sections = Sections::open(elf)?.ok_or_else(missing)?;
    let mut units = sections.units(elf);
    while let Some(unit) = units.next_named(question.source)? {
        if let Some(layout) = Layout::read(&unit, question)? {
            return Ok(layout);
        }
    }
    Err(DwarfError::NotDescribed(question.structure.to_owned(), question.source.to_owned()))
}

#[cfg(test)]
mod tests;
