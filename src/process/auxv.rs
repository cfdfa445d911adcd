//! The auxiliary vector: what the kernel told a program about itself at exec.
//! It says whether the target is a 32-bit or 64-bit program and where the main
//! executable's program headers are.

use super::elf_mem::Class;

/// `AT_*` of `<elf.h>`.
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_ENTRY: u64 = 9;

/// The most bytes of an auxiliary vector that are read: the kernel's own limit
/// is about 50 pairs.
pub const MAX_BYTES: usize = 4096;

/// What is needed of the auxiliary vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auxv {
    /// Whether the program is a 32-bit or a 64-bit one.
    pub class: Class,
    /// `AT_PHDR`: where the program headers are in the target's memory.
    pub phdr: u64,
    /// `AT_PHNUM`: how many there are.
    pub phnum: u64,
    /// `AT_ENTRY`: where the main executable starts, after relocation.
    pub entry: u64,
}

/// Parses the bytes of `/proc/PID/auxv`. The class is the one in which
/// `AT_PHENT` says the size of its own program headers.
pub fn parse(bytes: &[u8]) -> Option<Auxv> {
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    [Class::Elf64, Class::Elf32].into_iter().find_map(|class| parse_as(class, bytes))
}

fn parse_as(class: Class, bytes: &[u8]) -> Option<Auxv> {
    let pairs = || {
        bytes
            .chunks_exact(2 * class.word())
            .map(|pair| pair.split_at(class.word()))
            .map(|(key, value)| (class.number(key), class.number(value)))
            .take_while(|(key, _)| *key != AT_NULL)
    };
    let value = |wanted| pairs().find(|(key, _)| *key == wanted).map(|(_, value)| value);
    if value(AT_PHENT)? != class.program_header() as u64 {
        return None;
    }
    Some(Auxv { class, phdr: value(AT_PHDR)?, phnum: value(AT_PHNUM)?, entry: value(AT_ENTRY)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(class: Class, pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in pairs.iter().chain(&[(AT_NULL, 0)]) {
            out.extend_from_slice(&key.to_le_bytes()[..class.word()]);
            out.extend_from_slice(&value.to_le_bytes()[..class.word()]);
        }
        out
    }

    #[test]
    fn reads_its_own() {
        let raw = std::fs::read("/proc/self/auxv").expect("own file");
        let auxv = parse(&raw).expect("own auxv");
        assert_eq!(auxv.class, Class::Elf64);
        // SAFETY: getauxval only looks a number up.
        let (phdr, entry) =
            unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_ENTRY)) };
        assert_eq!((auxv.phdr, auxv.entry), (phdr, entry));
    }

    proptest! {
        #[test]
        fn both_widths_are_told_apart(
            wide in any::<bool>(), phdr in any::<u32>(), entry in any::<u32>(), phnum in 0u64..40,
        ) {
            let class = if wide { Class::Elf64 } else { Class::Elf32 };
            let (phdr, entry) = (u64::from(phdr), u64::from(entry));
            let size = class.program_header() as u64;
            let raw = bytes(class, &[(33, 7), (AT_PHDR, phdr), (AT_PHENT, size),
                                     (AT_PHNUM, phnum), (AT_ENTRY, entry)]);
            prop_assert_eq!(parse(&raw), Some(Auxv { class, phdr, phnum, entry }));
        }

        #[test]
        fn hostile_bytes_do_not_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&raw);
        }
    }
}
