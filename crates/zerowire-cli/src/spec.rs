//! Arguments of a form of their own: KEY=VALUE,KEY=VALUE,…, numbers of bytes, times, files of a
//! capture.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use zerowire_capture::CaptureRotation;

/// The least size of a file with others behind it, bytes: it holds the longest packet, and the
/// blocks of 256 VMs.
const MIN_FILE_BYTES: u64 = 1 << 20;

/// Most files of a capture.
const MAX_FILES: u32 = 1000;

/// The keys with their values, in order. A key that is there twice is an error: one of the values
/// would be passed over.
pub fn pairs(text: &str) -> Result<Vec<(&str, &str)>> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| anyhow!("'{part}' is not KEY=VALUE"))?;
        if let Some((_, before)) = pairs.iter().find(|(k, _)| *k == key) {
            bail!("{key}={before} and {key}={value}: give '{key}' once");
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// The value of a key that has to be given.
pub fn needed<T>(value: Option<T>, what: &str) -> Result<T> {
    value.ok_or_else(|| anyhow!("{what} is missing"))
}

/// A number of bytes: 268435456, 256M or 1G, say.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((digits, "K" | "k")) => (digits, 10),
        Some((digits, "M" | "m")) => (digits, 20),
        Some((digits, "G" | "g")) => (digits, 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "give a number of bytes, such as 268435456, 256M or 1G".to_owned())
}

/// The most seconds of --timeout, some 30 million years.
const MOST_SECONDS: f64 = 1e15;

/// The time of --timeout.
pub fn timeout(seconds: Option<f64>) -> Result<Option<Duration>> {
    let Some(s) = seconds else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(s).ok().filter(|d| !d.is_zero() && s <= MOST_SECONDS);
    timeout.map(Some).ok_or_else(|| {
        anyhow!(
            "--timeout {s:?} is no time to wait: give seconds greater than 0, up to 10^15, or leave it out"
        )
    })
}

/// SIZE,FILES.
pub fn rotation(text: &str) -> Result<CaptureRotation, String> {
    let wrong = || "give SIZE,FILES such as 100M,10: a size of 1M or more, and 2 to 1000 files".to_owned();
    let (size, files) = text.split_once(',').ok_or_else(wrong)?;
    let (bytes, files) = (bytes(size)?, files.parse().map_err(|_| wrong())?);
    if bytes < MIN_FILE_BYTES || !(2..=MAX_FILES).contains(&files) {
        return Err(wrong());
    }
    Ok(CaptureRotation { bytes, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_number_of_files_are_taken() {
        assert_eq!(rotation("100M,10"), Ok(CaptureRotation { bytes: 100 << 20, files: 10 }));
        assert_eq!(rotation("1048576,2"), Ok(CaptureRotation { bytes: 1 << 20, files: 2 }));
        for bad in ["", "1M", "1M,", "1M,1", "1M,1001", "1048575,2", "1M,2,3", "x,2", "1M,-2"] {
            let said = rotation(bad).expect_err(bad);
            assert!(said.contains("such as"), "{bad}: {said}");
        }
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, want) in [("0", 0), ("4096", 4096), ("3k", 3 << 10), ("256M", 256 << 20), ("1G", 1 << 30)]
        {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for bad in ["", "M", "-1", "1T", "1.5G", "1 G", "99999999999G", "1€"] {
            assert!(bytes(bad).unwrap_err().contains("256M"), "{bad}");
        }
    }

    #[test]
    fn pairs_keep_their_order_and_come_once() {
        assert_eq!(pairs("b=1,a=x=y,c=").unwrap(), [("b", "1"), ("a", "x=y"), ("c", "")]);
        for (bad, words) in
            [("a=1,b", "'b' is not KEY=VALUE"), ("", "''"), ("a=1,b=2,a=3", "a=1 and a=3: give 'a' once")]
        {
            let e = pairs(bad).unwrap_err().to_string();
            assert!(e.contains(words), "{bad}: {e}");
        }
    }
}
