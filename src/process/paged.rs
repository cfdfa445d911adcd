//! A page cache over any [`Memory`], so that chasing pointers through another
//! process costs one system call per page and not one per pointer. It lives for
//! one look at one process: it never notices that the target changed.

use super::memory::{Memory, Part, not_mapped};
use std::collections::HashMap;
use std::io;

/// Bytes per page: the unit of reading and of the limit.
pub const PAGE: usize = 4096;

/// What arrived of a page: all of it, nothing, or (in fake memory only) a part.
struct Page {
    bytes: Box<[u8; PAGE]>,
    got: usize,
}

/// Cached, size-limited reading of scattered memory.
pub struct Paged<'m> {
    memory: &'m dyn Memory,
    pages: HashMap<u64, Page>,
    limit: usize,
}

impl<'m> Paged<'m> {
    /// A cache that reads at most `limit` pages and then refuses to go on.
    pub fn new(memory: &'m dyn Memory, limit: usize) -> Self {
        Self { memory, pages: HashMap::new(), limit }
    }

    /// Fetches the pages that hold these addresses with one vectored read.
    ///
    /// # Errors
    /// As [`Memory::read_many`], or that the limit is reached.
    pub fn prefetch(&mut self, addresses: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let mut wanted: Vec<u64> = addresses.into_iter().map(|addr| addr / PAGE as u64).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|page| !self.pages.contains_key(page));
        if self.pages.len() + wanted.len() > self.limit {
            return Err(self.too_much());
        }
        let mut fresh: Vec<Page> =
            wanted.iter().map(|_| Page { bytes: Box::new([0; PAGE]), got: 0 }).collect();
        let mut parts: Vec<Part<'_>> = wanted
            .iter()
            .zip(&mut fresh)
            .map(|(page, into)| Part::new(page * PAGE as u64, &mut into.bytes[..]))
            .collect();
        self.memory.read_many(&mut parts)?;
        let got: Vec<usize> = parts.iter().map(|part| part.got).collect();
        for ((page, mut bytes), got) in wanted.into_iter().zip(fresh).zip(got) {
            bytes.got = got;
            self.pages.insert(page, bytes);
        }
        Ok(())
    }

    /// An address in each page that was asked for so far.
    pub fn addresses(&self) -> Vec<u64> {
        self.pages.keys().map(|page| page * PAGE as u64).collect()
    }

    /// The cached bytes from `addr` to the end of its page.
    ///
    /// # Errors
    /// `EFAULT` when the page is not readable; else as [`Paged::prefetch`].
    pub fn rest_of_page(&mut self, addr: u64) -> io::Result<&[u8]> {
        let page = addr / PAGE as u64;
        if !self.pages.contains_key(&page) {
            self.prefetch([addr])?;
        }
        let offset = addr as usize % PAGE;
        match self.pages.get(&page) {
            Some(page) if offset < page.got => Ok(&page.bytes[offset..page.got]),
            _ => Err(not_mapped()),
        }
    }

    /// Reads exactly `into.len()` bytes.
    ///
    /// # Errors
    /// `EFAULT` when one of them is not readable; else as [`Paged::prefetch`].
    pub fn read_exact(&mut self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let at = addr.checked_add(done as u64).ok_or_else(not_mapped)?;
            let bytes = self.rest_of_page(at)?;
            let n = bytes.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&bytes[..n]);
            done += n;
        }
        Ok(())
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    /// As [`Paged::read_exact`].
    pub fn array<const N: usize>(&mut self, addr: u64) -> io::Result<[u8; N]> {
        let mut into = [0; N];
        self.read_exact(addr, &mut into)?;
        Ok(into)
    }

    /// Reads a little-endian 32-bit number.
    ///
    /// # Errors
    /// As [`Paged::read_exact`].
    pub fn u32(&mut self, addr: u64) -> io::Result<u32> {
        self.array(addr).map(u32::from_le_bytes)
    }

    /// Reads a string up to its NUL, without it.
    ///
    /// # Errors
    /// `InvalidData` when no NUL comes within `max` bytes; else as
    /// [`Paged::read_exact`].
    pub fn c_string(&mut self, addr: u64, max: usize) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            let at = addr.checked_add(text.len() as u64).ok_or_else(not_mapped)?;
            let bytes = self.rest_of_page(at)?;
            let end = memchr::memchr(0, bytes);
            text.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if text.len() > max {
                let why = format!("a string is longer than {max} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if end.is_some() {
                return Ok(text);
            }
        }
    }

    fn too_much(&self) -> io::Error {
        let why = format!("it is spread over more than {} KiB", self.limit * PAGE / 1024);
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::SparseMemory;
    use super::*;
    use std::cell::Cell;

    /// Counts the system calls that a real target would cost.
    struct Counting(SparseMemory, Cell<usize>);

    impl Memory for Counting {
        fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
            self.1.set(self.1.get() + 1);
            self.0.read(addr, into)
        }
    }

    fn counting(pages: usize) -> Counting {
        let mut memory = SparseMemory::new();
        let bytes: Vec<u8> = (0..pages * PAGE).map(|n| (n % 251) as u8 + 1).collect();
        memory.put(0x10000, bytes);
        Counting(memory, Cell::new(0))
    }

    #[test]
    fn a_page_is_read_once_whether_it_is_there_or_not() {
        let memory = counting(2);
        let mut paged = Paged::new(&memory, 8);
        for n in 0..100 {
            paged.u32(0x10000 + n).expect("mapped");
            paged.u32(0x90000 + n).expect_err("not mapped");
        }
        assert_eq!(memory.1.get(), 2);
        let across: [u8; 8] = paged.array(0x10ffc).expect("two mapped pages");
        assert_eq!(across[4], (4096 % 251) as u8 + 1);
    }

    #[test]
    fn the_limits_hold() {
        let memory = counting(4);
        let mut paged = Paged::new(&memory, 2);
        let why = paged.c_string(0x10000, 1 << 20).expect_err("no NUL in reach").to_string();
        assert_eq!(why, "it is spread over more than 8 KiB");
        let why = Paged::new(&memory, 9).c_string(0x10000, 100).expect_err("too long").to_string();
        assert_eq!(why, "a string is longer than 100 bytes");
        Paged::new(&memory, 2).array::<16>(u64::MAX - 3).expect_err("past the end of memory");
    }
}
