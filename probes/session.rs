//! One probe's work: read what the driver wants, open the lifeline, let NCCL
//! read its settings, report, stay until it was observed. NCCL writes its log
//! to stdout, so nothing here relies on stdout.

use super::channel::Channel;
use super::wire::Fields;
use crate::nccl::table::Library;
use crate::nccl::witness::{self, Substitute, Witness};
use std::ffi::CString;
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

/// What one call of ncclGetUniqueId did.
#[derive(Default)]
pub struct Called {
    /// The record of its reads.
    witness: Option<Witness>,
    /// Fields about the call: `version`, `error`.
    pub outcome: Fields,
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

    /// Loads the library that the specification names, if any, and calls
    /// ncclGetUniqueId: the moment at which NCCL reads and latches.
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

    /// Blocks until the driver has observed this process.
    pub fn wait(&self) {
        self.channel.wait_for_release();
    }
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
}

/// Loads NCCL as the specification says and calls it once; `None` when the
/// specification names no library.
pub fn call_nccl(spec: &Fields) -> Option<Called> {
    let path = spec.path("library")?;
    let mut called = Called::default();
    // SAFETY: the user chose this library for this very purpose.
    match unsafe { Library::open(path) } {
        Err(error) => {
            called.outcome.push("error", error.to_string());
        }
        Ok(library) => {
            // SAFETY: the library is never closed, and nothing has called it yet.
            match unsafe { witness::install(library.handle(), substitutes(spec)) } {
                Ok(witness) => {
                    called.witness = Some(witness);
                    record_call(&library, &mut called.outcome);
                }
                // Without it NCCL could listen on a real interface and take
                // the user's own conf file: better not to call it.
                Err(error) => {
                    called.outcome.push("error", error.to_string());
                }
            }
        }
    }
    Some(called)
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

fn record_call(library: &Library, outcome: &mut Fields) {
    if let Ok(version) = library.version_code() {
        outcome.push("version", version.to_string());
    }
    if let Err(error) = library.unique_id() {
        outcome.push("error", error.to_string());
    }
}
