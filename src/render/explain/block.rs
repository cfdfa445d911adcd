//! A document before it has a format. Texts in it are as they came: whoever
//! writes them escapes them.

use crate::model::Finding;

/// Blocks that belong together.
pub type Section<'a> = Vec<Block<'a>>;

/// A piece of a document.
pub enum Block<'a> {
    /// What the whole is about.
    Title(String),
    /// What the blocks after it are about.
    Heading(String),
    /// Running text.
    Text(Text),
    /// Columns.
    Grid(Grid),
    /// A finding.
    Finding(&'a Finding),
}

impl Block<'_> {
    /// Running text without anything special.
    pub fn text(text: impl Into<String>) -> Self {
        Self::lead("", Tone::Plain, text)
    }

    /// Running text after a word of ours that tells what it is.
    pub fn lead(lead: &'static str, tone: Tone, text: impl Into<String>) -> Self {
        Self::Text(Text { lead, tone, text: text.into() })
    }
}

/// Running text.
pub struct Text {
    /// Stands before it.
    pub lead: &'static str,
    /// How the lead looks.
    pub tone: Tone,
    /// The text itself.
    pub text: String,
}

/// How important something is, where there is colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As all else.
    Plain,
    /// Better than before.
    Good,
    /// Has to be seen.
    Bad,
    /// May be overlooked.
    Quiet,
}

/// Rows of columns.
pub struct Grid {
    /// How far it stands in from the left.
    pub indent: usize,
    /// One for each column. When all titles are empty there is no header.
    pub columns: Vec<Column>,
    /// One cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// A grid without rows.
    pub fn new<const N: usize>(columns: [(&str, Width); N]) -> Self {
        let columns = columns.into_iter().map(|(title, width)| Column::new(title, width));
        Self { indent: 0, columns: columns.collect(), rows: Vec::new() }
    }
}

/// A column.
pub struct Column {
    /// Its title.
    pub title: String,
    /// What happens where space is short.
    pub width: Width,
}

impl Column {
    /// A column.
    pub fn new(title: &str, width: Width) -> Self {
        Self { title: title.into(), width }
    }
}

/// What happens to a column where space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Cells stay in one line, only the title is wrapped.
    Whole,
    /// Cells are wrapped.
    Wraps,
}

/// One cell.
pub struct Cell {
    /// What it says.
    pub text: String,
    /// How it looks.
    pub tone: Tone,
}

impl Cell {
    /// A cell that does not look as all else.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// What stands where NCCL does not tell.
pub const NOT_AVAILABLE: &str = "n/a";
