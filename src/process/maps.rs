//! The memory map of a process, from `/proc/PID/maps`, and opening the very
//! file that a mapping shows, also when it is deleted or in another mount
//! namespace. What is in the file is not looked at here.

use super::reason;
use crate::model::Unreadable;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// The most bytes of `/proc/PID/maps` that are read: about a million mappings,
/// far over the kernel's default limit of 65530.
const MAX_BYTES: u64 = 128 << 20;

const DELETED: &[u8] = b" (deleted)";

/// What a mapping allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Perms {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub exec: bool,
    /// `s`; otherwise `p`, a private copy.
    pub shared: bool,
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// What it allows.
    pub perms: Perms,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device.
    pub dev: (u32, u32),
    /// The inode; 0 for memory without a file.
    pub inode: u64,
    /// The path as the kernel prints it, without ` (deleted)`; names such as
    /// `[heap]` for memory without a file; often empty. Hostile: any byte but
    /// NUL and newline; a newline in the name is printed as `\012`.
    pub path: Vec<u8>,
    /// The file's name is gone (or really ends in ` (deleted)`: the kernel
    /// does not tell these apart).
    pub deleted: bool,
}

impl Mapping {
    /// True when a file is mapped.
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.first() == Some(&b'/')
    }

    /// True when the address lies in it.
    pub fn contains(&self, addr: u64) -> bool {
        (self.start..self.end).contains(&addr)
    }
}

/// Parses one line, with or without its newline.
pub fn parse_line(line: &[u8]) -> Option<Mapping> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = text()?.split_once('-')?;
    let perms = text()?.as_bytes();
    let offset = hex(text()?)?;
    let (major, minor) = text()?.split_once(':')?;
    let inode = text()?.parse().ok()?;
    let padded = fields.next().unwrap_or_default();
    // The kernel pads with spaces up to the name; file paths start with '/',
    // so a name cannot begin with a space.
    let path = padded.trim_ascii_start();
    let kept = path.strip_suffix(DELETED);
    let &[read, write, exec, shared] = perms else { return None };
    let (start, end) = (hex(start)?, hex(end)?);
    (start <= end).then(|| Mapping {
        start,
        end,
        perms: Perms {
            read: read == b'r',
            write: write == b'w',
            exec: exec == b'x',
            shared: shared == b's',
        },
        offset,
        dev: (small_hex(major).unwrap_or_default(), small_hex(minor).unwrap_or_default()),
        inode,
        path: kept.unwrap_or(path).to_vec(),
        deleted: kept.is_some(),
    })
}

fn hex(text: &str) -> Option<u64> {
    // from_str_radix would take a sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

fn small_hex(text: &str) -> Option<u32> {
    u32::try_from(hex(text)?).ok()
}

/// Parses a whole map. Lines in no known format are left out.
pub fn parse(bytes: &[u8]) -> Vec<Mapping> {
    bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// The memory map of a process, in the order of addresses. Empty for a zombie
/// and a kernel thread.
///
/// # Errors
/// No such process, or another user's.
pub fn maps(pid: i32) -> Result<Vec<Mapping>, Unreadable> {
    Ok(parse(&read(pid)?))
}

/// Only the mappings whose line contains one of these texts, which is much
/// cheaper when most processes have none.
///
/// # Errors
/// As [`maps`].
pub fn naming(pid: i32, names: &[&[u8]]) -> Result<Vec<Mapping>, Unreadable> {
    let bytes = read(pid)?;
    let finders: Vec<_> = names.iter().map(memchr::memmem::Finder::new).collect();
    let named = |text: &[u8]| finders.iter().any(|finder| finder.find(text).is_some());
    if !named(&bytes) {
        return Ok(Vec::new());
    }
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| named(line))
        .filter_map(parse_line)
        .collect())
}

fn read(pid: i32) -> Result<Vec<u8>, Unreadable> {
    let path = format!("/proc/{pid}/maps");
    // Room for most maps: the kernel walks the whole map anew in each read.
    let mut bytes = Vec::with_capacity(64 << 10);
    File::open(&path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|error| reason::cannot_read(pid, &path, &error))?;
    Ok(bytes)
}

