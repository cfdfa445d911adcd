//! Finding the variable in made-up processes: every width and table, and
//! images with random damage.

use super::auxv::Auxv;
use super::elf_mem::{Class, Target, executable};
use super::fake_elf::{self, Image, LIBRARY, LINKER, Options};
use super::memory::SparseMemory;
use super::slot::{Found, Source, in_objects};
use super::snapshot::stable;
use proptest::prelude::*;

const ENTRIES: [&str; 3] = ["NCCL_ALGO=Ring", "", "NCCL_ALGO=Tree"];

fn memory(image: &Image) -> SparseMemory {
    let mut memory = SparseMemory::new();
    for (at, bytes) in &image.pieces {
        memory.put(*at, bytes.clone());
    }
    memory
}

fn auxv(options: Options, image: &Image) -> Auxv {
    let class = if options.wide { Class::Elf64 } else { Class::Elf32 };
    Auxv { class, phdr: image.phdr, phnum: image.phnum, entry: image.entry }
}

fn find(memory: &SparseMemory, auxv: &Auxv) -> std::io::Result<Found> {
    let mut target = Target::new(memory, auxv.class, 64);
    let executable = executable(&mut target, auxv)?;
    in_objects(&mut target, &executable)
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 4]>().prop_map(|[wide, gnu_hash, relocated, copied]| Options {
        wide,
        gnu_hash,
        relocated,
        copied,
    })
}

const GLIBC: Options = Options { wide: true, gnu_hash: true, relocated: true, copied: false };

#[test]
fn a_ring_of_objects_ends() {
    let mut image = fake_elf::image(GLIBC, &ENTRIES);
    // The library's successor is the library, whose variable has no name now.
    image.pieces[2].1[0x218..0x220].copy_from_slice(&(LINKER + 0x200).to_le_bytes());
    image.pieces[1].1[0x700..0x720].fill(b'x');
    assert_eq!(find(&memory(&image), &auxv(GLIBC, &image)).expect("readable"), Found::NoLibc);
}

#[test]
fn a_linker_that_has_not_run() {
    let mut image = fake_elf::image(GLIBC, &ENTRIES);
    image.pieces[2].1[8..16].fill(0);
    assert_eq!(find(&memory(&image), &auxv(GLIBC, &image)).expect("readable"), Found::NotStarted);
}

#[test]
fn an_unloaded_object_hides_no_other() {
    let mut image = fake_elf::image(GLIBC, &ENTRIES);
    // The executable's hash table points to nowhere.
    let table = image.pieces[0].1[0x308..0x310].as_mut();
    table.copy_from_slice(&(LIBRARY - 0x10_0000).to_le_bytes());
    assert!(matches!(find(&memory(&image), &auxv(GLIBC, &image)), Ok(Found::Slot(_))));
}

proptest! {
    #[test]
    fn every_kind_of_image_is_read(options in options()) {
        let image = fake_elf::image(options, &ENTRIES);
        let (memory, auxv) = (memory(&image), auxv(options, &image));
        let Ok(Found::Slot(slot)) = find(&memory, &auxv) else {
            return Err(TestCaseError::fail("not found"));
        };
        prop_assert_eq!(slot.address, image.slot);
        let library = Source::Library(b"/lib/libc.so.6".to_vec());
        prop_assert_eq!(slot.source, if options.copied { Source::Executable } else { library });
        let snapshot = stable(&memory, auxv.class, slot.address).expect("well-formed");
        prop_assert_eq!(snapshot.entries, ENTRIES.map(|entry| entry.as_bytes().to_vec()));
    }

    #[test]
    fn damage_does_not_panic(
        options in options(),
        damage in proptest::collection::vec((0usize..4, 0usize..0xb00, any::<u8>()), 1..8),
    ) {
        let mut image = fake_elf::image(options, &ENTRIES);
        for (piece, at, byte) in damage {
            if let Some(slot) = image.pieces[piece].1.get_mut(at) {
                *slot = byte;
            }
        }
        let _ = find(&memory(&image), &auxv(options, &image));
    }
}
