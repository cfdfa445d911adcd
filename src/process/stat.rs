//! One process in `/proc/PID/stat` and `/proc/PID/cmdline`: who it is, its
//! parent, its state, and an identity that survives the reuse of a pid. The
//! relations between processes are in `tree`.

use crate::model::Unreadable;
use std::fs::File;
use std::io::Read;

/// The most bytes of a command line that are read.
const MAX_CMDLINE: u64 = 4 << 20;

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A process that is not confused with a later one of the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The process id, in the pid namespace of our `/proc`.
    pub pid: i32,
    /// When it started, in clock ticks after boot.
    pub start_time: u64,
}

impl Identity {
    /// The process that has this pid now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: i32) -> Result<Self, Unreadable> {
        read(pid).map(|stat| stat.identity())
    }

    /// True while this very process exists, also as a zombie.
    pub fn exists(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
    }
}

/// The parts of `/proc/PID/stat` that this tool needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process id.
    pub pid: i32,
    /// The name of the main thread: at most 15 bytes, chosen by the process,
    /// so any byte but NUL may be in it.
    pub comm: Vec<u8>,
    /// The kernel's state letter: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: u8,
    /// The parent's process id; 0 for the first process of a pid namespace.
    pub ppid: i32,
    /// The process group id.
    pub pgrp: i32,
    /// The session id.
    pub session: i32,
    /// The kernel's `PF_*` flags of the main thread.
    pub flags: u64,
    /// When it started, in clock ticks after boot.
    pub start_time: u64,
}

impl Stat {
    /// The pid with the start time.
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, start_time: self.start_time }
    }

    /// True when it has exited and waits for its parent to notice.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// True when it is a part of the kernel and has no memory of its own.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }
}

/// Parses the one line of `/proc/PID/stat`. The name is everything between the
/// first `(` and the last `)`: it may hold spaces, parentheses and newlines.
pub fn parse(line: &[u8]) -> Option<Stat> {
    let open = memchr::memchr(b'(', line)?;
    let close = memchr::memrchr(b')', line).filter(|close| *close > open)?;
    let head = std::str::from_utf8(&line[..open]).ok()?;
    let rest = std::str::from_utf8(&line[close + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and the state is field 3, so field n is here n - 3.
    let field = |n: usize| fields.get(n - 3).copied();
    let &[state] = field(3)?.as_bytes() else { return None };
    Some(Stat {
        pid: head.trim().parse().ok()?,
        comm: line[open + 1..close].to_vec(),
        state,
        ppid: field(4)?.parse().ok()?,
        pgrp: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// When there is no such process.
pub fn read(pid: i32) -> Result<Stat, Unreadable> {
    let path = format!("/proc/{pid}/stat");
    let line = std::fs::read(&path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => {
            Unreadable::new(format!("process {pid}: no such process"))
        }
        _ => Unreadable::new(format!("read {path}: {error}")),
    })?;
    parse(&line).ok_or_else(|| Unreadable::new(format!("read {path}: not in the known format")))
}

/// A thread that still runs in a process whose main thread has exited. Its id
/// works wherever a pid does, and the kernel shows memory and environment of
/// such a process only under it.
pub fn living_thread(pid: i32) -> Option<i32> {
    read(pid).ok().filter(Stat::is_zombie)?;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|tid| read(*tid).is_ok_and(|stat| !stat.is_zombie()))
}

/// The arguments of a process, as raw bytes, from `/proc/PID/cmdline`. Empty
/// for a zombie and a kernel thread. A process may have written a title over
/// its arguments: then there is one entry with spaces.
///
/// # Errors
/// When there is no such process, or `/proc` is mounted with `hidepid`.
pub fn cmdline(pid: i32) -> Result<Vec<Vec<u8>>, Unreadable> {
    let path = format!("/proc/{pid}/cmdline");
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_CMDLINE).read_to_end(&mut bytes))
        .map_err(|error| super::reason::cannot_read(pid, &path, &error))?;
    Ok(split_arguments(&bytes))
}

fn split_arguments(bytes: &[u8]) -> Vec<Vec<u8>> {
    if bytes.is_empty() {
        return Vec::new();
    }
    // A title is followed by NULs up to the end of the old arguments.
    let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let end = if padding > 1 && memchr::memchr(0, bytes) == Some(bytes.len() - padding) {
        bytes.len() - padding
    } else {
        bytes.len() - padding.min(1)
    };
    bytes[..end].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        let stat = read(pid).expect("own process");
        assert_eq!(stat.pid, pid);
        assert_eq!(stat.ppid, nix::unistd::getppid().as_raw());
        assert!(!stat.is_zombie() && !stat.is_kernel_thread());
        assert!(stat.identity().exists());
        let other = Identity { start_time: stat.start_time + 1, pid };
        assert!(!other.exists(), "a pid with another start time is another process");
        let arguments = cmdline(pid).expect("own arguments");
        assert_eq!(arguments.len(), std::env::args_os().count());
    }

    #[test]
    fn arguments_keep_empty_ones_and_titles_lose_their_padding() {
        assert_eq!(split_arguments(b""), Vec::<Vec<u8>>::new());
        assert_eq!(split_arguments(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert_eq!(split_arguments(b"a\0b\0\0"), [&b"a"[..], b"b", b""]);
        assert_eq!(split_arguments(b"worker: 3 of 8\0\0\0\0"), [&b"worker: 3 of 8"[..]]);
    }

    #[test]
    fn a_missing_process_is_named() {
        let why = read(i32::MAX).expect_err("larger than any pid_max").0;
        assert_eq!(why, "process 2147483647: no such process");
    }

    proptest! {
        #[test]
        fn any_name_is_parsed(comm in proptest::collection::vec(1u8.., 0..16), start in any::<u64>()) {
            let mut line = b"77 (".to_vec();
            line.extend_from_slice(&comm);
            line.extend_from_slice(b") S 1 70 60 0 -1 4194304");
            line.extend_from_slice(&b" 0".repeat(12));
            line.extend_from_slice(format!(" {start} 0 0\n").as_bytes());
            let stat = parse(&line).expect("the kernel's format");
            prop_assert_eq!((stat.ppid, stat.pgrp, stat.session), (1, 70, 60));
            prop_assert_eq!(stat.identity(), Identity { pid: 77, start_time: start });
            prop_assert_eq!(stat.comm, comm);
        }

        #[test]
        fn hostile_bytes_do_not_panic(line in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&line);
            let _ = split_arguments(&line);
        }
    }
}
