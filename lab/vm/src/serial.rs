//! The guest's serial line: everything it prints, and the shell behind it.
//!
//! A thread collects the output all the time. So the guest never waits for a reader, and the log is
//! whole when a test fails.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What the kernel says before it gives up; waiting on is useless then.
const PANIC: &[u8] = b"Kernel panic";

/// For the shell to answer once more, after it has not.
const ALIVE: Duration = Duration::from_secs(10);

/// For the kernel to answer where the shell does not.
const KERNEL_ALIVE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct SerialBytes {
    bytes: Vec<u8>,
    closed: bool,
}

#[derive(Debug, Default)]
struct SerialInbox {
    received: Mutex<SerialBytes>,
    news: Condvar,
}

impl SerialInbox {
    fn lock(&self) -> MutexGuard<'_, SerialBytes> {
        // The lock guards plain bytes that are valid at any moment.
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a command in the guest wrote (both streams) and its exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output and error, without line ends at either end.
    pub text: String,
    /// The exit status of the shell, 0 for success.
    pub status: i32,
}

/// Marks the error of a guest whose shell runs nothing: what it runs stands still, or the whole
/// guest does.
#[derive(Debug, thiserror::Error)]
#[error("the guest's shell does not answer")]
pub struct Silent;

/// The connection to a guest's serial line.
#[derive(Debug)]
pub struct Serial {
    stream: UnixStream,
    shared: Arc<SerialInbox>,
    /// Bytes before this were looked at.
    position: usize,
    next: u64,
}

impl Serial {
    /// Takes over a connected socket; all output also goes to the file `log`.
    ///
    /// # Errors
    /// The log can't be created or the thread not started.
    pub fn new(stream: UnixStream, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let shared = Arc::new(SerialInbox::default());
        let reader = stream.try_clone()?;
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("serial".into()).spawn(move || collect(reader, file, &theirs))?;
        Ok(Self { stream, shared, position: 0, next: 1 })
    }

    /// Runs a shell command in the guest and waits for its end.
    ///
    /// # Errors
    /// The guest does not finish within `limit`, panics, or is gone. The command then
    /// may still run; a later call waits for the guest's shell first.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output> {
        if command.contains('\n') {
            bail!("a guest command must be one line: {command:?}");
        }
        let what = || format!("in the guest: `{command}`");
        let number = self.next;
        let answer = self.command(command, limit).with_context(what);
        let Err(error) = answer else { return answer };
        // A shell that runs something answers nothing else: one that answers has not got the line,
        // or not whole. The line end closes what came of it.
        let probe = self.stream.write_all(b"\n").context("send").and_then(|()| self.command("true", ALIVE));
        match probe {
            Err(_) => Err(error.context(Silent)),
            Ok(said) if said.text.contains(&format!("@@END {number} ")) => Err(error),
            Ok(_) => {
                println!("  the guest's shell has not got a line; it is sent again: `{command}`");
                self.command(command, limit).with_context(what)
            }
        }
    }

    /// Whether the guest's kernel takes an interrupt and says something: the stacks of tasks that
    /// wait for a device go to the log. The line must have had a break just before
    /// (admin-guide/sysrq.rst).
    pub fn kernel_answers(&mut self) -> bool {
        self.stream.write_all(b"w").is_ok() && self.wait("sysrq: ", KERNEL_ALIVE).is_ok()
    }

    fn command(&mut self, command: &str, limit: Duration) -> Result<Output> {
        let number = self.next;
        self.next += 1;
        self.stream
            .write_all(format!("{number} {command}\n").as_bytes())
            .context("send a line to the guest")?;
        let marker = format!("\n@@END {number} ");
        let (text, rest) = self.wait(&marker, limit)?;
        let status = rest.parse().with_context(|| format!("exit status '{rest}'"))?;
        Ok(Output { text, status })
    }

    /// Waits for the shell of a guest that boots; returns the kernel's release.
    ///
    /// # Errors
    /// As [`Serial::run`].
    pub fn wait_ready(&mut self, limit: Duration) -> Result<String> {
        let (_, release) = self.wait("\n@@READY ", limit).context("the guest's boot")?;
        Ok(release)
    }

    /// Waits until a line starts with the marker; returns what came before it and
    /// the rest of that line.
    fn wait(&mut self, marker: &str, limit: Duration) -> Result<(String, String)> {
        let deadline = Instant::now() + limit;
        let mut received = self.shared.lock();
        // Neither the marker nor the kernel's last words begin before this. Much may come in small
        // pieces.
        let mut searched = self.position;
        loop {
            let news = &received.bytes[self.position..];
            let (old, new) = news.split_at(searched - self.position);
            if let Some((before, line)) = split_at_marker(new, marker.as_bytes()) {
                let text = clean(&news[..old.len() + before.len()]);
                self.position = searched + before.len() + marker.len() + line.len() + 1;
                return Ok((text, clean(line)));
            }
            if find(new, PANIC).is_some() {
                bail!("the guest's kernel panicked; it said: {}", tail(news));
            }
            let begun = find(new, marker.as_bytes());
            let begun = begun.unwrap_or_else(|| new.len().saturating_sub(marker.len().max(PANIC.len())));
            searched += begun;
            if received.closed {
                bail!("QEMU has closed the serial line; the guest's last words: {}", tail(news));
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                bail!("no answer within {limit:?}; the guest's last words: {}", tail(news));
            };
            let (guard, _) =
                self.shared.news.wait_timeout(received, left).unwrap_or_else(PoisonError::into_inner);
            received = guard;
        }
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        // Ends the reader thread; it may have ended already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn collect(mut stream: UnixStream, mut log: File, shared: &SerialInbox) {
    let mut buffer = [0; 4096];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let mut received = shared.lock();
        received.bytes.extend_from_slice(&buffer[..length]);
        received.closed = length == 0;
        shared.news.notify_all();
        drop(received);
        // A full disk must not stop the test; the log is only read after a failure.
        let _ = log.write_all(&buffer[..length]);
        if length == 0 {
            return;
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

fn split_at_marker<'a>(bytes: &'a [u8], marker: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let start = find(bytes, marker)?;
    let line = &bytes[start + marker.len()..];
    let end = line.iter().position(|&byte| byte == b'\n')?;
    Some((&bytes[..start], &line[..end]))
}

fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "").trim_matches('\n').to_owned()
}

fn tail(bytes: &[u8]) -> String {
    const SHOWN: usize = 400;
    clean(&bytes[bytes.len().saturating_sub(SHOWN)..])
}

#[cfg(test)]
mod tests;
