//! What a child logs, line by line.
//!
//! A child writes to a socket. Its lines go to the supervisor's log, as lines of its VM and under
//! that VM's rate. So a child that was taken over writes neither in the name of a VM that it does
//! not serve, or has just let go, nor faster than it may.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::lock;

/// Bytes of a line at most; the rest of a longer one is another line.
const LINE_BYTES: usize = 4096;

/// How long the socket waits behind a piece: of a child that writes as fast as it can, 100 pieces
/// are read in a second, 400 KB at most.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a VM that has left may be named: what the child said of it may not be read yet.
const LEFT: Duration = Duration::from_secs(10);

/// VMs at most that have left and may be named.
const MOST_LEFT: usize = 1024;

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

/// The names of the VMs that a child serves, which come and go. Clones are the same list.
#[derive(Clone, Default)]
pub(crate) struct VmNames(Arc<Mutex<NameLists>>);

#[derive(Default)]
struct NameLists {
    now: Vec<String>,
    /// Those that have left, and when.
    left: VecDeque<(String, Instant)>,
}

impl VmNames {
    /// These for now.
    pub(crate) fn of(names: impl IntoIterator<Item = String>) -> Self {
        let now = names.into_iter().collect();
        Self(Arc::new(Mutex::new(NameLists { now, left: VecDeque::new() })))
    }

    /// These from now on.
    pub(crate) fn set(&self, names: impl Iterator<Item = String>, at: Instant) {
        let NameLists { now, left } = &mut *lock(&self.0);
        let before = std::mem::replace(now, names.collect());
        left.retain(|(_, then)| may_be_named(*then, at));
        left.extend(before.into_iter().filter(|name| !now.contains(name)).map(|name| (name, at)));
        left.drain(..left.len().saturating_sub(MOST_LEFT));
    }

    /// The first one.
    pub(crate) fn first(&self) -> String {
        lock(&self.0).now.first().cloned().unwrap_or_default()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<String> {
        lock(&self.0).now.clone()
    }

    /// All whose lines the child writes.
    fn of_lines(&self, at: Instant) -> Vec<String> {
        let lists = lock(&self.0);
        let left = lists.left.iter().filter(|(_, then)| may_be_named(*then, at)).map(|(name, _)| name);
        lists.now.iter().chain(left).cloned().collect()
    }
}

/// Whether a VM that left `then` may be named `at` this time.
fn may_be_named(then: Instant, at: Instant) -> bool {
    at.saturating_duration_since(then) < LEFT
}

/// The log of a child. Dropping it ends it behind what was written, whoever has the child's end by
/// then.
pub(crate) struct LogRelay(UnixStream);

impl LogRelay {
    /// Logs what a child writes, as lines of these VMs. What names none of them is the first one's.
    /// Returns the child's end as well.
    pub(crate) fn start(vms: VmNames) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        relay(vms, ours.try_clone()?);
        Ok((Self(ours), theirs.into()))
    }
}

impl Drop for LogRelay {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Has a thread log what comes out of `pipe` until its end.
fn relay(vms: VmNames, mut pipe: impl Read + Send + 'static) {
    let name = vms.first();
    let thread = std::thread::Builder::new().name(format!("{name}-log")).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        let mut lines = Lines::default();
        let mut buffer = [0; LINE_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            lines.take(&buffer[..count], |line| log(&vms.of_lines(Instant::now()), line));
            std::thread::sleep(PAUSE);
        }
        lines.finish(|line| log(&vms.of_lines(Instant::now()), line));
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

/// The level of a line, its VM, and its text. What has no level, such as the message of a panic, is
/// an error.
fn parts<'a>(vms: &'a [String], line: &[u8]) -> (&'static str, &'a str, String) {
    let text: String = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).collect();
    let text = text.trim();
    let level = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]
        .into_iter()
        .find_map(|level| Some((level, text.strip_prefix(level)?.strip_prefix(' ')?)));
    let (level, text) = level.unwrap_or(("ERROR", text));
    let own = |vm: &'a String| Some((vm.as_str(), text.strip_prefix(vm.as_str())?.strip_prefix(": ")?));
    let first = || (vms.first().map_or("", String::as_str), text);
    let (vm, text) = vms.iter().find_map(own).unwrap_or_else(first);
    (level, vm, text.to_owned())
}

