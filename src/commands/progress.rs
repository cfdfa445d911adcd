//! What a person sees of long work, on stderr: bars on a terminal, a few plain
//! lines otherwise. Stdout belongs to results.

use crate::nccl::progress::Event;
use crate::render::escape_lines;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says a sentence. Nobody is left to be told when stderr is closed.
pub fn say(text: &str) {
    let _ = writeln!(anstream::stderr(), "{}", escape_lines(text));
}

/// Shows events, and asks the work to stop once `stop` is set.
pub fn listener(stop: &AtomicBool) -> impl FnMut(Event<'_>) -> ControlFlow<()> {
    let terminal = std::io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    let mut quarters = 0;
    move |event| {
        match event {
            Event::Note(text) => match &bar {
                Some(bar) => bar.println(escape_lines(text)),
                None => say(text),
            },
            Event::Bytes { what, done, total } if terminal => {
                let bar =
                    bar.get_or_insert_with(|| new_bar("{msg} {wide_bar} {bytes}/{total_bytes}"));
                bar.set_message(what);
                bar.set_length(total.unwrap_or_default().max(done));
                bar.set_position(done);
            }
            Event::Bytes { what, done, total: Some(total) }
                if done * 4 >= total * (quarters + 1) =>
            {
                // A log gets at most three lines for one step.
                quarters = done * 4 / total.max(1);
                if (1..4).contains(&quarters) {
                    say(&format!("{what}: {} of {} MB", done / 1_000_000, total / 1_000_000));
                }
            }
            Event::Bytes { .. } | Event::Waiting => {}
            Event::Done => {
                quarters = 0;
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

fn new_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
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
    pub fn new(what: &'static str) -> Self {
        Self(new_bar("{msg} {wide_bar} {pos}/{len}").with_message(what))
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

/// One line that says what is being done now; nothing where stderr is no
/// terminal.
pub struct Status(ProgressBar);

impl Status {
    /// Starts with an empty line.
    pub fn new() -> Self {
        Self(new_bar("{spinner} {msg}"))
    }

    /// Says what is being done now.
    pub fn show(&self, what: &str) {
        self.0.set_message(escape_lines(what));
        self.0.tick();
    }

    /// Removes the line.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
