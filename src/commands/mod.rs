//! One file a command: arguments -> observe -> decide -> render. They put
//! steps in order and hold no logic of their own.

mod asked;
pub mod cache;
pub mod env_check;
pub mod explain;
mod explain_asked;
mod given;
pub mod hidden;
mod interrupt;
mod output;
mod progress;
mod sizes;
