//! How long work (a download, a wait for another run) tells its caller where it
//! stands, and learns whether to go on. It prints nothing.

use std::ops::ControlFlow;

/// One step of long work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A sentence for a person.
    Note(&'a str),
    /// How far the current step is, in bytes.
    Bytes {
        /// What is being done, such as `download`.
        what: &'static str,
        /// Bytes so far.
        done: u64,
        /// Bytes in all, when known.
        total: Option<u64>,
    },
    /// Nothing to tell; a chance to stop.
    Waiting,
    /// The step that `Bytes` was about has ended.
    Done,
}

/// Where events go; `Break` asks the work to stop.
pub type Progress<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// A listener that shows nothing and never stops the work.
#[cfg(test)]
pub(crate) fn silent(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
