//! View L: libc's `environ` of a running process, as `getenv` in its libraries
//! sees it now. Puts in order what finds the variable (`elf_mem`, `symtab`,
//! `scan`) and what copies it (`snapshot`). For a dynamic program no file is
//! touched: it may be deleted, or on a network file system that hangs.

use super::auxv::{self, Auxv};
use super::elf_mem::{self, Executable, Target};
use super::environ::EnvBlock;
use super::memory::{RemoteMemory, is_not_mapped};
use super::slot::{self, Found, Slot, Source};
use super::symtab::{self, InFile};
use super::{maps, reason, scan, snapshot, stat};
use crate::model::Unreadable;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The most pages of 4 KiB that are read to find the variable.
const MAX_PAGES: usize = 8192;

/// How long to wait for a process that just called exec.
const START: Duration = Duration::from_millis(50);

/// How often `environ` is read as NULL before it is believed, when the program
/// does not tell whether its libc has started.
const NULLS: usize = 3;

/// The most executable files that a [`Reader`] remembers.
const MAX_FILES: usize = 4096;

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

/// Reads view L of many processes and remembers the symbols of the executable
/// files of static programs.
#[derive(Debug, Default)]
pub struct Reader {
    files: HashMap<FileId, InFile>,
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
    fn of(file: &File) -> io::Result<Self> {
        let status = file.metadata()?;
        Ok(Self {
            dev: status.dev(),
            inode: status.ino(),
            size: status.size(),
            modified: (status.mtime(), status.mtime_nsec()),
            changed: (status.ctime(), status.ctime_nsec()),
        })
    }
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
        match self.live_of_thread(pid) {
            Ok(live) => Ok(live),
            // The main thread may have exited before the others.
            Err(why) => stat::living_thread(pid)
                .filter(|tid| *tid != pid)
                .map_or(Err(why), |tid| self.live_of_thread(tid)),
        }
    }

    fn live_of_thread(&mut self, pid: i32) -> Result<Live, Unreadable> {
        let deadline = Instant::now() + START;
        let mut nulls = 0;
        loop {
            // A new one each time: it may hold on to the memory before exec.
            match self.attempt(&RemoteMemory::new(pid)) {
                Ok((live, settled)) => {
                    nulls += 1;
                    if settled || nulls >= NULLS {
                        return Ok(live);
                    }
                }
                Err(Failure::Final(why)) => return Err(reason::without_memory(pid).unwrap_or(why)),
                Err(Failure::NotYet(why)) => {
                    let over = (Instant::now() > deadline).then_some(why);
                    if let Some(why) = reason::without_memory(pid).or(over) {
                        return Err(why);
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tries once; also says whether this is the last word.
    fn attempt(&mut self, memory: &RemoteMemory) -> Result<(Live, bool), Failure> {
        let pid = memory.pid();
        let auxv = read_auxv(pid)?;
        let slot = self.slot(memory, &auxv)?;
        let look = || {
            snapshot::stable(memory, auxv.class, slot.address)
                .map_err(|error| failure(pid, "environ", &error))
        };
        let mut snapshot = look()?;
        let mut settled = snapshot.array != 0;
        if !settled && has_started(memory, &auxv)? {
            // NULL was read before it was known that libc has started, which may
            // have filled it in between: only what is read now counts.
            snapshot = look()?;
            settled = true;
        }
        let live = Live { block: EnvBlock::from_entries(snapshot.entries), source: slot.source };
        Ok((live, settled))
    }

    /// Finds the variable.
    fn slot(&mut self, memory: &RemoteMemory, auxv: &Auxv) -> Result<Slot, Failure> {
        let pid = memory.pid();
        let mut target = Target::new(memory, auxv.class, MAX_PAGES);
        let executable = elf_mem::executable(&mut target, auxv)
            .map_err(|error| failure(pid, "the program headers", &error))?;
        let found = slot::in_objects(&mut target, &executable)
            .map_err(|error| failure(pid, "the list of loaded objects", &error))?;
        match found {
            Found::Slot(slot) => Ok(slot),
            Found::NotStarted => Err(not_started(pid)),
            Found::NoLibc => Err(Failure::NotYet(Unreadable::new(format!(
                "process {pid} has no libc: no object that it has loaded defines environ"
            )))),
            Found::Static => {
                let in_file = self.symbols(pid)?;
                Ok(in_static_program(memory, &mut target, &executable, in_file)?)
            }
        }
    }

    /// What the symbol table of a program's file says.
    fn symbols(&mut self, pid: i32) -> Result<InFile, Unreadable> {
        let path = format!("/proc/{pid}/exe");
        let failed = |error: io::Error| reason::cannot_read(pid, &path, &error);
        let file = File::open(&path).map_err(failed)?;
        let id = FileId::of(&file).map_err(failed)?;
        if let Some(known) = self.files.get(&id) {
            return Ok(*known);
        }
        let found = symtab::find(&file, &slot::NAMES)
            .map_err(|error| Unreadable::new(format!("read the symbols of {path}: {error}")))?;
        if self.files.len() < MAX_FILES {
            self.files.insert(id, found);
        }
        Ok(found)
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

/// Whether libc has filled `environ` in; an error when it has not.
fn has_started(memory: &RemoteMemory, auxv: &Auxv) -> Result<bool, Failure> {
    let mut target = Target::new(memory, auxv.class, MAX_PAGES);
    let started = elf_mem::executable(&mut target, auxv)
        .and_then(|executable| slot::has_started(&mut target, &executable))
        .map_err(|error| failure(memory.pid(), "the list of loaded objects", &error))?;
    match started {
        Some(false) => Err(not_started(memory.pid())),
        Some(true) => Ok(true),
        None => Ok(false),
    }
}

fn not_started(pid: i32) -> Failure {
    Failure::NotYet(Unreadable::new(format!(
        "process {pid} is still starting: its libc does not know the environment yet"
    )))
}

/// Addresses that do not hold may do so in a moment: after exec they are new.
fn failure(pid: i32, what: &str, error: &io::Error) -> Failure {
    let why = reason::cannot_read_memory(pid, what, error);
    if is_not_mapped(error) { Failure::NotYet(why) } else { Failure::Final(why) }
}

fn in_static_program(
    memory: &RemoteMemory,
    target: &mut Target<'_>,
    executable: &Executable,
    in_file: InFile,
) -> Result<Slot, Unreadable> {
    let pid = memory.pid();
    if let Some(address) = in_file.address {
        let address = target.class.wrap(address.wrapping_add(executable.bias));
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
