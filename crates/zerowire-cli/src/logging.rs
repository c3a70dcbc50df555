//! The log: plain lines on standard error.
//!
//! For commands that serve VMs, a thread of its own writes the log. Whoever reads standard error
//! slowly, or not at all, holds up no thread that serves a guest. A guest or its front end can
//! cause lines as fast as it likes, so each VM has a rate, and so has the whole. What is suppressed
//! or lost is counted, and the log says so.

mod limit;

use std::fmt::Write as _;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::signals;
use limit::{Admitted, Limits};

/// The levels that a user may name.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Lines that may wait to be written.
const WAITING: usize = 1024;
/// Bytes of a line at most; the rest of a longer one is cut off.
const LINE_BYTES: usize = 4096;
/// How often the log says what was suppressed.
const TELL: Duration = Duration::from_secs(10);
/// How long the end waits for standard error to take what is left.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the end looks whether it has.
const LOOK: Duration = Duration::from_millis(1);
/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

fn filter(level: &str) -> Result<LevelFilter> {
    filter_of(&std::env::var("ZEROWIRE_LOG").unwrap_or_else(|_| level.to_owned()))
}

fn filter_of(word: &str) -> Result<LevelFilter> {
    word.parse().with_context(|| format!("log level '{word}': give error, warn, info, debug or trace"))
}

/// Starts logging at `level`, or as the environment variable ZEROWIRE_LOG says. The thread that
/// logs also writes.
pub fn init(level: &str) -> Result<()> {
    Registry::default().with(filter(level)?).with(Lines(None)).init();
    Ok(())
}

/// The same for a command that serves VMs: a thread writes the lines. Dropping what this returns
/// waits until it has, or for `PATIENCE`.
pub fn serve(level: &str) -> Result<Log> {
    let filter = filter(level)?;
    let (lines, queue) = sync_channel(WAITING);
    let shared = Arc::<LogShared>::default();
    let for_thread = shared.clone();
    // It must not be the thread that a signal finds: those are waited for elsewhere, and end the
    // program here.
    let thread = signals::without(|| {
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || write_all(&queue, &for_thread))
    });
    let thread = thread.context("no thread to write the log")?;
    Registry::default().with(filter).with(Lines(Some(Writer { lines: lines.clone(), shared }))).init();
    Ok(Log { lines, thread: Some(thread) })
}

/// What to write.
enum LogLine {
    Text(String),
    /// What is suppressed from now on, after a while.
    Suppressed,
    /// Behind it there is nothing more.
    Last,
}

#[derive(Default)]
struct LogShared {
    limits: Mutex<Limits>,
    /// Lines for which the queue had no room.
    lost: AtomicU64,
}

impl LogShared {
    fn limits(&self) -> std::sync::MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log of a command that serves VMs.
pub struct Log {
    lines: SyncSender<LogLine>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Log {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let begin = Instant::now();
        while let Err(TrySendError::Full(_)) = self.lines.try_send(LogLine::Last) {
            if begin.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(LOOK);
        }
        while !thread.is_finished() && begin.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
        }
    }
}

/// Where lines go: to the thread, or to standard error at once.
struct Lines(Option<Writer>);

/// The way to the thread.
struct Writer {
    lines: SyncSender<LogLine>,
    shared: Arc<LogShared>,
}

impl Writer {
    fn hand(&self, of: &str, text: String) {
        let line = match self.shared.limits().admit(of, Instant::now()) {
            Admitted::Yes => LogLine::Text(text),
            Admitted::NoneSince => LogLine::Suppressed,
            Admitted::No => return,
        };
        let is_text = matches!(line, LogLine::Text(_));
        if self.lines.try_send(line).is_err() && is_text {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The VM that a thread serves: the field of its span.
struct VmName(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut name = FieldText::default();
        attributes.record(&mut name);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(VmName(name.0));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut text = FieldText::default();
        event.record(&mut text);
        let vm = context.lookup_current().and_then(|s| s.extensions().get::<VmName>().map(|vm| vm.0.clone()));
        let (of, line) = line(*event.metadata().level(), vm.as_deref(), &text.0);
        match &self.0 {
            Some(writer) => writer.hand(of, line),
            None => write(&line),
        }
    }
}

/// The text of an event or a span's field.
#[derive(Default)]
struct FieldText(String);

impl Visit for FieldText {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{value:?}");
    }

    fn record_str(&mut self, _: &Field, value: &str) {
        self.0.push_str(value);
    }
}

/// Whose line it is, and the line. One of a thread that serves one VM begins with the VM's name;
/// others say themselves of which VM they are, in the same way.
fn line<'a>(level: Level, vm: Option<&'a str>, text: &'a str) -> (&'a str, String) {
    let named = text.split_once(": ").map_or("", |(name, _)| name);
    let (of, prefix) = match vm {
        Some(vm) if text.strip_prefix(vm).is_none_or(|rest| !rest.starts_with(": ")) => {
            (vm, format!("{vm}: "))
        }
        Some(vm) => (vm, String::new()),
        None => (named, String::new()),
    };
    let mut line = format!("{level:>5} {prefix}{text}");
    if line.len() >= LINE_BYTES {
        let whole = (0..LINE_BYTES).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(whole.unwrap_or_default());
    }
    line.push('\n');
    (of, line)
}

/// Writes until the last line, and in between what was not to be had.
fn write_all(lines: &Receiver<LogLine>, shared: &LogShared) {
    let mut told = Instant::now();
    loop {
        let has_suppressed = shared.limits().has_suppressed();
        let next = if has_suppressed {
            lines.recv_timeout(TELL.saturating_sub(told.elapsed()))
        } else {
            lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        let end = match next {
            Ok(LogLine::Text(line)) => {
                write(&line);
                false
            }
            Ok(LogLine::Last) | Err(RecvTimeoutError::Disconnected) => true,
            Ok(LogLine::Suppressed) | Err(RecvTimeoutError::Timeout) => false,
        };
        let lost = shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            write(&format!(" WARN log: {lost} lines are lost: standard error did not take them\n"));
        }
        if end || told.elapsed() >= TELL {
            told = Instant::now();
            let suppressed = shared.limits().take_suppressed();
            for (of, count) in suppressed {
                write(&limit::told(&of, count));
            }
        }
        if end {
            return;
        }
    }
}

/// Waits for standard error. Not through `std`, whose lock those would wait for who have to say
/// something at the end.
fn write(line: &str) {
    let stderr = io::stderr();
    let mut left = line.as_bytes();
    while !left.is_empty() {
        match rustix::io::write(&stderr, left) {
            Ok(n) => left = &left[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)], None);
            }
            // Nobody reads it any more.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
