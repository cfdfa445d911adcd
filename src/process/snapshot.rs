//! Copies an `environ` array and its strings out of a process that keeps
//! running. The target may move, free or rewrite them at any time, so a copy
//! counts only when a second one, taken right after it, is the same.

use super::elf_mem::{Class, Target};
use super::environ::{MAX_BYTES, MAX_ENTRIES};
use super::memory::Memory;
use std::io;
use std::time::Duration;

/// How often a copy is taken at most.
const TRIES: u32 = 24;

/// How often a copy may turn out to be too large, or to have no end: an array
/// that was half rewritten looks like that too, but each try is expensive.
const OVERSIZED: u32 = 3;

/// The most pages of 4 KiB that one copy may touch: twice what the largest
/// accepted environment fills.
const MAX_PAGES: usize = 2 * MAX_BYTES / super::paged::PAGE;

/// One copy of a whole environment.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The value of `environ`: 0 after `clearenv`, and before libc started.
    pub array: u64,
    pointers: Vec<u64>,
    /// The strings in order.
    pub entries: Vec<Vec<u8>>,
}

/// Copies until two copies in a row are the same. `slot` is the address of the
/// variable `environ`, which holds the address of the array.
///
/// # Errors
/// `WouldBlock` when the environment changes too often, `EFAULT` when it leads
/// to memory that is not mapped, `InvalidData` when it is too large, else why
/// the target cannot be read.
pub fn stable(memory: &dyn Memory, class: Class, slot: u64) -> io::Result<Snapshot> {
    let mut last = None;
    let mut failed = None;
    let mut known = vec![slot];
    let mut oversized = 0;
    for attempt in 0..TRIES {
        let mut target = Target::new(memory, class, MAX_PAGES);
        // All pages of the last copy at once: the shortest time for a change
        // to fall in between, and one system call.
        target.memory.prefetch(known)?;
        match copy(&mut target, slot) {
            Ok(copy) if last.as_ref() == Some(&copy) => return Ok(copy),
            Ok(copy) => (last, failed) = (Some(copy), None),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                oversized += 1;
                if oversized == OVERSIZED {
                    return Err(error);
                }
                last = None;
            }
            Err(error) => (last, failed) = (None, Some(error)),
        }
        known = target.memory.addresses();
        if known.len() > MAX_PAGES / 2 {
            known = vec![slot];
        }
        if attempt > 0 {
            // Out of step with whatever rhythm the target has.
            std::thread::sleep(Duration::from_micros(u64::from(37 * attempt)));
        }
    }
    Err(failed.unwrap_or_else(|| {
        io::Error::new(io::ErrorKind::WouldBlock, "the environment is changing all the time")
    }))
}

/// True for an error that a changing environment cannot explain.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ESRCH | libc::EACCES | libc::ENOSYS))
}

/// Copies once, for memory that does not change.
///
/// # Errors
/// As [`stable`], but for `WouldBlock`.
pub fn once(memory: &dyn Memory, class: Class, slot: u64) -> io::Result<Snapshot> {
    copy(&mut Target::new(memory, class, MAX_PAGES), slot)
}

fn copy(target: &mut Target<'_>, slot: u64) -> io::Result<Snapshot> {
    let array = target.word(slot)?;
    let pointers = if array == 0 { Vec::new() } else { pointers(target, array)? };
    target.memory.prefetch(pointers.iter().copied())?;
    let mut left = MAX_BYTES;
    let mut entries = Vec::with_capacity(pointers.len());
    for pointer in &pointers {
        let entry = target.memory.c_string(*pointer, left)?;
        left = left.checked_sub(entry.len() + 1).ok_or_else(too_large)?;
        entries.push(entry);
    }
    Ok(Snapshot { array, pointers, entries })
}

/// The pointers of the array up to its NULL.
fn pointers(target: &mut Target<'_>, array: u64) -> io::Result<Vec<u64>> {
    let word = target.class.word() as u64;
    let mut pointers = Vec::new();
    for index in 0..=MAX_ENTRIES as u64 {
        match target.word(array.saturating_add(index * word))? {
            0 => return Ok(pointers),
            pointer => pointers.push(pointer),
        }
    }
    Err(too_large())
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, super::environ::too_large().0)
}

#[cfg(test)]
mod tests {
    use super::super::memory::SparseMemory;
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    const SLOT: u64 = 0x1000;
    const ARRAY: u64 = 0x2000;
    const STRINGS: u64 = 0x9000;

    fn environment(class: Class, entries: &[Vec<u8>]) -> SparseMemory {
        let word = |value: u64| value.to_le_bytes()[..class.word()].to_vec();
        let (mut array, mut strings) = (Vec::new(), Vec::new());
        for entry in entries {
            array.extend(word(STRINGS + strings.len() as u64));
            strings.extend_from_slice(entry);
            strings.push(0);
        }
        array.extend(word(0));
        let mut memory = SparseMemory::new();
        memory.put(SLOT, word(ARRAY)).put(ARRAY, array).put(STRINGS, strings);
        memory
    }

    /// Counts upwards in one value, as a busy target would.
    struct Busy(Cell<u32>, u32);

    impl Memory for Busy {
        fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
            if addr == SLOT {
                self.0.set(self.0.get() + 1);
            }
            let value = format!("N={}", self.0.get().min(self.1)).into_bytes();
            environment(Class::Elf64, &[value]).read(addr, into)
        }
    }

    #[test]
    fn a_busy_target_is_given_up_and_a_resting_one_is_not() {
        let snapshot = stable(&Busy(Cell::new(0), 5), Class::Elf64, SLOT).expect("rests at 5");
        assert_eq!(snapshot.entries, [b"N=5"]);
        let error = stable(&Busy(Cell::new(0), u32::MAX), Class::Elf64, SLOT).expect_err("busy");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn hostile_arrays_end() {
        let mut memory = SparseMemory::new();
        memory.put(SLOT, ARRAY.to_le_bytes()).put(ARRAY, [ARRAY.to_le_bytes(); 512].concat());
        stable(&memory, Class::Elf64, SLOT).expect_err("no NULL before the end of memory");
        // A long string that every entry points to.
        let count = 200_000usize;
        let array = [STRINGS.to_le_bytes().repeat(count), vec![0; 8]].concat();
        let strings = STRINGS + 0x40_0000;
        let array = array.chunks(8).flat_map(|word| {
            if word == [0; 8] { word.to_vec() } else { strings.to_le_bytes().to_vec() }
        });
        let mut memory = SparseMemory::new();
        memory.put(SLOT, ARRAY.to_le_bytes()).put(ARRAY, array.collect::<Vec<u8>>());
        memory.put(strings, [vec![b'x'; 4000], vec![0]].concat());
        let error = stable(&memory, Class::Elf64, SLOT).expect_err("800 MB of strings");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn copies_what_is_there(
            wide in any::<bool>(),
            entries in proptest::collection::vec(proptest::collection::vec(1u8.., 0..3000), 0..6),
        ) {
            let class = if wide { Class::Elf64 } else { Class::Elf32 };
            let memory = environment(class, &entries);
            let snapshot = stable(&memory, class, SLOT).expect("well-formed");
            prop_assert_eq!(snapshot.entries, entries);
        }
    }
}
