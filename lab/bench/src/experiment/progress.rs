//! Progress: a bar on a terminal, plain lines elsewhere. Both go to standard error.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zerowire_cli::bar::bar;
use zerowire_cli::logging;

/// Without a terminal a line is written at most this often.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The progress of a known number of steps.
#[derive(Debug)]
pub struct ProgressLine {
    title: String,
    total: usize,
    done: usize,
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// When the last line was written elsewhere.
    last: Option<Instant>,
}

impl ProgressLine {
    /// Begins `total` steps of the work called `title`.
    pub fn new(title: &str, total: usize) -> Self {
        let bar = bar(Some(total as u64), "{prefix} {bar:30} {pos}/{len} {eta:>4} left  {msg}", "");
        let bar = bar.map(|bar| bar.with_prefix(title.to_owned()));
        Self { title: title.to_owned(), total, done: 0, bar, last: None }
    }

    /// Says what comes now.
    pub fn step(&mut self, what: impl std::fmt::Display) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
        } else if self.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            logging::say(&format!("{}: {}/{} {what}", self.title, self.done, self.total));
            self.last = Some(Instant::now());
        }
    }

    /// One step is done.
    pub fn advance(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for ProgressLine {
    /// The bar disappears.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
