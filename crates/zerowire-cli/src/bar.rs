//! A bar on standard error, where that is a terminal; bytes in words.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `total` steps, or one without an end; None where standard error isn't a terminal. The
/// templates are those of [`ProgressStyle::with_template`], for the one and the other.
pub fn bar(total: Option<u64>, known: &str, unknown: &str) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), known),
        None => (ProgressBar::no_length(), unknown),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    Some(bar)
}

/// A bar of `total` bytes.
pub fn bytes_bar(total: Option<u64>) -> Option<ProgressBar> {
    bar(
        total,
        "  {bar:40} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}",
        "  {spinner} {decimal_bytes}, {decimal_bytes_per_sec}",
    )
}

/// Bytes with a decimal unit: 1 GB is 10⁹ bytes.
pub fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
