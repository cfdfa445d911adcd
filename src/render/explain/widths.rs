//! How wide the columns of a grid are where not all fit: so that the rows take
//! few lines. What is in the columns does not matter here.

use super::block::{Grid, Width};
use crate::render::escape;
use textwrap::core::display_width;
use textwrap::{WordSeparator, WordSplitter, WrapAlgorithm};

/// Between columns.
pub const GAP: usize = 2;
/// A longer word is broken where space is short.
const WORD: usize = 32;
/// No column is made narrower than this.
const NARROWEST: usize = 3;

/// A width for each column, for a grid that is at most `width` wide.
pub fn widths(grid: &Grid, width: usize) -> Vec<usize> {
    let gaps = GAP * grid.columns.len().saturating_sub(1);
    let space = width.saturating_sub(grid.indent + gaps);
    let columns: Vec<_> = (0..grid.columns.len()).map(|nth| Texts::of(grid, nth)).collect();
    let most: Vec<_> = columns.iter().map(|column| column.most).collect();
    if most.iter().sum::<usize>() <= space {
        return most;
    }
    let mut widths: Vec<_> = columns.iter().map(|column| column.least).collect();
    while widths.iter().sum::<usize>() > space {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROWEST) else {
            break;
        };
        *widest -= 1;
    }
    let left = space.saturating_sub(widths.iter().sum());
    let heights = columns.iter().zip(&widths).map(|(column, width)| column.heights(*width, left));
    share(&heights.collect::<Vec<_>>(), left).iter().zip(widths).map(|(a, b)| a + b).collect()
}

/// The texts of a column, its title first.
struct Texts {
    texts: Vec<String>,
    /// The least that looks well.
    least: usize,
    /// The most that is of use.
    most: usize,
}

impl Texts {
    fn of(grid: &Grid, nth: usize) -> Self {
        let column = &grid.columns[nth];
        let cells = grid.rows.iter().map(|row| row.get(nth).map_or("", |cell| &cell.text));
        let texts: Vec<_> = std::iter::once(&*column.title).chain(cells).map(escape).collect();
        let word = |text: &String| text.split(' ').map(display_width).max().unwrap_or(0).min(WORD);
        let least = |(nth, text): (usize, &String)| match column.width {
            Width::Whole if nth > 0 => display_width(text),
            _ => word(text),
        };
        let most = texts.iter().map(|text| display_width(text)).max().unwrap_or(0).max(1);
        let least = texts.iter().enumerate().map(least).max().unwrap_or(0).max(1);
        Self { texts, least, most }
    }

    /// The lines of each text, for each width from `from` on that is of use.
    fn heights(&self, from: usize, more: usize) -> Heights {
        let lines = |width| {
            // As the table wraps: at spaces only.
            let options = textwrap::Options::new(width)
                .wrap_algorithm(WrapAlgorithm::FirstFit)
                .word_separator(WordSeparator::AsciiSpace)
                .word_splitter(WordSplitter::NoHyphenation);
            self.texts.iter().map(|text| textwrap::wrap(text, &options).len()).collect()
        };
        (from..=self.most.clamp(from, from + more)).map(lines).collect()
    }
}

/// For each text of a column its lines, for each width.
type Heights = Vec<Vec<usize>>;

/// Gives what is left to the columns where it saves most lines. Says how much
/// each got; what saves nothing is not given.
fn share(heights: &[Heights], mut left: usize) -> Vec<usize> {
    let mut given = vec![0; heights.len()];
    while let Some((nth, more)) = best(heights, &given, left) {
        given[nth] += more;
        left -= more;
    }
    given
}

/// Which column should get how much next.
fn best(heights: &[Heights], given: &[usize], left: usize) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    for (nth, column) in heights.iter().enumerate() {
        let now = lines(heights, given, nth);
        for more in 1..=left.min(column.len() - 1 - given[nth]) {
            let mut then = given.to_vec();
            then[nth] += more;
            let saved = now.saturating_sub(lines(heights, &then, nth));
            let better = |(_, cost, other): (usize, usize, usize)| saved * cost > other * more;
            if saved > 0 && best.is_none_or(better) {
                best = Some((nth, more, saved));
            }
        }
    }
    best.map(|(nth, more, _)| (nth, more))
}

/// The lines of all rows, and those that one column would take alone: two
/// columns may have to grow before a row has fewer lines.
fn lines(heights: &[Heights], given: &[usize], nth: usize) -> usize {
    let column = |nth: usize| &heights[nth][given[nth]];
    let highest = |row: usize| (0..heights.len()).map(|nth| column(nth)[row]).max().unwrap_or(0);
    (0..column(nth).len()).map(|row| highest(row) + column(nth)[row]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_whole() {
        let mut grid = Grid::new([("a title", Width::Wraps), ("b", Width::Whole)]);
        grid.rows.push(vec!["x".into(), "some text".into()]);
        assert_eq!(widths(&grid, 18), [7, 9]);
    }

    #[test]
    fn what_must_stay_whole_does_and_the_rest_is_shared() {
        let mut grid = Grid::new([("", Width::Whole), ("", Width::Wraps), ("", Width::Wraps)]);
        grid.rows.push(vec!["8 B - 64 KiB".into(), "a b c d e f".into(), "gg hh".into()]);
        // Two lines are the best that 6 columns allow.
        assert_eq!(widths(&grid, 12 + 6 + 2 * GAP), [12, 3, 2]);
        assert_eq!(widths(&grid, 12 + 10 + 2 * GAP), [12, 5, 5]);
    }

    #[test]
    fn nothing_is_wider_than_there_is_space() {
        let mut grid = Grid::new([("", Width::Whole), ("t", Width::Wraps)]);
        grid.rows.push(vec!["x".repeat(500).into(), "y".repeat(500).into()]);
        assert!(widths(&grid, 40).iter().sum::<usize>() <= 38);
    }
}
