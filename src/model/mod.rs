//! Plain data that flows between the stages. No input or output happens here
//! and nothing is decided here.

mod value;

pub use value::{Latched, Seen, Unreadable};
