//! Statistics on standard output or standard error, written by a thread of its own. Whoever reads
//! them slowly, or has stopped reading, holds up neither serving nor its end.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

/// Texts that may wait behind the one that is being written.
const WAITING: usize = 8;
/// How long the end waits for its output to take what is left.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);

/// What to write.
enum QueuedText {
    /// While VMs are served.
    Meanwhile(String),
    /// Behind it there is nothing more.
    Last(String),
}

/// Where texts go.
#[derive(Clone, Copy, Debug)]
pub enum PrintTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl fmt::Display for PrintTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "standard output",
            Self::Stderr => "standard error",
        })
    }
}

impl PrintTarget {
    fn write(self, text: &str) -> io::Result<()> {
        fn all(mut out: impl io::Write, text: &str) -> io::Result<()> {
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        match self {
            Self::Stdout => all(io::stdout().lock(), text),
            Self::Stderr => all(io::stderr().lock(), text),
        }
    }
}

/// Writes text by text. Its thread begins with the first one.
pub struct Printer {
    target: PrintTarget,
    running: Option<Running>,
}

struct Running {
    texts: SyncSender<QueuedText>,
    thread: JoinHandle<io::Result<()>>,
}

impl Printer {
    /// Writes to `target`.
    pub fn to(target: PrintTarget) -> Self {
        Self { target, running: None }
    }

    /// Has `text` written, without waiting for that. It is lost, and the log says so, where as many
    /// as may wait do.
    pub fn print(&mut self, text: Result<String>) {
        if let Err(e) = text.and_then(|text| self.queue(text)) {
            tracing::error!("SIGUSR1: these statistics are lost: {e:#}");
        }
    }

    fn queue(&mut self, text: String) -> Result<()> {
        let sent = self.running()?.texts.try_send(QueuedText::Meanwhile(text));
        sent.map_err(|_| anyhow!("{} takes nothing, and {WAITING} wait already", self.target))
    }

    /// Has `text` written behind all others, and waits for that as long as [`PATIENCE`] says. Where
    /// it was not the end is a failure, and the log says why.
    pub fn finish(mut self, text: String) -> ExitCode {
        let Err(e) = self.last(text) else { return ExitCode::SUCCESS };
        tracing::error!("{e:#}");
        ExitCode::FAILURE
    }

    fn last(&mut self, text: String) -> Result<()> {
        let target = self.target;
        let late = || anyhow!("the last statistics are lost: {target} did not take them within {PATIENCE:?}");
        self.running()?;
        let Some(Running { texts, thread }) = self.running.take() else { return Err(late()) };
        let begin = Instant::now();
        let mut text = QueuedText::Last(text);
        while let Err(TrySendError::Full(back)) = texts.try_send(text) {
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
            text = back;
            std::thread::sleep(LOOK);
        }
        while !thread.is_finished() {
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
            std::thread::sleep(LOOK);
        }
        let written = thread.join().map_err(|_| anyhow!("the thread that writes statistics panicked"))?;
        written.with_context(|| unwritten(target))
    }

    fn running(&mut self) -> Result<&Running> {
        if self.running.is_none() {
            let (texts, queue) = sync_channel(WAITING);
            let thread = std::thread::Builder::new().name("statistics".to_owned());
            let target = self.target;
            let thread =
                thread.spawn(move || write_all(target, &queue)).context("no thread to write them")?;
            self.running = Some(Running { texts, thread });
        }
        self.running.as_ref().context("no thread to write them")
    }
}

/// Why statistics are not where they should be.
fn unwritten(target: PrintTarget) -> String {
    format!("statistics can't be written to {target}")
}

/// Writes until the last text, or until no more can come. Returns the result of the last write.
fn write_all(target: PrintTarget, texts: &Receiver<QueuedText>) -> io::Result<()> {
    while let Ok(text) = texts.recv() {
        match text {
            QueuedText::Last(text) => return target.write(&text),
            QueuedText::Meanwhile(text) => {
                if let Err(e) = target.write(&text) {
                    tracing::error!("SIGUSR1: {}: {e}", unwritten(target));
                }
            }
        }
    }
    Ok(())
}
