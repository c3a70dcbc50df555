//! The signals that end a transfer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::signals::Signals;

/// How long after the first signal another one belongs to it: timeout(1) signals its child, and
/// then the group that the child is in.
const TWIN: Duration = Duration::from_secs(1);

/// Signals, which a thread of their own waits for. The transfer asks for the first one; the second
/// ends the process.
#[derive(Clone)]
pub struct TransferStop {
    signal: Arc<AtomicU8>,
}

impl TransferStop {
    /// Blocks `signals` and waits for them. Call this before other threads are started. The first
    /// one calls `first`, and the second calls `last` before it ends the process.
    pub fn start(
        signals: &[i32],
        first: impl Fn(i32) + Send + 'static,
        last: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let signals = Signals::block(signals).context("signals can't be blocked")?;
        let stop = Self { signal: Arc::default() };
        let told = stop.signal.clone();
        let wait = move || {
            if let Some(status) = follow(|| signals.wait(None), Instant::now, &told, first) {
                // Something hangs: a disk, or a pipe for the summary that nobody reads.
                last();
                std::process::exit(status);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
        Ok(stop)
    }

    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|n| *n != 0)
    }
}

/// Takes signals until the process is to end, with the status that is returned.
fn follow(
    mut next: impl FnMut() -> io::Result<Option<i32>>,
    now: impl Fn() -> Instant,
    told: &AtomicU8,
    first: impl Fn(i32),
) -> Option<i32> {
    let mut since = None;
    loop {
        let Some(number) = next().ok()? else { continue };
        match since {
            None => {
                since = Some(now());
                told.store(u8::try_from(number).unwrap_or(u8::MAX), Ordering::SeqCst);
                first(number);
            }
            Some(since) if now() - since < TWIN => {}
            Some(_) => return Some(128 + number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn the_second_signal_is_one_that_comes_a_second_after_the_first() {
        let (begin, told, firsts) = (Instant::now(), AtomicU8::new(0), RefCell::new(Vec::new()));
        let at = Cell::new(begin);
        let come = [
            (0, None),
            (500, Some(libc::SIGHUP)),
            (500, Some(libc::SIGHUP)),
            (1499, Some(libc::SIGINT)),
            (1500, None),
            (1500, Some(libc::SIGTERM)),
        ];
        let mut come = come.into_iter();
        let next = || {
            let (after, signal) = come.next().expect("it ends before");
            at.set(begin + Duration::from_millis(after));
            Ok(signal)
        };
        let first = |number| {
            assert_eq!(told.load(Ordering::SeqCst), number as u8, "it is told before");
            firsts.borrow_mut().push(number);
        };
        assert_eq!(follow(next, || at.get(), &told, first), Some(143));
        assert_eq!((told.into_inner(), firsts.into_inner()), (libc::SIGHUP as u8, vec![libc::SIGHUP]));
        let broken = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(follow(broken, Instant::now, &AtomicU8::new(0), |_| ()), None);
    }
}
