//! Where libc's variable `environ` is in a process, from its loaded objects
//! alone. Works on any memory, so that tests and fuzz targets can make it up;
//! `live` adds what only a real process has.

use super::elf_mem::{self, Executable, Object, Target};
use super::memory::is_not_mapped;
use std::io;

/// The names of the variable, the one that libc itself uses first: glibc and
/// musl read `__environ`, bionic has only `environ`.
pub(super) const NAMES: [&[u8]; 3] = [b"__environ", b"environ", b"_environ"];

/// Where the variable `environ` of a process was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The main executable defines it for all libraries: a COPY relocation, as
    /// in Debian's python3.
    Executable,
    /// A library defines it; its path as the target's dynamic linker knows it.
    Library(Vec<u8>),
    /// The symbol table of the executable file, which is a static program.
    SymbolTable,
    /// Searched by its looks in the data of a static program without symbols:
    /// less certain than the others.
    Scan,
}

/// Where the variable is in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The address of the variable; the array's address is stored there.
    pub address: u64,
    /// How it was found.
    pub source: Source,
    /// The dynamic linker is busy. If it is so for the first time, libc does
    /// not know its environment yet and the variable is still NULL.
    pub loading: bool,
}

/// What the loaded objects say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Here it is.
    Slot(Slot),
    /// The dynamic linker has not run yet.
    NotStarted,
    /// No loaded object defines it, or nothing is loaded dynamically.
    Nothing,
}

/// Looks the variable up as the dynamic linker did: through the loaded objects
/// in their order, the main executable first.
///
/// # Errors
/// `EFAULT` when the list leads to memory that is not mapped, else why the
/// target cannot be read.
pub fn in_objects(target: &mut Target<'_>, executable: &Executable) -> io::Result<Found> {
    let Some(dynamic) = executable.dynamic else { return Ok(Found::Nothing) };
    let main = Object { bias: executable.bias, dynamic, name: 0 };
    let tables = elf_mem::dynamic(target, &main)?;
    let debug = match tables.debug {
        Some(debug) => debug,
        // Started as `ld.so PROGRAM`: the linker itself keeps the list.
        None => elf_mem::lookup(target, &main, &tables, b"_r_debug")?.unwrap_or(0),
    };
    let (mut objects, loading) = match debug {
        0 => (Vec::new(), false),
        _ => (elf_mem::link_map(target, debug)?, elf_mem::is_loading(target, debug)?),
    };
    if objects.is_empty() {
        if executable.interpreted {
            return Ok(Found::NotStarted);
        }
        objects.push(main);
    }
    for name in NAMES {
        for object in &objects {
            let found = elf_mem::dynamic(target, object)
                .and_then(|tables| elf_mem::lookup(target, object, &tables, name));
            match found {
                Ok(Some(address)) => {
                    let source = source(target, object, dynamic);
                    return Ok(Found::Slot(Slot { address, source, loading }));
                }
                // One damaged or just unloaded object hides no other.
                Ok(None) => {}
                Err(error) if is_not_mapped(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Found::Nothing)
}

fn source(target: &mut Target<'_>, object: &Object, main: u64) -> Source {
    if object.dynamic == main {
        Source::Executable
    } else {
        Source::Library(elf_mem::object_name(target, object).unwrap_or_default())
    }
}
