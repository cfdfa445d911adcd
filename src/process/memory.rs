//! Reading the memory of another process, or of a fake one in tests and fuzz
//! targets, behind one trait. Knows nothing about what the bytes mean: ELF is
//! in `elf_mem`, environments are in `live`. Nothing here attaches or writes.

use super::reason;
use crate::model::Unreadable;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// `IOV_MAX` of Linux: the most pieces that one vectored read takes.
const IOV_MAX: usize = 1024;

/// One piece of a vectored read.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where to read in the target.
    pub addr: u64,
    /// Where the bytes go; its length is how many are wanted.
    pub into: &'a mut [u8],
    /// How many bytes arrived. Fewer than wanted means that the target has no
    /// readable memory at `addr + got`.
    pub got: usize,
}

impl<'a> Part<'a> {
    /// A piece of which nothing was read yet.
    pub fn new(addr: u64, into: &'a mut [u8]) -> Self {
        Self { addr, into, got: 0 }
    }

    /// True when every wanted byte arrived.
    pub fn is_whole(&self) -> bool {
        self.got == self.into.len()
    }
}

/// Readable memory with 64-bit addresses.
pub trait Memory {
    /// Reads at `addr` and returns how many bytes arrived: fewer than wanted
    /// when the readable memory ends first.
    ///
    /// # Errors
    /// `EFAULT` when not even the first byte is readable, otherwise why the
    /// target cannot be read at all (`EPERM`, `ESRCH`).
    fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Reads exactly `into.len()` bytes.
    ///
    /// # Errors
    /// As [`Memory::read`]; `EFAULT` also when only a part is readable.
    fn read_exact(&self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        if self.read(addr, into)? == into.len() { Ok(()) } else { Err(not_mapped()) }
    }

    /// Reads many pieces in as few system calls as possible. A piece that is
    /// not mapped is no error: its `got` stays short.
    ///
    /// # Errors
    /// Why the target cannot be read at all (`EPERM`, `ESRCH`).
    fn read_many(&self, parts: &mut [Part<'_>]) -> io::Result<()> {
        for part in parts {
            part.got = match self.read(part.addr, part.into) {
                Ok(got) => got,
                Err(error) if is_not_mapped(&error) => 0,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }
}

/// The error for an address where the target has no readable memory.
pub fn not_mapped() -> io::Error {
    Errno::EFAULT.into()
}

/// True when the error says "no memory there" and not "no access at all".
pub fn is_not_mapped(error: &io::Error) -> bool {
    // /proc/PID/mem answers EIO where process_vm_readv answers EFAULT.
    matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EIO))
}

/// The memory of a running process, read without stopping it.
#[derive(Debug)]
pub struct RemoteMemory {
    pid: Pid,
    mem: OnceLock<File>,
}

impl RemoteMemory {
    /// Names the process; nothing is opened or checked before the first read.
    pub fn new(pid: i32) -> Self {
        Self { pid: Pid::from_raw(pid), mem: OnceLock::new() }
    }

    /// The process whose memory this is.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Turns an error of reading `what` into a sentence for a person: who may
    /// read this memory, or that the process is gone.
    pub fn explain(&self, what: &str, error: &io::Error) -> Unreadable {
        let pid = self.pid();
        let why = reason::cannot_read_memory(pid, what, error);
        reason::without_memory(pid).unwrap_or(why)
    }

    /// Reads parts in order and returns the bytes that arrived before the
    /// first hole.
    fn read_vectored(&self, parts: &mut [Part<'_>]) -> Result<usize, Errno> {
        let remote: Vec<RemoteIoVec> = parts
            .iter()
            .map(|part| {
                let base = usize::try_from(part.addr).map_err(|_| Errno::EFAULT)?;
                Ok(RemoteIoVec { base, len: part.into.len() })
            })
            .collect::<Result<_, Errno>>()?;
        let mut local: Vec<IoSliceMut<'_>> =
            parts.iter_mut().map(|part| IoSliceMut::new(part.into)).collect();
        process_vm_readv(self.pid, &mut local, &remote)
    }

    /// The same bytes through `/proc/PID/mem`: the kernel asks for the same
    /// rights, but container profiles that forbid `process_vm_readv` let it be.
    fn read_mem_file(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
        let file = match self.mem.get() {
            Some(file) => file,
            None => {
                let opened = File::open(format!("/proc/{}/mem", self.pid))?;
                self.mem.get_or_init(|| opened)
            }
        };
        file.read_at(into, addr)
    }

    fn fall_back(&self, errno: Errno, parts: &mut [Part<'_>]) -> io::Result<()> {
        for part in parts.iter_mut() {
            part.got = match self.read_mem_file(part.addr, part.into) {
                Ok(got) => got,
                Err(error) if is_not_mapped(&error) => 0,
                Err(_) => return Err(errno.into()),
            };
        }
        Ok(())
    }
}

impl Memory for RemoteMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut part = [Part::new(addr, into)];
        self.read_many(&mut part)?;
        if part[0].got == 0 { Err(not_mapped()) } else { Ok(part[0].got) }
    }

