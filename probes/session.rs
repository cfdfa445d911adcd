//! One probe's work: read what the driver wants, open the lifeline, let NCCL
//! read its settings, report, stay until it was observed. The communicator that
//! makes NCCL read the rest is in `pair`. NCCL writes its log to stdout, so
//! nothing here relies on stdout.

use super::channel::Channel;
use super::pair::Pair;
use super::wire::Fields;
use crate::nccl::table::Library;
use crate::nccl::witness::{self, Substitute, Witness};
use std::ffi::{CString, c_int};
use std::io;
use std::path::Path;

/// The file in a launch's folder that holds its specification.
pub const SPEC: &str = "spec";

/// A probe that is connected to its driver.
pub struct Session {
    spec: Fields,
    channel: Channel,
    nccl: Option<Called>,
}

/// What the calls of NCCL did.
#[derive(Default)]
pub struct Called {
    /// The record of its reads.
    witness: Option<Witness>,
    /// Fields about the calls: `version`, `error`, and those that say
    /// what came of the communicator.
    pub outcome: Fields,
    /// The library and its communicator, when one was asked for.
    pair: Option<(Library, Pair)>,
}

/// Reads the specification of a launch.
///
/// # Errors
/// The file cannot be read; the error names it.
pub fn read_spec(folder: &Path) -> io::Result<Fields> {
    let path = folder.join(SPEC);
    let bytes = std::fs::read(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("read {}: {e}", path.display())))?;
    Ok(Fields::decode(&bytes))
}

impl Session {
    /// Connects to the socket that the specification names.
    ///
    /// # Errors
    /// No such socket, or the driver is gone.
    pub fn open(spec: Fields) -> io::Result<Self> {
        let socket = spec.path("socket").ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the specification names no socket")
        })?;
        let channel = Channel::connect(socket)
            .map_err(|e| io::Error::new(e.kind(), format!("connect {}: {e}", socket.display())))?;
        Ok(Self { spec, channel, nccl: None })
    }

    /// Loads the library that the specification names, if any, and calls it:
    /// the moment at which NCCL reads and latches.
    pub fn latch(&mut self) {
        self.nccl = call_nccl(&self.spec);
    }

    /// Sends the report with these extra fields.
    ///
    /// # Errors
    /// The driver is gone.
    pub fn report(&mut self, extra: &Fields) -> io::Result<()> {
        let mut message = Fields::default();
        message.push("role", "probe");
        message.push("launch", self.spec.first("launch").unwrap_or_default());
        if let Some(called) = &self.nccl {
            message.extend(&called.fields());
        }
        self.channel.send(message.extend(extra))
    }

    /// Blocks until the driver has observed this process, then ends the
    /// communicator; and this process, when NCCL is stuck in it.
    pub fn wait(&mut self) {
        self.channel.wait_for_release();
        if let Some((library, pair)) = self.nccl.as_mut().and_then(|called| called.pair.as_mut()) {
            if pair.is_stuck() {
                self.leave();
            } else {
                pair.end(library);
            }
        }
    }

    /// See [`Called::leave`].
    pub fn leave(&self) {
        if let Some(called) = &self.nccl {
            called.leave();
        }
    }
}

unsafe extern "C" {
    fn _exit(code: c_int) -> !;
}

impl Called {
    /// The outcome and every read so far: `read=NAME=VALUE` for a variable
    /// that was there, `unset=NAME` for one that was not, in order.
    pub fn fields(&self) -> Fields {
        let mut fields = self.outcome.clone();
        for read in self.witness.iter().flat_map(Witness::reads) {
            match read.value {
                Some(value) => fields.push_assignment("read", &read.name, &value),
                None => fields.push("unset", &read.name),
            };
        }
        fields
    }

    /// Ends this process without exit handlers where they could do harm.
    pub fn leave(&self) {
        if self.pair.as_ref().is_some_and(|(_, pair)| pair.wants_no_exit_handlers()) {
            // SAFETY: takes an integer and does not return.
            unsafe { _exit(0) }
        }
    }
}

/// Loads NCCL as the specification says and calls it; `None` when the
/// specification names no library.
pub fn call_nccl(spec: &Fields) -> Option<Called> {
    let path = spec.path("library")?;
    let mut called = Called::default();
    // SAFETY: the user chose this library for this very purpose.
    let result = unsafe { Library::open(path) }.map_err(|error| error.to_string());
    if let Err(why) = result.and_then(|library| called.call(library, spec)) {
        called.outcome.push("error", why);
    }
    Some(called)
}

impl Called {
    /// Calls a library that was just opened.
    ///
    /// # Errors
    /// It cannot be made safe to call, or its first call fails.
    fn call(&mut self, library: Library, spec: &Fields) -> Result<(), String> {
        // Without the record NCCL could listen on a real interface and take
        // the user's own conf file: better not to call it.
        // SAFETY: the library is never closed, and nothing has called it yet.
        let witness = unsafe { witness::install(library.handle(), substitutes(spec)) };
        self.witness = Some(witness.map_err(|error| error.to_string())?);
        // SAFETY: as above.
        let pair = unsafe { Pair::prepare(&library, spec) };
        let pair = pair.map_err(|why| format!("no virtual node: {why}"))?;
        if let Ok(version) = library.version_code() {
            self.outcome.push("version", version.to_string());
        }
        // Why there is none, when the driver knows.
        for key in ["no-init", "init-error"] {
            if let Some(why) = spec.first(key) {
                self.outcome.push(key, why);
            }
        }
        let id = library.unique_id();
        if let Some(mut pair) = pair {
            match &id {
                Ok(_) => pair.init(&library, &mut self.outcome),
                Err(error) => {
                    self.outcome.push("init-error", error.to_string());
                }
            }
            self.pair = Some((library, pair));
        }
        id.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// Answers that NCCL gets where the environment has none: they keep its socket
/// on the loopback interface and the user's own conf files out of the test.
fn substitutes(spec: &Fields) -> Vec<Substitute> {
    spec.assignments("substitute")
        .filter_map(|(name, value)| {
            Some(Substitute { name: CString::new(name).ok()?, value: CString::new(value).ok()? })
        })
        .collect()
}
