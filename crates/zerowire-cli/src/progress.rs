//! Progress on standard error: a bar on a terminal, a line every few seconds elsewhere.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zerowire_cli::bar::{bytes_bar, bytes_text};
use zerowire_cli::columns::{fit, width};
use zerowire_cli::logging;

/// Time between two lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of one transfer.
pub struct TransferProgress {
    bar: Option<ProgressBar>,
    quiet: bool,
    total: Option<u64>,
    last: Instant,
}

impl TransferProgress {
    /// `total` bytes, where that is known.
    pub fn new(total: Option<u64>, quiet: bool) -> Self {
        let bar = if quiet { None } else { bytes_bar(total) };
        Self { bar, quiet, total, last: Instant::now() }
    }

    /// A line above the bar, which fits the terminal.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => fit(line, width(&std::io::stderr())).lines().for_each(|part| bar.println(part)),
            None if !self.quiet => logging::say(line),
            None => {}
        }
    }

    /// So many bytes were moved.
    pub fn set(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        } else if !self.quiet && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let of = self.total.map_or_else(String::new, |total| format!(" of {}", bytes_text(total)));
            logging::say(&format!("  {}{of}", bytes_text(bytes)));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