/// Opens the file that a mapping shows: through `/proc/PID/map_files`, which
/// needs `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE` but also reaches deleted
/// files, then by its path in the process's root, then by its path in ours.
/// By path only the same device and inode are accepted.
///
/// # Errors
/// The error of the last way; `NotFound` when the paths lead to other files.
pub fn open_mapped(pid: i32, mapping: &Mapping) -> io::Result<File> {
    if !mapping.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the mapping shows no file"));
    }
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(file) = open_regular(link.into()) {
        // The kernel's own link to the mapped file: nothing to compare.
        return Ok(file);
    }
    let mut last =
        io::Error::new(io::ErrorKind::NotFound, "no file of this name is the mapped one");
    for path in names(pid, mapping) {
        match open_regular(path) {
            Ok(file) if is_same(&file, mapping)? => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The paths under which the mapped file may be found, the likely ones first.
fn names(pid: i32, mapping: &Mapping) -> Vec<PathBuf> {
    let mut spellings = vec![mapping.path.clone()];
    if mapping.deleted {
        spellings.push([&mapping.path[..], DELETED].concat());
    }
    // A newline is printed as \012, and so is a literal "\012".
    let plain = replace_escaped_newlines(&mapping.path);
    if plain != mapping.path {
        spellings.push(plain);
    }
    let in_root = |path: &Vec<u8>| [format!("/proc/{pid}/root").as_bytes(), path].concat();
    let roots: Vec<Vec<u8>> = spellings.iter().map(in_root).collect();
    roots
        .into_iter()
        .chain(spellings)
        .map(|path| std::ffi::OsString::from_vec(path).into())
        .collect()
}

fn replace_escaped_newlines(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut done = 0;
    for at in memchr::memmem::find_iter(path, b"\\012") {
        out.extend_from_slice(&path[done..at]);
        out.push(b'\n');
        done = at + 4;
    }
    out.extend_from_slice(&path[done..]);
    out
}

/// Opens a regular file for reading. Anything else is refused before it is
/// really opened: opening a device or a pipe can do or block things.
fn open_regular(path: PathBuf) -> io::Result<File> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !handle.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// True when the file is the mapped one. On overlayfs and btrfs `stat` reports
/// another device or inode than the memory map; then the file is mapped here
/// too, without touching a byte of it, and the two lines are compared.
fn is_same(file: &File, mapping: &Mapping) -> io::Result<bool> {
    let status = file.metadata()?;
    let dev = (libc::major(status.dev()), libc::minor(status.dev()));
    if status.ino() == mapping.inode && dev == mapping.dev {
        return Ok(true);
    }
    let view = memmap2::MmapOptions::new().len(1).map_raw_read_only(file)?;
    let address = view.as_ptr() as u64;
    let own = maps(std::process::id() as i32).map_err(io::Error::other)?;
    Ok(own
        .iter()
        .find(|own| own.contains(address))
        .is_some_and(|own| (own.dev, own.inode) == (mapping.dev, mapping.inode)))
}

#[cfg(test)]
mod tests {
    use super::super::targets::{Program, as_nobody, c_program};
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str) -> Mapping {
        parse_line(text.as_bytes()).expect("well-formed")
    }

    #[test]
    fn reads_the_kernels_lines() {
        let lib = line("7f00-8000 r-xp 0001a000 fd:1f 4242    /lib/a b.so (deleted)\n");
        assert_eq!((lib.start, lib.end, lib.offset, lib.inode), (0x7f00, 0x8000, 0x1a000, 4242));
        assert_eq!((lib.dev, lib.deleted), ((0xfd, 0x1f), true));
        assert_eq!(lib.path, b"/lib/a b.so");
        let expected = Perms { read: true, exec: true, ..Perms::default() };
        assert_eq!(lib.perms, expected);
        let stack = line("7ffc0-7ffd0 rw-p 00000000 00:00 0          [stack]");
        assert_eq!((&stack.path[..], stack.is_file()), (&b"[stack]"[..], false));
        assert_eq!(line("1000-2000 ---p 00000000 00:00 0 ").path, b"");
        for bad in ["", "1000", "2000-1000 r--p 0 0:0 0", "+1-2 r--p 0 0:0 0", "1-2 r-p 0 0:0 0"] {
            assert_eq!(parse_line(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn escaped_newlines() {
        assert_eq!(replace_escaped_newlines(b"/a\\012b\\012"), b"/a\nb\n");
        assert_eq!(replace_escaped_newlines(b"/a\\01"), b"/a\\01");
    }

    fn of_program(program: &Program) -> impl Fn(&Mapping) -> bool {
        let name = program.path.file_name().expect("a file").as_encoded_bytes().to_vec();
        move |mapping: &Mapping| mapping.path.ends_with(&name)
    }

    fn first_bytes(file: io::Result<File>) -> io::Result<[u8; 4]> {
        let mut bytes = [0; 4];
        file?.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn opens_the_mapped_file_and_no_other() {
        let Some(program) = c_program("int main(void) { ready(); rest(); }", &[]) else { return };
        let target = program.start(&[]);
        let find = || maps(target.pid()).expect("readable").into_iter().find(of_program(&program));
        let mapping = find().expect("its own file");
        let opened = first_bytes(open_mapped(target.pid(), &mapping)).expect("the file is there");
        assert_eq!(&opened, b"\x7fELF");
        // By path too: another user cannot follow map_files.
        let own = maps(std::process::id() as i32).expect("own map");
        let libc = own.iter().find(|m| m.path.windows(5).any(|part| part == b"libc.")).cloned();
        if let Some(libc) = libc {
            as_nobody(|| {
                let opened = first_bytes(open_mapped(std::process::id() as i32, &libc));
                assert_eq!(&opened.expect("libc is readable for all"), b"\x7fELF");
            });
        }
        // Another file takes the name.
        std::fs::remove_file(&program.path).expect("our own file");
        std::fs::write(&program.path, "an impostor").expect("our own file");
        assert!(find().expect("still mapped").deleted);
        match first_bytes(open_mapped(target.pid(), &mapping)) {
            Ok(bytes) => assert_eq!(&bytes, b"\x7fELF", "through map_files"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }

    #[test]
    fn devices_and_pipes_are_not_opened() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        open_regular(pipe).expect_err("would block for ever");
        open_regular("/dev/null".into()).expect_err("a device");
    }

    #[test]
    fn a_file_is_recognised_by_mapping_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "x").expect("a small file");
        let file = File::open(&path).expect("our own file");
        let view = memmap2::MmapOptions::new().len(1).map_raw_read_only(&file).expect("mapped");
        let own = maps(std::process::id() as i32).expect("own map");
        let mut mapping =
            own.into_iter().find(|m| m.contains(view.as_ptr() as u64)).expect("just mapped");
        assert!(is_same(&file, &mapping).expect("comparable"));
        mapping.inode += 1;
        assert!(!is_same(&file, &mapping).expect("comparable"));
    }

    proptest! {
        #[test]
        fn any_name_comes_back(
            start in any::<u32>(), size in any::<u32>(), offset in any::<u64>(),
            major in any::<u32>(), minor in any::<u32>(), inode in 1u64..,
            name in proptest::collection::vec(any::<u8>().prop_filter("printed as it is", |b| !matches!(b, 0 | b'\n')), 0..40),
            deleted in any::<bool>(),
        ) {
            let (start, end) = (u64::from(start), u64::from(start) + u64::from(size));
            let path = [b"/", &name[..], b"x"].concat();
            let mut text = format!("{start:08x}-{end:08x} rw-s {offset:08x} {major:02x}:{minor:02x} {inode}").into_bytes();
            text.resize(text.len().max(72), b' ');
            text.push(b' ');
            text.extend_from_slice(&path);
            text.extend_from_slice(if deleted { DELETED } else { b"" });
            let perms = Perms { read: true, write: true, exec: false, shared: true };
            let dev = (major, minor);
            let mapping = Mapping { start, end, perms, offset, dev, inode, path, deleted };
            prop_assert_eq!(parse(&text), vec![mapping]);
        }

        #[test]
        fn hostile_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for mapping in parse(&bytes) {
                prop_assert!(mapping.start <= mapping.end);
            }
        }
    }
}
