//! Turns results into text, one file a format. Nothing here reads the machine
//! or decides anything; everything is written to an `io::Write`.

pub mod csv;
pub mod escape;
pub mod explain;
pub mod json;
pub mod markdown;
mod marks;
pub mod rows;
pub mod table;
pub mod text;

pub use escape::{escape, escape_lines};
