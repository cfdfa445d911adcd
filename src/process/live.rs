//! View L: libc's `environ` of a running process, as `getenv` in its libraries
//! sees it now. Puts in order what finds the variable (`elf_mem`, `symtab`,
//! `scan`) and what copies it (`snapshot`), and remembers per executable file
//! where the variable is.

use super::auxv::{self, Auxv};
use super::elf_mem::{self, Class, Executable, Object, Target};
use super::environ::EnvBlock;
use super::memory::{RemoteMemory, is_not_mapped};
use super::{maps, reason, scan, snapshot, symtab};
use crate::model::Unreadable;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The names of the variable, the one that libc itself uses first: glibc and
/// musl read `__environ`, bionic has only `environ`.
const NAMES: [&[u8]; 3] = [b"__environ", b"environ", b"_environ"];

/// The most pages of 4 KiB that are read to find the variable.
const MAX_PAGES: usize = 8192;

/// How long a process may take from exec until libc knows its environment.
const START: Duration = Duration::from_millis(50);

/// How often everything is tried anew when the addresses do not hold: the
/// process may have called exec in between.
const TRIES: usize = 3;

/// The most executable files that a [`Reader`] remembers.
const MAX_KNOWN: usize = 4096;

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

/// The live environment of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// What `getenv` sees. Empty after `clearenv`.
    pub block: EnvBlock,
    /// How the variable was found.
    pub source: Source,
}

/// Reads view L of one process. For many processes, keep a [`Reader`].
///
/// # Errors
/// As [`Reader::live`].
pub fn live_environ(pid: i32) -> Result<EnvBlock, Unreadable> {
    Reader::new().live(pid).map(|live| live.block)
}

/// Reads view L of many processes and remembers where the variable is in each
/// executable file that defines it itself.
#[derive(Debug, Default)]
pub struct Reader {
    known: HashMap<FileId, Known>,
}

/// Tells one state of one file from any other, so that a replaced or rewritten
/// executable is looked at anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    dev: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileId {
    fn of_executable(pid: i32) -> Option<Self> {
        let status = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some(Self {
            dev: status.dev(),
            inode: status.ino(),
            size: status.size(),
            modified: (status.mtime(), status.mtime_nsec()),
            changed: (status.ctime(), status.ctime_nsec()),
        })
    }
}

/// Where the variable is in an executable file, before relocation.
#[derive(Clone, Debug)]
struct Known {
    entry: u64,
    address: u64,
    source: Source,
}

/// Where the variable is in a process.
struct Slot {
    address: u64,
    source: Source,
}

/// Why there is no result yet.
enum Failure {
    /// It may work in a moment: the process has not started or called exec.
    NotYet(Unreadable),
    /// It will not work.
    Final(Unreadable),
}

impl From<Unreadable> for Failure {
    fn from(why: Unreadable) -> Self {
        Self::Final(why)
    }
}

