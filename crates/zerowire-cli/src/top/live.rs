//! The live view. Three threads wait for keys, for samples and for signals; the main thread takes
//! what they find, one after the other, and draws.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerowire_cli::signals::{self, Signals};

use super::keys::{TopKey, take};
use super::sample::{ServerSample, fetch};
use super::screen::Screen;
use super::state::{AfterKey, Sorting, TopState};
use super::view::draw;
use crate::ctl::client::Client;

/// Events that may wait.
const WAITING: usize = 16;
/// How long the rest of a key may take. A terminal sends it at once; a slow line does not.
const REST_OF_KEY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Bytes of keys that are read at once.
const KEY_BYTES: usize = 64;

enum TopEvent {
    Keys(Vec<TopKey>),
    Sample(Result<ServerSample, String>),
    Resized,
    /// A signal that ends the program.
    Ended,
    /// A thread is gone.
    Lost(&'static str),
}

/// The way to the main thread. When a thread ends, however that comes, the main thread hears of it.
struct EventSender {
    events: SyncSender<TopEvent>,
    thread: &'static str,
}

impl Drop for EventSender {
    fn drop(&mut self) {
        let _ = self.events.send(TopEvent::Lost(self.thread));
    }
}

/// What a thread does that sends events.
type EventSource = dyn FnOnce(&SyncSender<TopEvent>) + Send;

/// Shows the server's VMs until the user has seen enough.
pub fn run(path: &Path, every: Duration, sorting: Sorting) -> Result<()> {
    // A server that is not there is an error, and nothing to wait for.
    let first = fetch(&Client::new(path))?;
    let mut state = TopState::new(sorting, Screen::size());
    state.take(Ok(first));
    let waited_for = [signals::ending(), vec![libc::SIGWINCH]].concat();
    let signals = Signals::block(&waited_for).context("signals can't be blocked")?;
    let mut screen = Screen::open()?;

    let (to, events) = sync_channel(WAITING);
    let start = |thread: &'static str, work: Box<EventSource>| {
        let sender = EventSender { events: to.clone(), thread };
        let builder = std::thread::Builder::new().name(thread.to_owned());
        let thread_work = move || {
            let sender = sender;
            work(&sender.events);
        };
        builder.spawn(thread_work).with_context(|| format!("no thread for {thread}"))
    };
    let path = path.to_owned();
    start("keys", Box::new(read_keys))?;
    start("samples", Box::new(move |to: &SyncSender<TopEvent>| take_samples(&path, every, to)))?;
    start("signals", Box::new(move |to: &SyncSender<TopEvent>| take_signals(&signals, to)))?;

    loop {
        state.size = Screen::size();
        screen.draw(&draw(&state))?;
        match events.recv() {
            Ok(TopEvent::Keys(keys)) => {
                if keys.into_iter().any(|key| state.press(key) == AfterKey::Quit) {
                    return Ok(());
                }
            }
            Ok(TopEvent::Sample(sample)) => state.take(sample),
            Ok(TopEvent::Resized) => screen.forget(),
            Ok(TopEvent::Ended) => return Ok(()),
            Ok(TopEvent::Lost("keys")) => bail!("the terminal can't be read any more"),
            Ok(TopEvent::Lost(thread)) => bail!("the thread of {thread} has ended"),
            Err(e) => return Err(anyhow!(e)),
        }
    }
}

fn take_samples(path: &Path, every: Duration, to: &SyncSender<TopEvent>) {
    let client = Client::new(path);
    loop {
        std::thread::sleep(every);
        let sample = fetch(&client).map_err(|e| format!("{e:#}"));
        if to.send(TopEvent::Sample(sample)).is_err() {
            return;
        }
    }
}

fn take_signals(signals: &Signals, to: &SyncSender<TopEvent>) {
    loop {
        let event = match signals.wait(None) {
            Ok(Some(libc::SIGWINCH)) => TopEvent::Resized,
            Ok(Some(_)) => TopEvent::Ended,
            Ok(None) => continue,
            Err(_) => return,
        };
        if to.send(event).is_err() {
            return;
        }
    }
}

fn read_keys(to: &SyncSender<TopEvent>) {
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    loop {
        // What may be the beginning of a key is one by itself if nothing follows.
        let is_all = !bytes.is_empty() && !follows(&stdin);
        if !is_all {
            let mut buffer = [0; KEY_BYTES];
            match rustix::io::read(&stdin, &mut buffer) {
                Ok(0) => return,
                Ok(n) => bytes.extend_from_slice(&buffer[..n]),
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
        }
        let keys = take(&mut bytes, is_all);
        if !keys.is_empty() && to.send(TopEvent::Keys(keys)).is_err() {
            return;
        }
    }
}

/// Whether more bytes come soon.
fn follows(stdin: &io::Stdin) -> bool {
    let mut waited = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    poll(&mut waited, Some(&REST_OF_KEY)).is_ok_and(|ready| ready > 0)
}
