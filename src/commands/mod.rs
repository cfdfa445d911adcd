//! One file a command: arguments -> observe -> decide -> render. They put
//! steps in order and hold no logic of their own.

pub mod cache;
pub mod env_check;
mod interrupt;
mod output;