fn log(vms: &[String], line: &[u8]) {
    let (level, vm, text) = parts(vms, line);
    tracing::error_span!("vm", name = vm).in_scope(|| match level {
        "ERROR" => tracing::error!("{vm}: {text}"),
        "WARN" => tracing::warn!("{vm}: {text}"),
        "INFO" => tracing::info!("{vm}: {text}"),
        "DEBUG" => tracing::debug!("{vm}: {text}"),
        _ => tracing::trace!("{vm}: {text}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_level_and_is_of_its_vm() {
        let vms = ["web".to_owned(), "db".to_owned()];
        let told = |line: &[u8]| {
            let (level, vm, text) = parts(&vms, line);
            format!("{level} {vm}: {text}")
        };
        assert_eq!(told(b" INFO web: front end connected"), "INFO web: front end connected");
        assert_eq!(told(b" INFO db: front end connected"), "INFO db: front end connected");
        assert_eq!(told(b"ERROR other: was taken"), "ERROR web: other: was taken");
        assert_eq!(told(b"thread 'a' panicked"), "ERROR web: thread 'a' panicked");
        assert_eq!(told(b" WARN web: \x1b[2Ja\tb"), "WARN web: [2Jab");
        assert_eq!(told(b"\xff\xfe"), "ERROR web: \u{fffd}\u{fffd}");
    }

    #[test]
    fn a_line_is_of_a_vm_that_has_just_left() {
        let names = VmNames::of(["a".to_owned(), "b".to_owned()]);
        let start = Instant::now();
        for (at, now, lines) in [
            (0, &["a"][..], ["INFO a: connected", "INFO b: removed", "ERROR a: panicked"]),
            // Another one comes, and leaves.
            (1, &["a", "c"], ["INFO c: connected", "INFO b: removed", "ERROR a: panicked"]),
            (2, &["a"], ["INFO c: removed", "INFO b: removed", "ERROR a: panicked"]),
            (3, &[], ["INFO c: removed", "INFO b: removed", "INFO a: removed"]),
        ] {
            let at = start + Duration::from_secs(at);
            names.set(now.iter().map(|name| (*name).to_owned()), at);
            let vms = names.of_lines(at);
            let said = lines.map(|line| {
                let (level, vm, text) = parts(&vms, line.as_bytes());
                format!("{level} {vm}: {text}")
            });
            assert_eq!(said, lines);
            assert_eq!(names.all(), now);
        }
        assert_eq!(names.of_lines(start + LEFT), ["c", "a"]);
        for n in 0..=MOST_LEFT {
            names.set([n.to_string()].into_iter(), start);
        }
        let named = names.of_lines(start);
        assert_eq!((named.len(), named[1].as_str()), (1 + MOST_LEFT, "0"));
    }

    /// One byte at a time, and a word at the end.
    struct Dribble(usize, std::sync::mpsc::Sender<()>);

    impl Read for Dribble {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                let _ = self.1.send(());
                return Ok(0);
            }
            (self.0, into[0]) = (self.0 - 1, b'\n');
            Ok(1)
        }
    }

    #[test]
    fn a_child_that_writes_single_bytes_wakes_nobody_more_often() {
        let (ended, end) = std::sync::mpsc::channel();
        let begin = std::time::Instant::now();
        relay(VmNames::of(["web".to_owned()]), Dribble(10, ended));
        end.recv().expect("it is read to its end");
        assert!(begin.elapsed() >= 10 * PAUSE, "{:?}", begin.elapsed());
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