    fn read_many(&self, parts: &mut [Part<'_>]) -> io::Result<()> {
        let mut done = 0;
        while done < parts.len() {
            let end = parts.len().min(done + IOV_MAX);
            let batch = &mut parts[done..end];
            done += match self.read_vectored(batch) {
                Ok(got) => spread(got, batch),
                Err(Errno::EFAULT) => {
                    batch[0].got = 0;
                    1
                }
                Err(errno @ (Errno::EPERM | Errno::ENOSYS)) => {
                    self.fall_back(errno, batch)?;
                    batch.len()
                }
                Err(errno) => return Err(errno.into()),
            };
        }
        Ok(())
    }
}

/// Gives each part its share of the bytes that arrived in order; returns how
/// many parts are finished. The part at which the bytes ran out is finished
/// too: the kernel stopped there because the next page is not readable.
fn spread(mut got: usize, parts: &mut [Part<'_>]) -> usize {
    for (index, part) in parts.iter_mut().enumerate() {
        part.got = got.min(part.into.len());
        got -= part.got;
        if !part.is_whole() {
            return index + 1;
        }
    }
    parts.len()
}

/// Memory made of pieces given in advance, for tests and fuzz targets.
#[derive(Clone, Debug, Default)]
pub struct SparseMemory {
    regions: BTreeMap<u64, Vec<u8>>,
}

impl SparseMemory {
    /// Memory without a readable byte.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `bytes` readable at `addr`. Where pieces overlap, the one that
    /// starts last wins.
    pub fn put(&mut self, addr: u64, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.regions.insert(addr, bytes.into());
        self
    }

    /// The readable bytes from `addr` to the end of its piece or the start of
    /// the next one.
    fn at(&self, addr: u64) -> Option<&[u8]> {
        let (start, bytes) = self.regions.range(..=addr).next_back()?;
        let from = usize::try_from(addr - start).ok()?;
        let rest = bytes.get(from..).filter(|rest| !rest.is_empty())?;
        let next = addr.checked_add(1).and_then(|after| self.regions.range(after..).next());
        let room = next.map_or(u64::MAX, |(start, _)| start - addr);
        Some(&rest[..rest.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
    }
}

impl Memory for SparseMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            let Some(bytes) = addr.checked_add(got as u64).and_then(|at| self.at(at)) else {
                break;
            };
            let n = bytes.len().min(into.len() - got);
            into[got..got + n].copy_from_slice(&bytes[..n]);
            got += n;
        }
        if got == 0 && !into.is_empty() { Err(not_mapped()) } else { Ok(got) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own() -> RemoteMemory {
        RemoteMemory::new(std::process::id() as i32)
    }

    #[test]
    fn reads_more_parts_than_one_call_takes_and_skips_holes() {
        let source: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
        let base = source.as_ptr() as u64;
        let mut buffers = vec![[0u8; 1]; source.len()];
        let mut parts: Vec<Part<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(n, into)| Part::new(if n % 7 == 3 { 16 } else { base + n as u64 }, into))
            .collect();
        own().read_many(&mut parts).expect("own memory is readable");
        for (n, part) in parts.iter().enumerate() {
            if n % 7 == 3 {
                assert_eq!(part.got, 0, "part {n} points to an unmapped page");
            } else {
                assert_eq!((part.got, part.into[0]), (1, n as u8), "part {n}");
            }
        }
    }

    #[test]
    fn the_mem_file_gives_the_same_bytes() {
        let source = *b"the same bytes either way";
        let mut got = [0u8; 25];
        let n = own().read_mem_file(source.as_ptr() as u64, &mut got).expect("own memory");
        assert_eq!(&got[..n], &source);
        let error = own().read_mem_file(16, &mut got).expect_err("page zero is not mapped");
        assert!(is_not_mapped(&error), "{error}");
    }

    #[test]
    fn a_hole_and_a_missing_process_are_told_apart() {
        let mut byte = [0u8; 1];
        assert!(is_not_mapped(&own().read(16, &mut byte).expect_err("page zero")));
        // Larger than any pid_max, so it never exists.
        let gone = RemoteMemory::new(i32::MAX).read(16, &mut byte).expect_err("no process");
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    proptest! {
        #[test]
        fn sparse_memory_behaves_like_a_map_of_bytes(
            pieces in proptest::collection::vec((0u64..300, proptest::collection::vec(any::<u8>(), 0..50)), 0..8),
            addr in 0u64..350,
            len in 1usize..80,
        ) {
            let mut memory = SparseMemory::new();
            for (at, bytes) in &pieces {
                memory.put(*at, bytes.clone());
            }
            let byte = |at: u64| {
                let (start, bytes) = memory.regions.range(..=at).next_back()?;
                bytes.get((at - start) as usize).copied()
            };
            let expected: Vec<u8> = (addr..addr + len as u64).map_while(byte).collect();
            let mut into = vec![0; len];
            let got = memory.read(addr, &mut into).unwrap_or(0);
            prop_assert_eq!(&into[..got], &expected[..]);
        }
    }
}
