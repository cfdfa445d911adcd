//! Redirects the entries of the CUDA runtime inside the loaded libnccl: five
//! bytes at each entry become a jump to a page nearby, from where the jump goes
//! on to our function. All of it is in this process's private memory; the file
//! is not written. Functions without an implementation go to a stub that
//! remembers their names.

use super::description::Function;
use super::errors::{self, Code};
use super::{InstallError, sys, table};
use std::sync::OnceLock;

/// A `jmp rel32`.
const JUMP: usize = 5;
/// One slot of the page nearby: the longer of the two forms, aligned.
const SLOT: usize = 32;
/// A relative jump reaches 2 GiB; half of it leaves room for the library.
const REACH: usize = 1 << 30;

/// The names of the functions that go to the stub, by slot.
static STUBS: OnceLock<Vec<String>> = OnceLock::new();

/// How many entries were redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// To a function of ours.
    pub implemented: usize,
    /// To the stub.
    pub stubs: usize,
}

/// The stub: `slot` is put into the first argument by its trampoline.
extern "C" fn stub(slot: usize) -> Code {
    let name = STUBS.get().and_then(|names| names.get(slot));
    errors::unimplemented(name.map_or("a CUDA function", String::as_str))
}

/// Redirects all entries of the library at `base`.
///
/// # Errors
/// [`InstallError`]; then nothing was changed, except for `Protect` in the
/// middle of the work.
///
/// # Safety
/// The entries are functions of the library at `base`, and nothing runs or
/// has run any of them.
pub(super) unsafe fn redirect(
    base: usize,
    entries: &[Function],
) -> Result<Redirected, InstallError> {
    if let Some(short) = entries.iter().find(|entry| entry.size < JUMP) {
        return Err(InstallError::TooShort(short.name.clone()));
    }
    let offsets = || entries.iter().map(|entry| entry.offset);
    let (Some(low), Some(high)) = (offsets().min(), offsets().max()) else {
        return Err(InstallError::NoEntries);
    };
    let page = trampolines(base + low, base + high, entries.len() * SLOT)?;
    let (bytes, names) = build(entries);
    // SAFETY: new pages of exactly this size or more, writable.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.at as *mut u8, bytes.len()) };
    let redirected = Redirected { implemented: entries.len() - names.len(), stubs: names.len() };
    STUBS.set(names).map_err(|_| InstallError::AlreadyInstalled)?;
    // SAFETY: nothing jumps there yet, and nothing writes there any more.
    unsafe { protect(page.at, page.bytes, sys::PROT_READ | sys::PROT_EXEC) }?;
    let start = (base + low) & !(sys::PAGE - 1);
    let length = (base + high + JUMP).next_multiple_of(sys::PAGE) - start;
    // SAFETY: the caller promises that nothing runs this code meanwhile.
    unsafe { protect(start, length, sys::PROT_READ | sys::PROT_WRITE) }?;
    for (index, entry) in entries.iter().enumerate() {
        // SAFETY: writable now, and the function has at least five bytes.
        unsafe { write_jump(base + entry.offset, page.at + index * SLOT) };
    }
    // SAFETY: as it was before.
    unsafe { protect(start, length, sys::PROT_READ | sys::PROT_EXEC) }?;
    std::mem::forget(page); // the library jumps there until the process ends
    Ok(redirected)
}

/// # Safety
/// As [`sys::protect`].
unsafe fn protect(at: usize, bytes: usize, protection: i32) -> Result<(), InstallError> {
    // SAFETY: the caller's promise.
    unsafe { sys::protect(at, bytes, protection) }
        .map_err(|error| InstallError::Forbidden(error.to_string()))
}

/// The code of all slots, and the names of those that are stubs.
fn build(entries: &[Function]) -> (Vec<u8>, Vec<String>) {
    let mut code = Vec::with_capacity(entries.len() * SLOT);
    let mut names = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let to = match table::find(&entry.name) {
            Some(function) => function,
            None => {
                code.extend([0x48, 0xbf]); // mov rdi, imm64
                code.extend((names.len() as u64).to_le_bytes());
                names.push(entry.name.clone());
                stub as *const ()
            }
        };
        code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp [rip + 0]
        code.extend((to.addr() as u64).to_le_bytes());
        code.resize((index + 1) * SLOT, 0xcc); // int3
    }
    (code, names)
}

/// # Safety
/// Five bytes at `from` are writable, and `to` is within 2 GiB.
unsafe fn write_jump(from: usize, to: usize) {
    let distance = to.wrapping_sub(from + JUMP) as u32;
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), from as *mut u8, JUMP) };
}

/// Maps pages in the free gap that is nearest to the library.
fn trampolines(low: usize, high: usize, bytes: usize) -> Result<sys::Pages, InstallError> {
    let bytes = bytes.next_multiple_of(sys::PAGE);
    let maps = std::fs::read("/proc/self/maps")
        .map_err(|error| InstallError::Forbidden(format!("read /proc/self/maps: {error}")))?;
    let mut gaps = free_places(&String::from_utf8_lossy(&maps), bytes, low, high);
    gaps.sort_by_key(|&at| at.abs_diff(high));
    // Somebody else may take a gap meanwhile: try the next.
    let found = gaps.into_iter().take(64).find_map(|at| sys::map_free(at, bytes).ok());
    found.ok_or(InstallError::NoRoom)
}

/// Both ends of every gap that is large enough and near enough.
fn free_places(maps: &str, bytes: usize, low: usize, high: usize) -> Vec<usize> {
    let (first, last) = (high.saturating_sub(REACH), low.saturating_add(REACH));
    let mut places = Vec::new();
    let mut end_before = 0x1_0000;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) else { continue };
        if start.saturating_sub(end_before) >= bytes {
            places.extend([end_before, start - bytes]);
        }
        end_before = end_before.max(end);
    }
    places.retain(|&at| at >= first && at + bytes <= last);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_found_within_reach_only() {
        let maps = "00400000-00500000 r-xp 00000000 00:00 0 /a b\n\
                    7f0000000000-7f0000010000 r--p 0 0:0 0\n\
                    7f0000020000-7f0000030000 r-xp 0 0:0 0 /lib\n";
        let places = free_places(maps, 0x4000, 0x7f00_0002_0000, 0x7f00_0002_f000);
        assert_eq!(places, [0x7f00_0000_0000 - 0x4000, 0x7f00_0001_0000, 0x7f00_0001_c000]);
        assert!(free_places(maps, 0x20000, 0x7f00_0002_0000, 0x7f00_0002_f000).len() == 1);
    }

    #[test]
    fn a_system_that_forbids_it_is_named() {
        // SAFETY: nothing is mapped at the first page, so nothing changes.
        let error = unsafe { protect(0, sys::PAGE, sys::PROT_READ) }.unwrap_err();
        assert!(error.to_string().contains("forbids changing the library's code"), "{error}");
    }

    #[test]
    fn known_names_get_a_jump_and_unknown_ones_a_stub() {
        let function = |name: &str| Function { offset: 0, size: 5, name: name.to_owned() };
        let (code, names) = build(&[function("cudaMalloc_ptsz"), function("cudaGetExportTable")]);
        assert_eq!(names, ["cudaGetExportTable"]);
        assert_eq!(code.len(), 2 * SLOT);
        assert_eq!((&code[..2], &code[SLOT..SLOT + 2]), (&[0xff, 0x25][..], &[0x48, 0xbf][..]));
    }
}
