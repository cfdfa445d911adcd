//! One line of a log and who wrote it. Other output may stand in the same file
//! and even in the same line, as when nccl-tests prints its table to the same
//! stream.

use memchr::{memchr_iter, memrchr};

/// How important NCCL finds a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Something failed, or will not work as asked for.
    Warn,
    /// Less than a warning (2.32).
    Attention,
    /// All else that `NCCL_DEBUG=INFO` shows.
    Info,
    /// `NCCL_DEBUG=TRACE`, in builds that have it.
    Trace,
}

/// What NCCL wrote in one line. All of it is text of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The time before it, as it is written (`NCCL_DEBUG_TIMESTAMP_LEVELS`;
    /// 2.26 and newer by default before warnings).
    pub time: Option<&'a [u8]>,
    /// The host. Where other output ends right before, its last word sticks to
    /// the host, unless the same process was seen before.
    pub host: &'a [u8],
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The CUDA device. -1 when none was set yet.
    pub device: i32,
    /// How important it is.
    pub level: Level,
    /// The source file, line and function, of warnings.
    pub source: &'a [u8],
    /// What it says.
    pub text: &'a [u8],
}

/// A line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// NCCL's.
    Nccl(Line<'a>),
    /// Anything else, also the further lines of a table of NCCL's that has
    /// line ends in it (the matrix of enabled algorithms).
    Plain(&'a [u8]),
}

/// All lines, without their ends and without empty ones.
pub fn lines(log: &[u8]) -> Lines<'_> {
    Lines { rest: log, seen: None }
}

/// The iterator of [`lines`].
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    rest: &'a [u8],
    /// Host and process of the last line that started at a line's start.
    seen: Option<(&'a [u8], u32)>,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let end = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
            let (bytes, rest) = self.rest.split_at(end);
            self.rest = rest.get(1..).unwrap_or_default();
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            if bytes.is_empty() {
                continue;
            }
            return Some(match split(bytes) {
                Some((mut line, glued)) => {
                    self.repair(&mut line, glued);
                    Record::Nccl(line)
                }
                None => Record::Plain(bytes),
            });
        }
    }
}

impl<'a> Lines<'a> {
    /// Takes other output off the host, when the process is a known one.
    fn repair(&mut self, line: &mut Line<'a>, glued: bool) {
        match self.seen {
            Some((host, pid)) if pid == line.pid && line.host.ends_with(host) => line.host = host,
            _ if !glued => self.seen = Some((line.host, line.pid)),
            _ => {}
        }
    }
}

const LEVELS: [(&[u8], Level); 4] = [
    (b"INFO ", Level::Info),
    (b"WARN ", Level::Warn),
    (b"ATTN ", Level::Attention),
    (b"TRACE ", Level::Trace),
];

/// Splits a line of NCCL; also says whether something stands before it.
fn split(bytes: &[u8]) -> Option<(Line<'_>, bool)> {
    const MARK: &[u8] = b" NCCL ";
    for at in memchr::memmem::find_iter(bytes, MARK) {
        let after = &bytes[at + MARK.len()..];
        let level = LEVELS.iter().find(|(word, _)| after.starts_with(word));
        let Some((word, level)) = level else { continue };
        let Some(writer) = writer(&bytes[..at]) else { continue };
        let text = &after[word.len()..];
        let Writer { time, host, pid, tid, device, source, glued } = writer;
        return Some((Line { time, host, pid, tid, device, level: *level, source, text }, glued));
    }
    None
}

struct Writer<'a> {
    time: Option<&'a [u8]>,
    host: &'a [u8],
    pid: u32,
    tid: u32,
    device: i32,
    source: &'a [u8],
    glued: bool,
}

/// Reads `host:pid:tid [device]` and the source place, backwards from the mark.
fn writer(head: &[u8]) -> Option<Writer<'_>> {
    let opens = memchr_iter(b'[', head).rev();
    opens.take(8).find_map(|open| {
        let close = open + memchr::memchr(b']', &head[open..])?;
        let device = number(&head[open + 1..close])?;
        let before = head[..open].strip_suffix(b" ")?;
        let (before, tid) = cut_number(before)?;
        let (before, pid) = cut_number(before)?;
        let start = memrchr(b' ', before).map_or(0, |space| space + 1);
        let host = &before[start..];
        let lead = head[..start].trim_ascii();
        let time = lead.strip_prefix(b"[").and_then(|lead| lead.strip_suffix(b"]"));
        let source = head[close + 1..].trim_ascii();
        let glued = time.is_none() && !lead.is_empty();
        (!host.is_empty()).then_some(Writer { time, host, pid, tid, device, source, glued })
    })
}

/// Takes `:123` off the end.
fn cut_number(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let colon = memrchr(b':', bytes)?;
    Some((&bytes[..colon], number(&bytes[colon + 1..])?))
}

fn number<N: std::str::FromStr>(bytes: &[u8]) -> Option<N> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(bytes).ok()?.parse().ok())?
}
