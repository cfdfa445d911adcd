//! A probe's connection to its driver: a stream socket found by path. It
//! carries the report, tells the driver the probe's process id, and is the
//! lifeline: when the driver ends in whatever way, the kernel closes the other
//! end and the probe leaves. A path survives `setsid`, `close_fds` and an
//! emptied environment; an inherited descriptor does not.

use super::wire::Fields;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

/// The longest message that a driver accepts, in bytes.
pub const MAX_MESSAGE: usize = 8 << 20;

/// The byte with which a driver lets a probe go on to its normal end.
pub const RELEASE: u8 = b'r';

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}

/// An open lifeline. Dropping it closes the probe's end.
pub struct Channel {
    stream: UnixStream,
    released: mpsc::Receiver<()>,
}

impl Channel {
    /// Connects to the socket and starts the thread that ends this process
    /// when the driver is gone, even while NCCL is stuck in a call.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(Reachable::new(socket)?.path())?;
        let reader = stream.try_clone()?;
        let (tell, released) = mpsc::channel();
        thread::Builder::new().name("lifeline".into()).spawn(move || watch(reader, &tell))?;
        Ok(Self { stream, released })
    }

    /// Sends one message.
    pub fn send(&mut self, fields: &Fields) -> io::Result<()> {
        write_message(&mut self.stream, fields)
    }

    /// Waits until the driver has seen enough.
    pub fn wait_for_release(&self) {
        // An error means that the watching thread is gone, which only happens
        // on the way out: not waiting is right then.
        let _ = self.released.recv();
    }
}

/// Blocks until the driver says "release" or is gone.
fn watch(mut reader: UnixStream, tell: &mpsc::Sender<()>) {
    let mut byte = [0u8];
    loop {
        match reader.read(&mut byte) {
            Ok(1) if byte[0] == RELEASE => {
                let _ = tell.send(());
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // SAFETY: _exit takes no pointers and does not return. Exit
            // handlers of a half-initialised NCCL are skipped on purpose.
            _ => unsafe { _exit(4) },
        }
    }
}

/// A path for a socket of any length: `sun_path` holds 107 bytes, so a longer
/// one goes through the descriptor of its folder.
pub struct Reachable {
    path: PathBuf,
    _folder: Option<File>,
}

impl Reachable {
    /// Opens the folder where that is needed.
    ///
    /// # Errors
    /// The folder cannot be opened, or the path has none.
    pub fn new(socket: &Path) -> io::Result<Self> {
        if socket.as_os_str().len() < 108 {
            return Ok(Self { path: socket.into(), _folder: None });
        }
        let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket path"));
        };
        let folder = File::open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }

    /// The path to use while this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes a length (u32, little endian) and the fields.
pub fn write_message(to: &mut impl Write, fields: &Fields) -> io::Result<()> {
    let body = fields.encode();
    let length = u32::try_from(body.len())
        .ok()
        .filter(|&n| n as usize <= MAX_MESSAGE)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "message too long"))?;
    let mut whole = length.to_le_bytes().to_vec();
    whole.extend_from_slice(&body);
    to.write_all(&whole)
}

/// Reads one message; `None` at a clean end. Lengths over `MAX_MESSAGE` are an
/// error before anything is allocated.
pub fn read_message(from: &mut impl Read) -> io::Result<Option<Fields>> {
    let mut length = [0u8; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some(Fields::decode(&body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_stream() {
        let mut fields = Fields::default();
        fields.push("role", "probe").push("read", "NCCL_ALGO=Ring");
        let mut bytes = Vec::new();
        write_message(&mut bytes, &fields).expect("a Vec takes all");
        let mut stream = bytes.as_slice();
        assert_eq!(read_message(&mut stream).expect("whole message"), Some(fields));
        assert_eq!(read_message(&mut stream).expect("clean end"), None);
    }

    #[test]
    fn a_bogus_length_is_an_error_not_an_allocation() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(read_message(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn a_path_over_107_bytes_connects() {
        let folder = tempfile::tempdir().expect("temp folder");
        let deep = folder.path().join("d".repeat(60)).join("e".repeat(60));
        std::fs::create_dir_all(&deep).expect("nested folders");
        let socket = deep.join("s");
        let short = Reachable::new(&socket).expect("the folder is there");
        let _listener = std::os::unix::net::UnixListener::bind(short.path())
            .expect("bind through the descriptor");
        let short = Reachable::new(&socket).expect("the folder is there");
        UnixStream::connect(short.path()).expect("connect through the descriptor");
    }
}
