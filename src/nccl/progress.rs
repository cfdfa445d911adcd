//! How long work (a download, a wait for another run) tells its caller where
//! it stands, and the standard way to show that on stderr. It never touches
//! stdout, which belongs to results.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

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
    /// The step that `Bytes` was about has ended.
    Done,
}

/// Where events go.
pub type Progress<'a> = dyn FnMut(Event<'_>) + 'a;

/// Shows events on stderr: a bar on a terminal, plain lines otherwise.
pub fn on_stderr() -> impl FnMut(Event<'_>) {
    let terminal = std::io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    let mut quarters = 0;
    move |event| match event {
        Event::Note(text) => match &bar {
            Some(bar) => bar.println(text),
            None => anstream::eprintln!("{text}"),
        },
        Event::Bytes { what, done, total } if terminal => {
            let bar = bar.get_or_insert_with(|| new_bar(what));
            bar.set_message(what);
            if let Some(total) = total {
                bar.set_length(total.max(done));
            }
            bar.set_position(done);
        }
        Event::Bytes { what, done, total: Some(total) } if done * 4 >= total * (quarters + 1) => {
            // A log gets at most three lines for one step.
            quarters = done * 4 / total.max(1);
            if (1..4).contains(&quarters) {
                anstream::eprintln!("{what}: {} of {} MB", done / 1_000_000, total / 1_000_000);
            }
        }
        Event::Bytes { .. } => {}
        Event::Done => {
            quarters = 0;
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        }
    }
}

fn new_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    let template = "{msg} {wide_bar} {bytes}/{total_bytes}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A bar for work that is counted in steps; nothing where stderr is no
/// terminal.
pub struct Steps(ProgressBar);

impl Steps {
    /// Starts a bar with a word for what is counted.
    pub fn on_stderr(what: &'static str) -> Self {
        let bar = ProgressBar::new(0).with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// One more step of `total` is done. May be called from any thread.
    pub fn done_one_of(&self, total: usize) {
        self.0.set_length(total as u64);
        self.0.inc(1);
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
