//! Progress: a bar on a terminal, plain lines elsewhere. Both go to standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal a line is written at most this often.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The progress of a known number of steps.
#[derive(Debug)]
pub struct ProgressLine {
    bar: ProgressBar,
    plain: Option<Plain>,
}

#[derive(Debug)]
struct Plain {
    title: String,
    total: u64,
    done: u64,
    last: Option<Instant>,
}

impl ProgressLine {
    /// Begins `total` steps of the work called `title`.
    pub fn new(title: &str, total: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                bar: ProgressBar::hidden(),
                plain: Some(Plain { title: title.to_owned(), total: total as u64, done: 0, last: None }),
            };
        }
        let bar = ProgressBar::new(total as u64);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {eta:>4} left  {msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        Self { bar, plain: None }
    }

    /// Says what comes now.
    pub fn step(&mut self, what: impl std::fmt::Display) {
        match &mut self.plain {
            None => self.bar.set_message(what.to_string()),
            Some(plain) => {
                if plain.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
                    eprintln!("{}: {}/{} {what}", plain.title, plain.done, plain.total);
                    plain.last = Some(Instant::now());
                }
            }
        }
    }

    /// One step is done.
    pub fn advance(&mut self) {
        self.bar.inc(1);
        if let Some(plain) = &mut self.plain {
            plain.done += 1;
        }
    }

    /// All is done; the bar disappears.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
