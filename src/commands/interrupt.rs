//! Ctrl-C and SIGTERM: the first asks a command to end well, with what it has
//! so far. A second Ctrl-C ends it at once; not a second SIGTERM, because
//! timeout(1) sends two.

use crate::process;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether, and by what, this run was interrupted.
pub struct Interrupted {
    flag: Arc<AtomicBool>,
    writing: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

/// Starts to watch.
///
/// # Errors
/// The kernel refuses a handler.
pub fn watch() -> Result<Interrupted> {
    let interrupted =
        Interrupted { flag: Arc::default(), writing: Arc::default(), signal: Arc::default() };
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // nohup and background jobs of a shell have it ignored: let it be.
        if process::is_ignored(signal) {
            continue;
        }
        let code = signal.unsigned_abs() as usize;
        if signal == SIGINT {
            let second = Arc::clone(&interrupted.flag);
            flag::register_conditional_shutdown(signal, 128 + signal, second)
                .context("watch for a second Ctrl-C")?;
        }
        flag::register_conditional_default(signal, Arc::clone(&interrupted.writing))
            .and_then(|_| flag::register_usize(signal, Arc::clone(&interrupted.signal), code))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted.flag)))
            .with_context(|| format!("watch for signal {signal}"))?;
    }
    Ok(interrupted)
}

impl Interrupted {
    /// Becomes true with the first signal.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// The signal's number, when one came.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|&n| n > 0)
    }

    /// From now on a signal ends the program in its usual way: writing a result
    /// may block for ever, and nothing is left to clean up.
    pub fn stop_watching(&self) {
        self.writing.store(true, Ordering::Relaxed);
    }

    /// 128 plus the signal, as shells have it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal().unwrap_or_default())
    }
}
