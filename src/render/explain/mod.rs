//! What NCCL would choose, as text. The parts that say something in words and
//! columns make blocks of a document; `table` and `markdown` write those blocks,
//! so that both always say the same. CSV has a file of its own, JSON is
//! [`super::json`]. Nothing is decided here.

mod block;
pub mod csv;
mod document;
mod findings;
pub mod markdown;
mod side;
mod sizes;
pub mod table;
mod versus;
mod why;
mod widths;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