impl Reader {
    /// A reader that knows no file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads view L of one process: the `environ` of its libc.
    ///
    /// # Errors
    /// Why it cannot be read: no such process, no permission, a zombie, a
    /// kernel thread, a program without a libc (Go), an environment that
    /// changes faster than it can be read.
    pub fn live(&mut self, pid: i32) -> Result<Live, Unreadable> {
        let memory = RemoteMemory::new(pid);
        let deadline = Instant::now() + START;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.attempt(&memory) {
                Ok((live, true)) => return Ok(live),
                // NULL: emptied by clearenv, or not filled in yet.
                Ok((live, false)) if Instant::now() > deadline => return Ok(live),
                Ok((_, false)) => {}
                Err(Failure::Final(why)) => return Err(reason::without_memory(pid).unwrap_or(why)),
                Err(Failure::NotYet(why)) => {
                    if let Some(why) = reason::without_memory(pid) {
                        return Err(why);
                    }
                    if tries >= TRIES && Instant::now() > deadline {
                        return Err(why);
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tries once; also says whether the pointer was other than NULL.
    fn attempt(&mut self, memory: &RemoteMemory) -> Result<(Live, bool), Failure> {
        let pid = memory.pid();
        let auxv = read_auxv(pid)?;
        let slot = self.slot(memory, &auxv)?;
        let snapshot = snapshot::stable(memory, auxv.class, slot.address).map_err(|error| {
            let why = reason::cannot_read_memory(pid, "environ", &error);
            if is_not_mapped(&error) { Failure::NotYet(why) } else { Failure::Final(why) }
        })?;
        let live = Live { block: EnvBlock::from_entries(snapshot.entries), source: slot.source };
        Ok((live, snapshot.array != 0))
    }

    fn slot(&mut self, memory: &RemoteMemory, auxv: &Auxv) -> Result<Slot, Failure> {
        let id = FileId::of_executable(memory.pid());
        if let Some(known) = id.as_ref().and_then(|id| self.known.get(id)) {
            let bias = auxv.entry.wrapping_sub(known.entry);
            let address = wrap(auxv.class, known.address.wrapping_add(bias));
            return Ok(Slot { address, source: known.source.clone() });
        }
        let (slot, executable) = find(memory, auxv)?;
        // Only what the file itself says is true for its other processes too.
        if let (Some(id), Source::Executable | Source::SymbolTable) = (id, &slot.source)
            && self.known.len() < MAX_KNOWN
        {
            let address = slot.address.wrapping_sub(executable.bias);
            let known = Known { entry: executable.entry, address, source: slot.source.clone() };
            self.known.insert(id, known);
        }
        Ok(slot)
    }
}

fn wrap(class: Class, address: u64) -> u64 {
    match class {
        Class::Elf32 => address & u64::from(u32::MAX),
        Class::Elf64 => address,
    }
}

fn read_auxv(pid: i32) -> Result<Auxv, Unreadable> {
    let path = format!("/proc/{pid}/auxv");
    let mut bytes = Vec::with_capacity(auxv::MAX_BYTES);
    File::open(&path)
        .and_then(|file| file.take(auxv::MAX_BYTES as u64).read_to_end(&mut bytes))
        .map_err(|error| reason::cannot_read(pid, &path, &error))?;
    auxv::parse(&bytes).ok_or_else(|| {
        reason::without_memory(pid)
            .unwrap_or_else(|| Unreadable::new(format!("read {path}: not in the known format")))
    })
}

/// Finds the variable in a process about which nothing is known.
fn find(memory: &RemoteMemory, auxv: &Auxv) -> Result<(Slot, Executable), Failure> {
    let pid = memory.pid();
    let failed = |what: &str, error: io::Error| {
        let why = reason::cannot_read_memory(pid, what, &error);
        if is_not_mapped(&error) { Failure::NotYet(why) } else { Failure::Final(why) }
    };
    let mut target = Target::new(memory, auxv.class, MAX_PAGES);
    let executable = elf_mem::executable(&mut target, auxv)
        .map_err(|error| failed("the program headers", error))?;
    let found = in_objects(&mut target, &executable)
        .map_err(|error| failed("the list of loaded objects", error))?;
    let slot = match found {
        Found::Slot(slot) => slot,
        Found::NotStarted => {
            return Err(Failure::NotYet(Unreadable::new(format!(
                "process {pid} is still starting: its dynamic linker has not run"
            ))));
        }
        Found::Nothing if executable.interpreted => {
            return Err(Failure::Final(Unreadable::new(format!(
                "no object that process {pid} has loaded defines environ: it has no libc"
            ))));
        }
        Found::Nothing => in_static_program(memory, &mut target, &executable)?,
    };
    Ok((slot, executable))
}

enum Found {
    Slot(Slot),
    NotStarted,
    Nothing,
}

/// Looks the variable up as the dynamic linker did: through the loaded objects
/// in their order, the main executable first.
fn in_objects(target: &mut Target<'_>, executable: &Executable) -> io::Result<Found> {
    let Some(dynamic) = executable.dynamic else { return Ok(Found::Nothing) };
    let main = Object { bias: executable.bias, dynamic, name: 0 };
    let tables = elf_mem::dynamic(target, &main)?;
    let debug = match tables.debug {
        Some(debug) => debug,
        // Started as `ld.so PROGRAM`: the linker itself keeps the list.
        None => elf_mem::lookup(target, &main, &tables, b"_r_debug")?.unwrap_or(0),
    };
    let mut objects = if debug == 0 { Vec::new() } else { elf_mem::link_map(target, debug)? };
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
                Ok(Some(address)) if object.dynamic == dynamic => {
                    return Ok(Found::Slot(Slot { address, source: Source::Executable }));
                }
                Ok(Some(address)) => {
                    let path = elf_mem::object_name(target, object).unwrap_or_default();
                    return Ok(Found::Slot(Slot { address, source: Source::Library(path) }));
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

fn in_static_program(
    memory: &RemoteMemory,
    target: &mut Target<'_>,
    executable: &Executable,
) -> Result<Slot, Unreadable> {
    let pid = memory.pid();
    let path = format!("/proc/{pid}/exe");
    let file = File::open(&path).map_err(|error| reason::cannot_read(pid, &path, &error))?;
    let in_file = symtab::find(&file, &NAMES)
        .map_err(|error| Unreadable::new(format!("read the symbols of {path}: {error}")))?;
    if let Some(address) = in_file.address {
        let address = wrap(target.class, address.wrapping_add(executable.bias));
        return Ok(Slot { address, source: Source::SymbolTable });
    }
    if in_file.go {
        return Err(Unreadable::new(format!(
            "process {pid} is a Go program without libc: it keeps its environment where only it \
             knows, so only what exec delivered can be read"
        )));
    }
    if !in_file.stripped {
        return Err(Unreadable::new(format!(
            "process {pid} is a static program without a variable environ: it has no libc"
        )));
    }
    let maps = maps::maps(pid)?;
    let found = scan::find(memory, target, &executable.writable, &maps)
        .map_err(|error| reason::cannot_read_memory(pid, "the data segments", &error))?;
    match found {
        scan::Scan::Slot(address) => Ok(Slot { address, source: Source::Scan }),
        scan::Scan::Nothing => Err(Unreadable::new(format!(
            "process {pid} is a static program without symbols, and nothing in its data looks \
             like an environment"
        ))),
        scan::Scan::Ambiguous(many) => Err(Unreadable::new(format!(
            "process {pid} is a static program without symbols, and {many} places in its data \
             look like an environment"
        ))),
    }
}
