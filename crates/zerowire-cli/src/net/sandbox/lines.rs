//! What a child logs, line by line.
//!
//! A child writes to a pipe. Its lines go to the supervisor's log, as lines of its VM and under
//! that VM's rate. So a child that was taken over writes neither in another one's name nor faster
//! than it may.

use std::io::Read;
use std::time::Duration;

/// Bytes of a line at most; the rest of a longer one is another line.
const LINE_BYTES: usize = 4096;

/// How long the pipe waits behind a piece: of a child that writes as fast as it can, 100 pieces are
/// read in a second, 400 KB at most.
const PAUSE: Duration = Duration::from_millis(10);

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

/// Has a thread log what comes out of `pipe` until its end, as lines of the VM `name`.
pub(super) fn relay(name: &str, mut pipe: impl Read + Send + 'static) {
    let vm = name.to_owned();
    let thread = std::thread::Builder::new().name(format!("{name}-log")).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        let _lines = tracing::error_span!("vm", name = vm).entered();
        let mut lines = Lines::default();
        let mut buffer = [0; LINE_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            lines.take(&buffer[..count], |line| log(&vm, line));
            std::thread::sleep(PAUSE);
        }
        lines.finish(|line| log(&vm, line));
    });
    if let Err(e) = started {
        tracing::error!("{name}: no thread for its log: {e}");
    }
}

/// The beginning of a line that has no end yet.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for byte in bytes {
            if *byte != b'\n' {
                self.0.push(*byte);
            }
            let ends = *byte == b'\n' || self.0.len() == LINE_BYTES;
            if ends && !self.0.is_empty() {
                line(&self.0);
                self.0.clear();
            }
        }
    }

    fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            line(&self.0);
        }
    }
}

/// The level of a line, and its text behind the VM's name. What has no level, such as the message
/// of a panic, is an error.
fn parts(vm: &str, line: &[u8]) -> (&'static str, String) {
    let text: String = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).collect();
    let text = text.trim();
    let level = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]
        .into_iter()
        .find_map(|level| Some((level, text.strip_prefix(level)?.strip_prefix(' ')?)));
    let (level, text) = level.unwrap_or(("ERROR", text));
    let own = text.strip_prefix(vm).and_then(|rest| rest.strip_prefix(": "));
    (level, own.unwrap_or(text).to_owned())
}

fn log(vm: &str, line: &[u8]) {
    match parts(vm, line) {
        ("ERROR", text) => tracing::error!("{vm}: {text}"),
        ("WARN", text) => tracing::warn!("{vm}: {text}"),
        ("INFO", text) => tracing::info!("{vm}: {text}"),
        ("DEBUG", text) => tracing::debug!("{vm}: {text}"),
        (_, text) => tracing::trace!("{vm}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_level_and_is_of_its_vm() {
        let told = |line: &str| parts("web", line.as_bytes());
        assert_eq!(told(" INFO web: front end connected"), ("INFO", "front end connected".to_owned()));
        assert_eq!(told("ERROR other: was taken"), ("ERROR", "other: was taken".to_owned()));
        assert_eq!(told("thread 'a' panicked"), ("ERROR", "thread 'a' panicked".to_owned()));
        assert_eq!(told(" WARN web: \u{1b}[2Ja\tb"), ("WARN", "[2Jab".to_owned()));
        assert_eq!(parts("web", b"\xff\xfe"), ("ERROR", "\u{fffd}\u{fffd}".to_owned()));
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let mut lines = Lines::default();
        let mut lengths = Vec::new();
        for piece in [&b"one\ntw"[..], b"o\n", &[b'x'; 3 * LINE_BYTES], b"\nlast"] {
            lines.take(piece, |line| lengths.push(line.len()));
        }
        lines.finish(|line| lengths.push(line.len()));
        assert_eq!(lengths, [3, 3, LINE_BYTES, LINE_BYTES, LINE_BYTES, 4]);
    }
}
