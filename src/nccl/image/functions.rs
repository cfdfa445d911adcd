//! Named functions of a libnccl file, for those who need more than its
//! settings.

use super::{ImageError, MOST, source};
use std::fs::File;
use std::io;
use std::path::Path;

/// A function in `.symtab`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFunction {
    /// The symbol, mangled if it is.
    pub name: String,
    /// Link-time address.
    pub vaddr: usize,
    /// Size in bytes.
    pub size: usize,
}

/// All functions with a name that is wanted, by address; `None` when the file
/// has no symbol table.
///
/// # Errors
/// [`ImageError`].
pub fn functions(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Option<Vec<NamedFunction>>, ImageError> {
    let file = source::open(path)?;
    source::require_regular(&file, path)?;
    let data = source::cache(&file);
    let elf = source::Elf::parse(&data, path)?;
    let mut found = Vec::new();
    let symbols = elf.symbols(|symbol| {
        if symbol.function
            && found.len() < MOST
            && let Ok(name) = std::str::from_utf8(symbol.name)
            && wanted(name)
            && let (Ok(vaddr), Ok(size)) = (symbol.vaddr.try_into(), symbol.size.try_into())
        {
            found.push(NamedFunction { name: name.to_owned(), vaddr, size });
        }
    })?;
    found.sort_by_key(|function| function.vaddr);
    Ok(symbols.then_some(found))
}

/// Opens a regular file for reading; never waits, whatever the path is.
///
/// # Errors
/// The kernel's, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = source::open(path).map_err(plain)?;
    source::require_regular(&file, path).map_err(plain)?;
    Ok(file)
}

fn plain(error: ImageError) -> io::Error {
    match error {
        ImageError::Open { error, .. } => error,
        ImageError::NotAFile { kind, .. } => {
            io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a file"))
        }
        other => io::Error::new(io::ErrorKind::InvalidInput, other.to_string()),
    }
}
