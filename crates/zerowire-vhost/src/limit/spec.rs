//! A limit as a user gives it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bucket::{BucketSpec, MAX_TOKENS};

/// What a burst is by default: what comes in a second, divided by this.
const DEFAULT_BURST_PART: u64 = 10;

/// The shortest burst: what comes in a second, divided by this. A thread that wakes up later than
/// that would lose some of the rate.
const LEAST_BURST_PART: u64 = 1000;

/// The limit of one direction: bytes, operations, or both. What passes takes tokens of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    bytes: Option<BucketSpec>,
    operations: Option<BucketSpec>,
}

impl Limit {
    /// Bytes a second.
    pub fn bytes(&self) -> Option<BucketSpec> {
        self.bytes
    }

    /// Operations a second.
    pub fn operations(&self) -> Option<BucketSpec> {
        self.operations
    }
}

/// No limit. The text is what the user reads.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("limit '{limit}': {problem}")]
pub struct BadLimit {
    limit: String,
    problem: String,
}

/// The form of a limit, for error texts.
const FORM: &str = "give BYTES/s or BITSbit/s, or ops=N/s, or both, and behind it burst=BYTES, once=BYTES, ops-burst=N, \
                    ops-once=N, with ',' or '+' between them: 100M/s,burst=10M,ops=10k/s";

/// What was given of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct LimitParts {
    rate: Option<u64>,
    burst: Option<u64>,
    once: Option<u64>,
}

impl LimitParts {
    /// The bucket, if there is a rate; `words` are the names of burst and one-time burst.
    fn bucket(self, [burst, once]: [&str; 2]) -> Result<Option<BucketSpec>, String> {
        let Some(rate) = self.rate else {
            return match (self.burst, self.once) {
                (None, None) => Ok(None),
                (Some(n), _) => Err(format!("{burst}={n} without a rate: {FORM}")),
                (_, Some(n)) => Err(format!("{once}={n} without a rate: {FORM}")),
            };
        };
        let least = rate.div_ceil(LEAST_BURST_PART);
        let size = self.burst.unwrap_or(rate.div_ceil(DEFAULT_BURST_PART));
        if size < least {
            return Err(format!("{burst}={size}: at least {least}, what comes in a millisecond"));
        }
        Ok(Some(BucketSpec { rate, size, one_time_burst: self.once.unwrap_or(0) }))
    }
}

impl FromStr for Limit {
    type Err = BadLimit;

    fn from_str(text: &str) -> Result<Self, BadLimit> {
        parse(text).map_err(|problem| BadLimit { limit: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Limit, String> {
    let (mut bytes, mut operations) = (LimitParts::default(), LimitParts::default());
    for part in text.split([',', '+']) {
        let (place, value) = match part.split_once('=') {
            None => (&mut bytes.rate, byte_rate(part)),
            Some(("ops", value)) => (&mut operations.rate, a_second(value).and_then(number)),
            Some(("burst", value)) => (&mut bytes.burst, number(value)),
            Some(("once", value)) => (&mut bytes.once, number(value)),
            Some(("ops-burst", value)) => (&mut operations.burst, number(value)),
            Some(("ops-once", value)) => (&mut operations.once, number(value)),
            Some((key, _)) => return Err(format!("'{key}' is not known: {FORM}")),
        };
        let value = value.ok_or_else(|| format!("'{part}': {FORM}"))?;
        if value > MAX_TOKENS {
            return Err(format!("'{part}': at most {MAX_TOKENS}"));
        }
        if place.replace(value).is_some() {
            return Err(format!("'{part}': the same was given before; give it once"));
        }
    }
    for rate in [bytes.rate, operations.rate] {
        if rate == Some(0) {
            return Err("a rate of 0: nothing would ever pass; give at least 1/s, or 8bit/s".to_owned());
        }
    }
    let limit = Limit {
        bytes: bytes.bucket(["burst", "once"])?,
        operations: operations.bucket(["ops-burst", "ops-once"])?,
    };
    match limit {
        Limit { bytes: None, operations: None } => Err(FORM.to_owned()),
        limit => Ok(limit),
    }
}

/// What stands before "/s".
fn a_second(text: &str) -> Option<&str> {
    text.strip_suffix("/s")
}

/// Bytes a second: 100M/s, 100MB/s or 800Mbit/s.
fn byte_rate(text: &str) -> Option<u64> {
    let rate = a_second(text)?;
    match rate.strip_suffix("bit") {
        Some(bits) => number(bits).map(|bits| bits / 8),
        None => number(rate.strip_suffix('B').unwrap_or(rate)),
    }
}

/// A number with K, M, G or T for 1000 and its powers.
fn number(text: &str) -> Option<u64> {
    let (digits, power) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (digits, "k" | "K") => (digits, 1),
        (digits, "m" | "M") => (digits, 2),
        (digits, "g" | "G") => (digits, 3),
        (digits, "t" | "T") => (digits, 4),
        _ => (text, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1000u64.pow(power))
}

impl fmt::Display for Limit {
    /// As it can be given, with all that is a default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bytes) = self.bytes {
            write!(f, "{}/s,burst={}", bytes.rate, bytes.size)?;
            if bytes.one_time_burst > 0 {
                write!(f, ",once={}", bytes.one_time_burst)?;
            }
        }
        if let Some(operations) = self.operations {
            let comma = if self.bytes.is_some() { "," } else { "" };
            write!(f, "{comma}ops={}/s,ops-burst={}", operations.rate, operations.size)?;
            if operations.one_time_burst > 0 {
                write!(f, ",ops-once={}", operations.one_time_burst)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
