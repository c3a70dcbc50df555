//! The log: lines on standard error, for people, as JSON or for journald.
//!
//! For commands that serve VMs, a thread of its own writes the log. Whoever reads standard error
//! slowly, or not at all, holds up no thread that serves a guest. A guest or its front end can
//! cause lines as fast as it likes, so each VM has a rate, and so has the whole. What is suppressed
//! or lost is counted, and the log says so.

mod event;
mod format;
mod limit;

use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use zerowire_vhost::memory::write_lines_as;

use crate::{lock, signals};
use event::{EventText, ServedVms, SpanName, attribute};
use format::LogRecord;
use limit::{Admitted, Limits};

pub use format::{LogFormat, printable, rfc3339};

/// The levels that a user may name.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Lines that may wait to be written.
const WAITING: usize = 1024;
/// How often the log says what was suppressed.
const TELL: Duration = Duration::from_secs(10);
/// How long the end waits for standard error to take what is left.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the end looks whether it has.
const LOOK: Duration = Duration::from_millis(1);
/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

/// The format of this process's log, from its start on.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// The format of this process's log; before that begins, lines for people.
fn format() -> LogFormat {
    FORMAT.get().copied().unwrap_or(LogFormat::Text)
}

/// `level`, or what the environment variable ZEROWIRE_LOG says in its place, unless it is empty.
pub fn effective_level(level: &str) -> String {
    let set = std::env::var_os("ZEROWIRE_LOG").filter(|word| !word.is_empty());
    set.map_or_else(|| level.to_owned(), |word| word.to_string_lossy().into_owned())
}

fn filter(level: &str) -> Result<LevelFilter> {
    filter_of(&effective_level(level))
}

fn filter_of(word: &str) -> Result<LevelFilter> {
    let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let level = is_level.then(|| word.parse().ok()).flatten();
    level.with_context(|| format!("log level '{word}': give error, warn, info, debug or trace"))
}

/// Starts logging at `level`, or as the environment variable ZEROWIRE_LOG says, in `format` or in
/// what suits standard error. The thread that logs also writes.
pub fn init(level: &str, format: Option<LogFormat>) -> Result<()> {
    let filter = filter(level)?;
    FORMAT.get_or_init(|| LogFormat::choose(format));
    Registry::default().with(filter).with(Lines::default()).init();
    Ok(())
}

/// The same for a command that serves VMs: a thread writes the lines. Dropping what this returns
/// waits until it has, or for `PATIENCE`.
pub fn serve(level: &str, format: Option<LogFormat>) -> Result<Log> {
    let filter = filter(level)?;
    write_lines_as((*FORMAT.get_or_init(|| LogFormat::choose(format))).into());
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
    let writer = Writer { lines: lines.clone(), shared };
    Registry::default().with(filter).with(Lines { writer: Some(writer), ..Lines::default() }).init();
    Ok(Log { lines, thread: Some(thread) })
}

/// Says a line on standard error. Nobody may read it any more, or its disk may be full: what the
/// program does goes on.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says on standard error why `program` failed, in the format of the log.
pub fn report(program: &str, error: &str) {
    let line = |message: &str| {
        let record = LogRecord { level: Level::ERROR, vm: None, message, fields: &[] };
        write(&format().line(&record, SystemTime::now()));
    };
    match format() {
        LogFormat::Text => say(&format!("{program}: {error}")),
        LogFormat::Json => line(error),
        // Each line needs its priority.
        LogFormat::Journal => format!("{program}: {error}").lines().for_each(line),
    }
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
            std::thread::park_timeout(LOOK);
        }
        while !thread.is_finished() && begin.elapsed() < PATIENCE {
            std::thread::park_timeout(LOOK);
        }
    }
}

/// Where lines go: to the thread, or to standard error at once.
#[derive(Default)]
struct Lines {
    writer: Option<Writer>,
    served: ServedVms,
}

/// The way to the thread.
struct Writer {
    lines: SyncSender<LogLine>,
    shared: Arc<LogShared>,
}

impl Writer {
    /// Hands over what `line` makes, unless there are too many lines of this key.
    fn hand(&self, key: &str, line: impl FnOnce() -> String) {
        let line = match lock(&self.shared.limits).admit(key, Instant::now()) {
            Admitted::Yes => LogLine::Text(line()),
            Admitted::NoneSince => LogLine::Suppressed,
            Admitted::No => return,
        };
        let is_text = matches!(line, LogLine::Text(_));
        if self.lines.try_send(line).is_err() && is_text {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The name of the spans of threads that serve one VM.
const VM_SPAN: &str = "vm";

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().name() != VM_SPAN {
            return;
        }
        let mut name = SpanName::default();
        attributes.record(&mut name);
        if let Some(span) = context.span(id) {
            self.served.enter(&name.0);
            span.extensions_mut().insert(name);
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let name = context.span(&id).and_then(|span| Some(span.extensions().get::<SpanName>()?.0.clone()));
        if let Some(name) = name {
            self.served.leave(&name);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut said = EventText::default();
        event.record(&mut said);
        let of_thread = || Some(context.lookup_current()?.extensions().get::<SpanName>()?.0.clone());
        let vm = said.vm.take().or_else(of_thread);
        let text = attribute(vm.as_deref(), &said.message, &self.served);
        let level = *event.metadata().level();
        let record = LogRecord { level, vm: text.vm, message: text.message, fields: &said.fields };
        let line = || format().line(&record, SystemTime::now());
        match &self.writer {
            Some(writer) => writer.hand(text.key, line),
            None => write(&line()),
        }
    }
}

/// Writes until the last line, and in between what was not to be had.
fn write_all(lines: &Receiver<LogLine>, shared: &LogShared) {
    let mut told = Instant::now();
    loop {
        let has_suppressed = lock(&shared.limits).has_suppressed;
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
            write(&lost_line(format(), lost));
        }
        if end || told.elapsed() >= TELL {
            told = Instant::now();
            let suppressed = lock(&shared.limits).take_suppressed();
            for (key, count) in suppressed {
                write(&suppressed_line(format(), &key, count));
            }
        }
        if end {
            return;
        }
    }
}

/// The line about lines that had no room in the queue.
fn lost_line(format: LogFormat, lost: u64) -> String {
    let message = format!("{lost} lines are lost: standard error did not take them");
    counting_line(format, None, &message, &[("lost", lost.into())])
}

/// The line about lines of a VM, or of others with one key, that exceed their rate.
fn suppressed_line(format: LogFormat, key: &str, count: u64) -> String {
    let key = (!key.is_empty()).then_some(key);
    let fields = [("key", key.into()), ("suppressed", count.into())];
    counting_line(format, key, &limit::report(count), &fields)
}

/// People read who and how many in the text; for programs they are fields.
fn counting_line(
    format: LogFormat,
    key: Option<&str>,
    message: &str,
    fields: &[(&'static str, serde_json::Value)],
) -> String {
    let (level, is_json) = (Level::WARN, format == LogFormat::Json);
    let record = if is_json {
        LogRecord { level, vm: None, message, fields }
    } else {
        LogRecord { level, vm: Some(key.unwrap_or("log")), message, fields: &[] }
    };
    format.line(&record, SystemTime::now())
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
