//! How a line of the log is written: for people, as JSON, or for journald.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde_json::Value;
use tracing::Level;
use zerowire_vhost::memory::LineFormat;

/// Bytes of a line at most, its end included; the rest of a longer one is cut off.
pub(super) const LINE_BYTES: usize = 4096;
/// Keys of a JSON line that no field of an event takes.
const OWN_KEYS: [&str; 4] = ["time", "level", "vm", "message"];

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A level and a text.
    Text,
    /// A JSON object a line, with `time`, `level`, `vm`, `message` and the event's fields.
    Json,
    /// A text behind its priority, as systemd reads it (sd-daemon(3)).
    Journal,
}

/// What a signal handler writes itself has the same format.
impl From<LogFormat> for LineFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
            LogFormat::Journal => Self::Journal,
        }
    }
}

/// What a line says.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRecord<'a> {
    pub(super) level: Level,
    /// Name of the VM that it is about, if it is about one.
    pub(super) vm: Option<&'a str>,
    /// Without the name of the VM.
    pub(super) message: &'a str,
    /// Further values by their keys.
    pub(super) fields: &'a [(&'static str, Value)],
}

impl LogFormat {
    /// What the user asked for, else what suits standard error.
    pub fn choose(asked: Option<Self>) -> Self {
        asked.unwrap_or_else(|| if goes_to_journal() { Self::Journal } else { Self::Text })
    }

    /// The line, with its end.
    pub(super) fn line(self, record: &LogRecord<'_>, now: SystemTime) -> String {
        match self {
            Self::Text => text_line(&format!("{:>5} ", record.level), record),
            Self::Json => json_line(record, now),
            Self::Journal => text_line(&format!("<{}>", priority(record.level)), record),
        }
    }
}

/// Whether standard error is the journal's stream: systemd names its device and inode
/// (systemd.exec(5), JOURNAL_STREAM). A program that redirects standard error inherits the variable
/// all the same.
fn goes_to_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let file = rustix::fs::fstat(std::io::stderr());
    file.is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn text_line(head: &str, record: &LogRecord<'_>) -> String {
    let mut line = head.to_owned();
    if let Some(vm) = record.vm {
        put_printable(&mut line, vm);
        line.push_str(": ");
    }
    put_printable(&mut line, record.message);
    for (key, value) in record.fields {
        let _ = write!(line, " {key}=");
        match value {
            Value::String(text) => put_printable(&mut line, text),
            other => put_printable(&mut line, &other.to_string()),
        }
    }
    if line.len() >= LINE_BYTES {
        let whole = (0..LINE_BYTES).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(whole.unwrap_or_default());
    }
    line.push('\n');
    line
}

/// `text` with its control characters escaped, newlines too.
pub fn printable(text: &str) -> String {
    let mut line = String::new();
    put_printable(&mut line, text);
    line
}

/// Control characters are escaped: what comes from outside can neither begin a line nor move a
/// terminal's cursor.
fn put_printable(line: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
}

fn json_line(record: &LogRecord<'_>, now: SystemTime) -> String {
    let level = record.level.as_str().to_ascii_lowercase();
    let mut line = format!("{{\"time\":\"{}\",\"level\":\"{level}\"", rfc3339(now));
    if let Some(vm) = record.vm {
        let _ = write!(line, ",\"vm\":{}", quoted(vm, LINE_BYTES / 4));
    }
    let head = line.len();
    for (key, value) in record.fields.iter().filter(|(key, _)| !OWN_KEYS.contains(key)) {
        let _ = write!(line, ",\"{key}\":{value}");
    }
    // What follows needs room: fields as long as this are left out.
    if line.len() > LINE_BYTES / 2 {
        line.truncate(head);
    }
    line.push_str(",\"message\":");
    let end = "}\n";
    let message = quoted(record.message, LINE_BYTES - line.len() - end.len());
    line + &message + end
}

/// `text` as a string of JSON with at most `room` bytes; what exceeds them is cut off.
fn quoted(text: &str, room: usize) -> String {
    let mut len = 2;
    let cut = text.char_indices().find(|(_, c)| {
        len += match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\x08' | '\x0c' => 2,
            c if u32::from(*c) < 0x20 => 6,
            c => c.len_utf8(),
        };
        len > room
    });
    Value::from(&text[..cut.map_or(text.len(), |(at, _)| at)]).to_string()
}

/// A time of RFC 3339, in UTC, with microseconds.
pub fn rfc3339(time: SystemTime) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = date(since.as_secs() / DAY);
    let second = since.as_secs() % DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// Year, month and day of the day that is `days` behind 1970-01-01. The count begins anew with each
/// 400 years (146 097 days), and its years begin in March, so that a leap day is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests;
