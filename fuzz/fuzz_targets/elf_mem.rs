//! Looks `environ` up in a made-up process image whose bytes the fuzzer
//! changes: the first byte chooses the kind of image, then each six bytes put
//! four new bytes somewhere into one of its pieces.
#![no_main]

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../src/process/fake_elf.rs"]
mod fake_elf;

use fake_elf::Options;
use libfuzzer_sys::fuzz_target;
use nccldiag::process::auxv::Auxv;
use nccldiag::process::elf_mem::{Class, Target, executable};
use nccldiag::process::memory::SparseMemory;
use nccldiag::process::slot::{Found, has_started, in_objects};
use nccldiag::process::snapshot::once;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, changes)) = data.split_first() else { return };
    let bit = |n: u8| kind >> n & 1 == 1;
    let options = Options { wide: bit(0), gnu_hash: bit(1), relocated: bit(2), copied: bit(3) };
    let mut image = fake_elf::image(options, &["NCCL_ALGO=Ring", "X=1"]);
    for change in changes.chunks_exact(6) {
        let place = u16::from_le_bytes([change[0], change[1]]);
        let bytes = &mut image.pieces[usize::from(place >> 14)].1;
        let at = usize::from(place & 0x3fff) % bytes.len();
        let end = bytes.len().min(at + 4);
        bytes[at..end].copy_from_slice(&change[2..2 + end - at]);
    }
    let mut memory = SparseMemory::new();
    for (at, bytes) in image.pieces {
        memory.put(at, bytes);
    }
    let class = if options.wide { Class::Elf64 } else { Class::Elf32 };
    let auxv = Auxv { class, phdr: image.phdr, phnum: image.phnum, entry: image.entry };
    let mut target = Target::new(&memory, class, 64);
    let Ok(executable) = executable(&mut target, &auxv) else { return };
    let _ = has_started(&mut target, &executable);
    if let Ok(Found::Slot(slot)) = in_objects(&mut target, &executable) {
        let _ = once(&memory, class, slot.address);
    }
});
