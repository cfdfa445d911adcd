//! The driver's end of the socket: accepts probes and parents, learns their
//! process ids from the kernel, and hands each to the launch that waits for it.

use crate::probes::channel::{RELEASE, Reachable, read_message};
use crate::probes::wire::Fields;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt::PeerCredentials};
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A process that reported. It stays alive until it is released; dropping this
/// ends it.
pub struct Arrival {
    /// Its process id in our namespace.
    pub pid: i32,
    /// What it said.
    pub fields: Fields,
    stream: UnixStream,
}

impl Arrival {
    /// The process still holds its end: its id was not given to another one.
    pub fn is_there(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        !matches!(recv(self.stream.as_raw_fd(), &mut [0], flags), Ok(0) | Err(Errno::ECONNRESET))
    }

    /// Lets the process go on to its normal end.
    pub fn release(mut self) {
        // A process that is gone needs no release.
        let _ = self.stream.write_all(&[RELEASE]);
    }
}

type Waiting = Arc<Mutex<HashMap<String, Sender<Arrival>>>>;

/// The listening end.
pub struct Hub {
    waiting: Waiting,
}

impl Hub {
    /// Binds the socket and starts to accept.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(socket: &Path) -> Result<Self> {
        let listener = Reachable::new(socket)
            .and_then(|short| UnixListener::bind(short.path()))
            .with_context(|| format!("listen on {}", socket.display()))?;
        let waiting = Waiting::default();
        let shared = Arc::clone(&waiting);
        let accept = move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // Out of descriptors, most likely: others will be closed.
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                let shared = Arc::clone(&shared);
                // A connection that says nothing must not keep others waiting.
                // Without a thread for it, it is closed, which ends the probe.
                let one = thread::Builder::new().name("arrival".into());
                let _ = one.spawn(move || receive(stream, &shared));
            }
        };
        let acceptor = thread::Builder::new().name("hub".into());
        acceptor.spawn(accept).context("start a thread for the probes' reports")?;
        Ok(Self { waiting })
    }

    /// The processes that will report for this launch.
    pub fn expect(&self, launch: &str) -> Receiver<Arrival> {
        let (to, from) = channel();
        lock(&self.waiting).insert(launch.to_owned(), to);
        from
    }

    /// Takes no more reports for this launch.
    pub fn forget(&self, launch: &str) {
        lock(&self.waiting).remove(launch);
    }
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, HashMap<String, Sender<Arrival>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(mut stream: UnixStream, waiting: &Waiting) {
    let Ok(Some(fields)) = read_message(&mut stream) else { return };
    let Ok(peer) = getsockopt(&stream, PeerCredentials) else { return };
    let Some(launch) = fields.text("launch") else { return };
    let to = lock(waiting).get(launch).cloned();
    let Some(to) = to else { return };
    // A parent goes on only now, so that it is known before its child is.
    let parent = (fields.text("role") == Some("parent")).then(|| stream.try_clone());
    // When nobody waits any more the stream closes, which ends the process.
    if to.send(Arrival { pid: peer.pid(), fields, stream }).is_ok()
        && let Some(Ok(mut parent)) = parent
    {
        let _ = parent.write_all(&[RELEASE]);
    }
}
