//! The few things that `xray` needs of another process: its file mappings, the
//! files behind them, and words of its memory. All knowledge of `/proc` that
//! `xray` has is in this file.

use crate::model::Unreadable;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// More than the kernel's default limit of 65530 mappings takes.
const MAPS_LIMIT: u64 = 64 << 20;

/// The most pieces that Linux takes in one vectored read.
const IOV_MAX: usize = 1024;

/// One line of `/proc/PID/maps` that shows a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) exec: bool,
    pub(super) offset: u64,
    pub(super) dev: (u32, u32),
    pub(super) inode: u64,
    pub(super) path: PathBuf,
    pub(super) deleted: bool,
}

/// All file mappings of a process, by address.
pub(super) fn file_mappings(pid: i32) -> Result<Vec<Mapping>, Unreadable> {
    let path = format!("/proc/{pid}/maps");
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAPS_LIMIT).read_to_end(&mut bytes))
        .map_err(|error| Unreadable::new(format!("read {path}: {}", plain(&error))))?;
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    const DELETED: &[u8] = b" (deleted)";
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, end) = text()?.split_once('-')?;
    let exec = text()?.as_bytes().get(2) == Some(&b'x');
    let offset = hex(text()?)?;
    let (major, minor) = text()?.split_once(':')?;
    let inode = text()?.parse().ok()?;
    let path = fields.next()?.trim_ascii_start();
    let kept = path.strip_suffix(DELETED);
    path.starts_with(b"/").then_some(())?;
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        exec,
        offset,
        dev: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        path: Path::new(OsStr::from_bytes(kept.unwrap_or(path))).into(),
        deleted: kept.is_some(),
    })
}

/// Opens the very file that is mapped: by the kernel's own link (needs a
/// capability), else by name in the process's root and then in ours, where
/// only the same device and inode are accepted.
pub(super) fn open_mapped(pid: i32, mapping: &Mapping) -> io::Result<File> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(file) = open(Path::new(&link)) {
        return Ok(file);
    }
    let mut in_root = PathBuf::from(format!("/proc/{pid}/root"));
    in_root.push(mapping.path.strip_prefix("/").unwrap_or(&mapping.path));
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in [&in_root, &mapping.path] {
        match open(path) {
            Ok(file) if is_mapped_file(&file, mapping)? => return Ok(file),
            Ok(_) => last = io::Error::other("another file has its name now"),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn is_mapped_file(file: &File, mapping: &Mapping) -> io::Result<bool> {
    let meta = file.metadata()?;
    let dev = (libc::major(meta.dev()), libc::minor(meta.dev()));
    Ok(meta.ino() == mapping.inode && dev == mapping.dev)
}

/// Reads `N` bytes at each address, in as few system calls as possible. `None`
/// where the process has no readable memory.
pub(super) fn read_each<const N: usize>(
    pid: i32,
    addresses: &[u64],
) -> Result<Vec<Option<[u8; N]>>, Unreadable> {
    let mut values = Vec::with_capacity(addresses.len());
    while values.len() < addresses.len() {
        let left = &addresses[values.len()..];
        let batch = &left[..left.len().min(IOV_MAX)];
        let mut bytes = vec![0u8; N * batch.len()];
        let got = match read_batch(pid, batch, N, &mut bytes) {
            Ok(got) => got / N,
            Err(Errno::EFAULT) => 0,
            Err(errno) => {
                let why = plain(&io::Error::from(errno));
                return Err(Unreadable::new(format!("process_vm_readv of {pid}: {why}")));
            }
        };
        values.extend(bytes.as_chunks::<N>().0[..got.min(batch.len())].iter().map(|v| Some(*v)));
        if got < batch.len() {
            values.push(None); // this one stopped the kernel; go on behind it
        }
    }
    Ok(values)
}

fn read_batch(pid: i32, at: &[u64], size: usize, into: &mut [u8]) -> Result<usize, Errno> {
    let piece = |base: &u64| {
        let base = usize::try_from(*base).map_err(|_| Errno::EFAULT)?;
        Ok(RemoteIoVec { base, len: size })
    };
    let remote = at.iter().map(piece).collect::<Result<Vec<_>, Errno>>()?;
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(into)], &remote)
}

/// An error in the words that help most.
fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => "no such process".into(),
        Some(libc::EPERM | libc::EACCES) => "permission denied: another user's process, one \
             that made itself not dumpable, or kernel.yama.ptrace_scope; needs root or \
             CAP_SYS_PTRACE"
            .into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_deleted_library_is_parsed() {
        let line =
            b"7f1000200000-7f1018a51000 r-xp 00200000 fe:01 4242   /a b/libnccl.so.2 (deleted)";
        let mapping = parse_line(line).expect("a well-formed line");
        assert_eq!(mapping.start, 0x7f10_0020_0000);
        assert_eq!(mapping.offset, 0x20_0000);
        assert_eq!(mapping.dev, (0xfe, 1));
        assert_eq!(mapping.inode, 4242);
        assert_eq!(mapping.path, Path::new("/a b/libnccl.so.2"));
        assert!(mapping.exec && mapping.deleted);
        assert_eq!(parse_line(b"7f1-7f2 rw-p 00000000 00:00 0  [heap]"), None);
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn own_words_are_read_around_a_hole() {
        let words: Vec<u64> = (0..2500).collect();
        let mut addresses: Vec<u64> =
            words.iter().map(|word| std::ptr::from_ref(word).addr() as u64).collect();
        addresses[7] = 8;
        addresses[2499] = u64::MAX;
        let pid = std::process::id().cast_signed();
        let read = read_each::<8>(pid, &addresses).expect("own memory is readable");
        assert_eq!(read.len(), words.len());
        for (at, value) in read.iter().enumerate() {
            let expected = (at != 7 && at != 2499).then(|| (at as u64).to_ne_bytes());
            assert_eq!(*value, expected, "word {at}");
        }
    }
}
