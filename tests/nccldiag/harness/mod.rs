//! What every test needs: the program in a sandbox, waiting with a deadline,
//! libraries from the cache, and a way to skip that cannot be overlooked.

mod libraries;
pub mod node_trace;
mod open_copy;
mod processes;
mod sandbox;
mod skip;
mod terminal;

pub use libraries::{library, main_library, versions};
pub use open_copy::{NOBODY, OpenCopy};
pub use processes::{eventually, mentioning};
pub use sandbox::{Ended, PROGRAM, Sandbox, Started, finish};
pub use skip::{has_tools, is_root, skip};
pub use terminal::OnTerminal;
