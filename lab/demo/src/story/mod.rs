//! A demonstration tells a story in numbered steps, on standard output. Its lines fit the terminal,
//! or 80 columns. On a terminal titles and commands have a colour, and long steps a bar on standard
//! error.

pub mod ledger;
mod paint;
mod progress;

use std::io::Write as _;
use std::time::Duration;

use zerowire_cli::bar::bytes_text;
use zerowire_cli::columns::{fit, width};

use paint::Paint;
pub use progress::TransferProgress;

/// What commands begin with: a shell of the host's, and one in the guest.
const PROMPTS: [&str; 2] = ["$ ", "guest$ "];

/// What to try next: a command, and why this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// A sentence that ends with a colon.
    pub why: String,
    /// At most 78 columns.
    pub command: String,
}

/// The text of a demonstration, or silence where only JSON is wanted.
#[derive(Debug)]
pub struct Story {
    silent: bool,
    paint: Paint,
    /// Columns.
    width: usize,
    steps: u32,
    step: u32,
}

impl Story {
    /// A story of this many steps; a silent one prints nothing.
    pub fn new(steps: u32, silent: bool) -> Self {
        let paint = Paint::of_output();
        Self { silent, paint, width: width(&std::io::stdout()), steps, step: 0 }
    }

    /// Begins the next step.
    pub fn step(&mut self, title: &str) {
        self.step += 1;
        if !self.silent {
            let title = fit(&format!("[{}/{}] {title}", self.step, self.steps), self.width);
            print_line(&format!("\n{}", self.paint.title(&title)));
        }
    }

    /// A line, or several, of the step.
    pub fn say(&self, text: impl AsRef<str>) {
        if !self.silent {
            for line in text.as_ref().lines() {
                let is_command = PROMPTS.iter().any(|prompt| line.starts_with(prompt));
                let line = fit(&format!("  {line}"), self.width);
                let line = line.trim_end();
                print_line(&if is_command { self.paint.command(line) } else { line.to_owned() });
            }
        }
    }

    /// The end: what went well, and what to try next on this machine.
    pub fn end(&self, good: &str, next: &Next) {
        if self.silent {
            return;
        }
        print_line(&format!("\n{}", self.paint.good(&fit(good, self.width))));
        print_line(&format!("\n{}", fit(&next.why, self.width)));
        // A line that is broken could not be pasted.
        print_line(&format!("  {}", self.paint.command(&next.command)));
    }

    /// The progress of a step that moves `total` bytes.
    pub fn progress(&self, total: u64) -> TransferProgress {
        TransferProgress::new(total, self.silent)
    }
}

/// Prints a line. A story goes on where nobody reads it any more: what it made must be removed at
/// its end.
pub fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A transfer in words: bytes, seconds and the rate.
pub fn transfer_line(bytes: u64, took: Duration) -> String {
    format!(
        "{} in {:.2} s: {}",
        bytes_text(bytes),
        took.as_secs_f64(),
        rate_text(bytes, took).unwrap_or_else(|| "too short for a rate".to_owned())
    )
}

fn rate_text(bytes: u64, took: Duration) -> Option<String> {
    let bits = bytes as f64 * 8.0 / took.as_secs_f64();
    bits.is_finite().then(|| match bits {
        ..1e9 => format!("{:.0} Mbit/s", bits / 1e6),
        _ => format!("{:.2} Gbit/s", bits / 1e9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_read_well() {
        assert_eq!(transfer_line(1 << 30, Duration::from_secs(2)), "1.07 GB in 2.00 s: 4.29 Gbit/s");
        assert_eq!(transfer_line(8_000_000, Duration::from_secs(1)), "8.0 MB in 1.00 s: 64 Mbit/s");
        assert_eq!(transfer_line(10, Duration::ZERO), "10 bytes in 0.00 s: too short for a rate");
    }
}
