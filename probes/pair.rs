//! The communicator of a probe: two ranks in this one process, on a virtual
//! node or on two GPUs that nobody else uses. It is only made and kept, so that
//! NCCL reads every setting that it reads at init and somebody can look at what
//! came out; nothing is ever enqueued.

use super::wire::Fields;
use crate::nccl::table::{Comm, Library};
use crate::virtual_node::runtime::{self, Description};
use std::ffi::c_int;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Which GPUs, as the specification names them.
enum Gpus {
    /// Those of this description, in memory only.
    Virtual,
    /// Those that the CUDA runtime shows as devices 0 and 1.
    Real,
}

/// How long NCCL may take when the specification names no `patience`.
const PATIENCE: Duration = Duration::from_secs(10);

/// A communicator that is to be made, or was.
pub struct Pair {
    gpus: Gpus,
    patience: Duration,
    /// Pointers to NCCL's communicators, as numbers.
    comms: Vec<usize>,
    /// NCCL still makes it.
    stuck: bool,
}

impl Pair {
    /// Makes this process ready; `None` when the specification asks for no
    /// communicator. `node=PATH` names the file with a virtual node's
    /// description, `visible=UUIDS` the GPUs to use, `patience=SECONDS` how long NCCL
    /// may take.
    ///
    /// # Errors
    /// Why there is none, as a sentence. The library must not be used when it
    /// was left half redirected, so it is not called at all then.
    ///
    /// # Safety
    /// Nothing has called the library yet, which is never closed.
    pub unsafe fn prepare(library: &Library, spec: &Fields) -> Result<Option<Self>, String> {
        let patience = spec.text("patience").and_then(|seconds| seconds.parse().ok());
        let patience = patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let patience = patience.unwrap_or(PATIENCE);
        let pair = |gpus| Some(Self { gpus, patience, comms: Vec::new(), stuck: false });
        if let Some(path) = spec.path("node") {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("read {}: {error}", path.display()))?;
            let node = Description::parse(&text).map_err(|error| error.to_string())?;
            // SAFETY: the caller's promise; the driver described this very file.
            unsafe { runtime::install(library.handle(), node) }
                .map_err(|error| error.to_string())?;
            return Ok(pair(Gpus::Virtual));
        }
        let Some(visible) = spec.text("visible") else { return Ok(None) };
        // SAFETY: the only other thread of ours waits for a byte and reads no
        // environment, and a Python child has no thread besides the calling one.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", visible) };
        Ok(pair(Gpus::Real))
    }

    /// Makes the communicator and says in `outcome` what came of it: `init`
    /// when there is one, else `init-error` with the reason.
    pub fn init(&mut self, library: &Library, outcome: &mut Fields) {
        let result = self.call(library);
        let mut reasons = Vec::new();
        if matches!(self.gpus, Gpus::Virtual) {
            // What NCCL decided after such a call is not to be trusted.
            reasons.extend(runtime::missing().iter().map(|name| format!("it lacks {name}")));
            reasons.extend(runtime::refusals());
        }
        match result {
            _ if !reasons.is_empty() => {
                outcome.push("init-error", format!("virtual node: {}", reasons.join(", ")))
            }
            Ok(()) => outcome.push("init", "1"),
            Err(why) => outcome.push("init-error", why),
        };
    }

    /// Calls NCCL in a thread of its own: a setting may make it wait for ever,
    /// and what it has read until then is still worth a report.
    fn call(&mut self, library: &Library) -> Result<(), String> {
        const NAME: &str = "ncclCommInitAll";
        let call = library.functions().comm_init_all;
        let call = call.ok_or_else(|| format!("this libnccl has no {NAME}"))?;
        let (to, from) = channel();
        let make = move || {
            let devices: [c_int; 2] = [0, 1];
            let mut comms: [Comm; 2] = [std::ptr::null_mut(); 2];
            // SAFETY: both arrays have two members and live during the call.
            let result = unsafe { call(comms.as_mut_ptr(), 2, devices.as_ptr()) };
            // Nobody may be waiting any more.
            let _ = to.send((result, comms.map(|comm| comm.addr())));
        };
        let thread = std::thread::Builder::new().name("init".into());
        thread.spawn(make).map_err(|error| format!("start a thread: {error}"))?;
        let Ok((result, comms)) = from.recv_timeout(self.patience) else {
            self.stuck = true;
            let seconds = self.patience.as_secs_f64();
            return Err(format!("{NAME} had not ended after {seconds} s"));
        };
        library.check(NAME, result).map_err(|error| error.to_string())?;
        self.comms = comms.into();
        Ok(())
    }

    /// Ends the communicator, so that nothing of it stays on this machine. One
    /// on a virtual node has nothing there, and is left as it is.
    pub fn end(&mut self, library: &Library) {
        let Some(call) = library.functions().comm_destroy else { return };
        if matches!(self.gpus, Gpus::Virtual) {
            return;
        }
        for comm in self.comms.drain(..) {
            // SAFETY: NCCL made it, and it is destroyed once. What could not be
            // freed is freed by the end of this process.
            let _ = unsafe { call(comm as Comm) };
        }
    }

    /// Whether exit handlers should not run: NVIDIA's runtime was never
    /// initialised, or NCCL is still at work.
    pub fn wants_no_exit_handlers(&self) -> bool {
        self.stuck || matches!(self.gpus, Gpus::Virtual)
    }

    /// NCCL is still at work, and will be for ever.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }
}
