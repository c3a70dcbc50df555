//! Progress of a transfer: a bar on a terminal, a plain line each quarter elsewhere.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zerowire_cli::bar::{bytes_bar, bytes_text};

use super::{print_line, transfer_line};

/// Lines that a transfer gets without a terminal.
const LINES: u64 = 4;

/// The progress of one transfer. A bar disappears when this is dropped.
#[derive(Debug)]
pub struct TransferProgress {
    begin: Instant,
    total: u64,
    done: u64,
    show: Show,
}

#[derive(Debug)]
enum Show {
    Bar(ProgressBar),
    Lines,
    Nothing,
}

impl TransferProgress {
    pub(super) fn new(total: u64, silent: bool) -> Self {
        let show = match silent {
            true => Show::Nothing,
            false => bytes_bar(Some(total)).map_or(Show::Lines, Show::Bar),
        };
        Self { begin: Instant::now(), total, done: 0, show }
    }

    /// Sets the number of bytes moved so far.
    pub fn set(&mut self, done: u64) {
        let done = done.min(self.total);
        match &self.show {
            Show::Bar(bar) => bar.set_position(done),
            Show::Lines if self.quarter(done) > self.quarter(self.done) && done < self.total => {
                print_line(&format!("  {} of {}", bytes_text(done), bytes_text(self.total)));
            }
            _ => {}
        }
        self.done = done;
    }

    /// The transfer is over and has moved `bytes`; returns how long that took, and says it.
    pub fn finish(self, bytes: u64) -> Duration {
        let took = self.begin.elapsed();
        if let Show::Bar(bar) = &self.show {
            bar.finish_and_clear();
        }
        if !matches!(self.show, Show::Nothing) {
            print_line(&format!("  {}", transfer_line(bytes, took)));
        }
        took
    }

    fn quarter(&self, done: u64) -> u64 {
        done * LINES / self.total.max(1)
    }
}

impl Drop for TransferProgress {
    fn drop(&mut self) {
        if let Show::Bar(bar) = &self.show {
            bar.finish_and_clear();
        }
    }
}
