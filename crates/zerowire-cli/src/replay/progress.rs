//! Progress while frames are sent: a bar on a terminal, plain lines elsewhere.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zerowire_cli::bar::{bar, bytes_text};

/// Lines without a terminal are this far apart.
const LINE: Duration = Duration::from_secs(10);

/// The bar is drawn so often.
const DRAW: Duration = Duration::from_millis(100);

/// The progress of a replay. A bar disappears when this is dropped.
pub struct ReplayProgress {
    bar: Option<ProgressBar>,
    quiet: bool,
    total: Option<u64>,
    last: Instant,
    begin: Instant,
}

impl ReplayProgress {
    /// Of `total` frames, if that is known. A quiet one shows nothing.
    pub fn new(total: Option<u64>, quiet: bool) -> Self {
        let known = "  {bar:40} {human_pos} of {human_len} frames, {per_sec}, {msg}";
        let unknown = "  {spinner} {human_pos} frames, {per_sec}, {msg}";
        let bar = if quiet { None } else { bar(total, known, unknown) };
        let now = Instant::now();
        Self { bar, quiet, total, last: now, begin: now }
    }

    /// So many frames and bytes went so far. Cheap: it looks at the clock, and seldom does more.
    pub fn set(&mut self, frames: u64, bytes: u64) {
        if self.quiet {
            return;
        }
        let now = Instant::now();
        let every = if self.bar.is_some() { DRAW } else { LINE };
        if now - self.last < every {
            return;
        }
        self.last = now;
        match &self.bar {
            Some(bar) => {
                bar.set_position(frames);
                bar.set_message(bytes_text(bytes));
            }
            None => {
                let of = self.total.map_or_else(String::new, |n| format!(" of {n}"));
                let seconds = (now - self.begin).as_secs_f64();
                tracing::info!(
                    "{frames}{of} frames, {} in {seconds:.0} s: {:.0} frames/s",
                    bytes_text(bytes),
                    frames as f64 / seconds
                );
            }
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
