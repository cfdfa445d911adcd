//! Where libc's variable `environ` is in a process, from its loaded objects
//! alone. Works on any memory, so that tests and fuzz targets can make it up;
//! `live` adds what only a real process has.

use super::elf_mem::{self, Executable, LinkMap, Object, Target};
use super::memory::is_not_mapped;
use std::io;

/// The names of the variable, the one that libc itself uses first: glibc and
/// musl read `__environ`, bionic has only `environ`. A program may define an
/// `environ` of its own that its libc never looks at.
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
}

/// What the loaded objects say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Here it is.
    Slot(Slot),
    /// The dynamic linker has not run yet.
    NotStarted,
    /// No object defines it, or the one that does is not loaded yet.
    NoLibc,
    /// A static program, which has no loaded objects.
    Static,
}

/// The loaded objects in the order in which symbols are searched.
struct Objects {
    list: LinkMap,
    /// The dynamic section of what the kernel started.
    main: u64,
    /// There is a dynamic linker that loads more.
    linked: bool,
}

/// Looks the variable up as the dynamic linker did: through the loaded objects
/// in their order, the main executable first.
///
/// # Errors
/// `EFAULT` when the list leads to memory that is not mapped, else why the
/// target cannot be read.
pub fn in_objects(target: &mut Target<'_>, executable: &Executable) -> io::Result<Found> {
    let Some(mut objects) = Objects::of(target, executable)? else { return Ok(Found::Static) };
    if objects.list.is_empty() {
        return Ok(if objects.linked { Found::NotStarted } else { Found::Static });
    }
    for name in NAMES {
        if let Some((address, object)) = objects.lookup(target, name)? {
            let source = objects.source(target, &object);
            return Ok(Found::Slot(Slot { address, source }));
        }
    }
    Ok(if objects.linked { Found::NoLibc } else { Found::Static })
}

/// Whether libc has filled `environ` in, when that can be told: until then it
/// is NULL, just as after `clearenv`. glibc and musl set `__progname`, which is
/// never empty afterwards, right after `environ`.
///
/// # Errors
/// As [`in_objects`].
pub fn has_started(target: &mut Target<'_>, executable: &Executable) -> io::Result<Option<bool>> {
    let Some(mut objects) = Objects::of(target, executable)? else { return Ok(None) };
    let Some((address, _)) = objects.lookup(target, b"__progname")? else { return Ok(None) };
    match target.word(address)? {
        0 => Ok(Some(false)),
        name => Ok(Some(target.memory.array(name)? != [0])),
    }
}

impl Objects {
    /// `None` for a program without a dynamic section.
    fn of(target: &mut Target<'_>, executable: &Executable) -> io::Result<Option<Self>> {
        let Some(main) = executable.dynamic else { return Ok(None) };
        let object = Object { bias: executable.bias, dynamic: main, name: 0 };
        let tables = elf_mem::dynamic(target, &object)?;
        // Started as `ld.so PROGRAM`: the linker itself keeps the list.
        let linker = match tables.debug {
            Some(_) => None,
            None => elf_mem::lookup(target, &object, &tables, b"_r_debug")?,
        };
        let linked = executable.interpreted || linker.is_some();
        let list = match tables.debug.or(linker).unwrap_or(0) {
            // A static position-independent program is its own only object.
            0 if !linked => LinkMap::of_one(object),
            0 => LinkMap::default(),
            debug => LinkMap::new(target, debug)?,
        };
        Ok(Some(Self { list, main, linked }))
    }

    fn lookup(
        &mut self,
        target: &mut Target<'_>,
        name: &[u8],
    ) -> io::Result<Option<(u64, Object)>> {
        let mut index = 0;
        while let Some(object) = self.list.get(target, index)? {
            index += 1;
            let found = elf_mem::dynamic(target, &object)
                .and_then(|tables| elf_mem::lookup(target, &object, &tables, name));
            match found {
                Ok(Some(address)) => return Ok(Some((address, object))),
                // One damaged or just unloaded object hides no other.
                Ok(None) => {}
                Err(error) if is_not_mapped(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn source(&self, target: &mut Target<'_>, object: &Object) -> Source {
        if object.dynamic == self.main {
            Source::Executable
        } else {
            Source::Library(elf_mem::object_name(target, object).unwrap_or_default())
        }
    }
}
