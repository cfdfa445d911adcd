//! What a launcher prints, however much that is: the lines with frames, and
//! the end of the rest.

use super::failure;
use super::frame::MARK;
use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most bytes of framed lines that are kept.
const MAX_FRAMES: usize = 64 << 20;
/// A longer line is no framed one, in bytes.
const LONGEST_LINE: usize = 8 << 10;
/// How much of the end is kept, in bytes.
const TAIL: usize = 16 << 10;

#[derive(Default)]
struct Kept {
    frames: Vec<u8>,
    tail: Vec<u8>,
    line: Vec<u8>,
}

/// A stream that is being read.
pub(super) struct Transcript {
    kept: Arc<Mutex<Kept>>,
    ended: Receiver<()>,
}

impl Transcript {
    /// Reads a stream to its end in a thread of its own; what cannot be read is
    /// as good as nothing.
    pub(super) fn follow(mut stream: impl Read + Send + 'static) -> Self {
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let (tell, ended) = channel();
        let into = Arc::clone(&kept);
        let reader = move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                lock(&into).add(&buffer[..count]);
            }
            lock(&into).end_line();
            // Nobody may be waiting for the end.
            let _ = tell.send(());
        };
        // Without a thread the launcher's output is not seen, and it says so
        // itself: no probe reported.
        let _ = thread::Builder::new().name("transcript".into()).spawn(reader);
        Self { kept, ended }
    }

    /// Waits for the end of the stream, which somebody in the background may
    /// hold open.
    pub(super) fn settle(&self, limit: Duration) {
        let _ = self.ended.recv_timeout(limit);
    }

    /// The lines with frames so far.
    pub(super) fn frames(&self) -> Vec<u8> {
        lock(&self.kept).frames.clone()
    }

    /// Its last words, when there are some.
    pub(super) fn last_words(&self) -> Option<String> {
        failure::last_words(&lock(&self.kept).tail)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
        if self.tail.len() > 2 * TAIL {
            self.tail.drain(..self.tail.len() - TAIL);
        }
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() < LONGEST_LINE {
                self.line.extend_from_slice(&part[..part.len().min(LONGEST_LINE)]);
            }
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let framed = memchr::memmem::find(&self.line, MARK.as_bytes()).is_some();
        if framed && self.frames.len() + self.line.len() < MAX_FRAMES {
            self.frames.append(&mut self.line);
            self.frames.push(b'\n');
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_a_flood_and_the_end_is_kept() {
        let mut kept = Kept::default();
        kept.add(b"rank 0: @nccldiag:t:s:0:");
        kept.add(b"1:00@\n");
        for _ in 0..1000 {
            kept.add(&[b'x'; 4096]);
        }
        kept.add(b"\nlast\n");
        assert_eq!(kept.frames, b"rank 0: @nccldiag:t:s:0:1:00@\n\n");
        assert!(kept.tail.ends_with(b"last\n") && kept.tail.len() <= 2 * TAIL);
        assert!(kept.line.is_empty());
    }
}
