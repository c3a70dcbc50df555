//! Child processes, folders and files that must not outlive this program.
//!
//! Dropping a [`Held`] removes what it stands for. A signal that ends the program drops nothing, so
//! [`end_on_signals`] catches it. It ends all children, removes all folders and files, and then
//! ends the program by that signal.

use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;
use zerowire_testkit::process::{catch, end_by, kill_with_thread};

/// How long a child may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(2);

static ALL: Mutex<Vec<HeldEntry>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct HeldEntry {
    id: usize,
    /// A child that was not waited for.
    child: Option<Pid>,
    folder: Option<PathBuf>,
    file: Option<PathBuf>,
}

fn all() -> MutexGuard<'static, Vec<HeldEntry>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most one child, one folder of temporary files, and one file.
#[derive(Debug)]
pub struct Held {
    id: usize,
    folder: Option<TempDir>,
    file: Option<PathBuf>,
}

impl Held {
    /// Nothing yet.
    pub fn nothing() -> Self {
        Self::register(&mut all(), None, None)
    }

    /// Makes a folder for temporary files. Its name can't be guessed, it is new, and it belongs to
    /// this user alone: other users may write beside it.
    ///
    /// # Errors
    /// It can't be made.
    pub fn temporary() -> Result<Self> {
        // A signal waits for the lock: it never misses a folder that is not in the list yet.
        let mut all = all();
        let mut builder = tempfile::Builder::new();
        builder.prefix("zerowire-bench-").permissions(Permissions::from_mode(0o700));
        let folder = builder.tempdir().context("can't make a folder for temporary files")?;
        Ok(Self::register(&mut all, Some(folder), None))
    }

    /// Makes the file at `path`, such as a socket, by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn file<T>(path: &Path, make: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        // As above.
        let mut all = all();
        let made = make()?;
        Ok((Self::register(&mut all, None, Some(path.to_owned())), made))
    }

    fn register(all: &mut Vec<HeldEntry>, folder: Option<TempDir>, file: Option<PathBuf>) -> Self {
        let id = all.last().map_or(0, |last| last.id + 1);
        let path = folder.as_ref().map(|folder| folder.path().to_owned());
        all.push(HeldEntry { id, child: None, folder: path, file: file.clone() });
        Self { id, folder, file }
    }

    /// The folder; empty where there is none.
    pub fn folder(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Starts the child. It is killed when the calling thread ends, as by SIGKILL.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // A signal waits for the lock: it never finds a child that is not in the list.
        let mut all = all();
        kill_with_thread(command);
        let child = command.spawn()?;
        if let Some(entry) = all.iter_mut().find(|entry| entry.id == self.id) {
            entry.child = Pid::from_raw(child.id() as i32);
        }
        Ok(child)
    }

    /// As [`Child::try_wait`].
    ///
    /// # Errors
    /// As [`Child::try_wait`].
    pub fn try_wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let mut all = all();
        let status = child.try_wait()?;
        if status.is_some()
            && let Some(entry) = all.iter_mut().find(|entry| entry.id == self.id)
        {
            entry.child = None;
        }
        Ok(status)
    }

    /// Ends the child: by SIGTERM, and by SIGKILL if it is still there after 2 s.
    ///
    /// # Errors
    /// It ended before.
    pub fn stop(&self, child: &mut Child) -> io::Result<()> {
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            kill_process(pid, Signal::TERM)?;
        }
        let begin = Instant::now();
        while self.try_wait(child)?.is_none() {
            if begin.elapsed() > STOP_LIMIT {
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        all().retain(|entry| entry.id != self.id);
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// From now on each of `signals` first ends what is held, and then this program. Those that the
/// program was started to ignore stay ignored.
///
/// # Errors
/// The signals can't be caught.
pub fn end_on_signals(signals: &[libc::c_int]) -> Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let wait = move || {
        let mut signal = [0];
        if reader.read_exact(&mut signal).is_ok() {
            // The lock is kept until the program ends: nothing is started any more, and no other
            // thread gives up what it holds.
            let mut all = all();
            end(&mut all);
            end_by(libc::c_int::from(signal[0]));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
    let signals = zerowire_cli::signals::not_ignored(signals);
    catch(&signals, writer.into()).context("signals can't be caught")
}

/// Ends all children and removes all folders and files.
fn end(all: &mut [HeldEntry]) {
    let mut left: Vec<Pid> = all.iter().filter_map(|entry| entry.child).collect();
    // One that can't be found has ended.
    let tell = |children: &[Pid], signal| {
        for pid in children {
            let _ = kill_process(*pid, signal);
        }
    };
    tell(&left, Signal::TERM);
    let begin = Instant::now();
    while !left.is_empty() && begin.elapsed() < 2 * STOP_LIMIT {
        left.retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        if begin.elapsed() > STOP_LIMIT {
            tell(&left, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for folder in all.iter().filter_map(|entry| entry.folder.as_ref()) {
        let _ = fs::remove_dir_all(folder);
    }
    for file in all.iter().filter_map(|entry| entry.file.as_ref()) {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests;
