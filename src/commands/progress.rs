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
    let mut shown = Shown { terminal: std::io::stderr().is_terminal(), bar: None, quarters: 0 };
    move |event| {
        shown.show(event);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// What is on stderr of the work so far.
struct Shown {
    terminal: bool,
    bar: Option<ProgressBar>,
    /// Quarters of this step that a log was told of.
    quarters: u64,
}

impl Shown {
    fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Note(text) => match &self.bar {
                Some(bar) => bar.println(escape_lines(text)),
                None => say(text),
            },
            Event::Bytes { what, done, total } if self.terminal => {
                let template = "{msg} {wide_bar} {bytes}/{total_bytes}";
                let bar = self.bar.get_or_insert_with(|| new_bar(template));
                bar.set_message(what);
                bar.set_length(total.unwrap_or_default().max(done));
                bar.set_position(done);
            }
            Event::Bytes { what, done, total: Some(total) } => self.log(what, done, total),
            Event::Bytes { .. } | Event::Waiting => {}
            Event::Done => {
                self.quarters = 0;
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
    }

    /// A log gets at most three lines for one step.
    fn log(&mut self, what: &'static str, done: u64, total: u64) {
        if done * 4 < total * (self.quarters + 1) {
            return;
        }
        self.quarters = done * 4 / total.max(1);
        if (1..4).contains(&self.quarters) {
            say(&format!("{what}: {} of {} MB", done / 1_000_000, total / 1_000_000));
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
