//! SIGINT, SIGTERM, SIGHUP and SIGQUIT while receiving.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use crate::configure::{Setup, say};
use crate::signals::{self, Signals};

/// Signals, which a thread of their own waits for. The session asks for the first one; the second
/// ends the process.
pub struct RecvStop {
    signal: Arc<AtomicU8>,
}

impl RecvStop {
    /// Blocks the signals and waits for them. Call this before other threads are started. What
    /// `setup` holds is set back before the second signal ends the process.
    pub fn start(setup: Setup) -> Result<Self> {
        let signals = Signals::block(&signals::ending()).context("signals can't be blocked")?;
        let signal = Arc::new(AtomicU8::new(0));
        let told = signal.clone();
        let wait = move || {
            if let Some(status) = follow(|| signals.wait(None), &told, &setup) {
                std::process::exit(status);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
        Ok(Self { signal })
    }

    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|n| *n != 0)
    }
}

/// Takes signals until the process is to end, with the status that is returned.
fn follow(mut next: impl FnMut() -> io::Result<Option<i32>>, told: &AtomicU8, setup: &Setup) -> Option<i32> {
    loop {
        let Some(number) = next().ok()? else { continue };
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        if told.swap(number, Ordering::SeqCst) != 0 {
            // Something hangs, a disk perhaps, and the receiver may still have the queue: then the
            // error names what to do.
            if let Err(e) = setup.restore() {
                say(format_args!("zerowire: error: {e:#}"));
            }
            return Some(128 + i32::from(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_sets_back_and_ends() {
        let (setup, count) = Setup::counting();
        let told = AtomicU8::new(0);
        let mut signals = [Some(libc::SIGHUP), None, Some(libc::SIGINT), Some(libc::SIGTERM)].into_iter();
        let mut seen = Vec::new();
        let next = || {
            seen.push((told.load(Ordering::SeqCst), count.load(Ordering::SeqCst)));
            Ok(signals.next().expect("it ends before"))
        };
        assert_eq!(follow(next, &told, &setup), Some(130));
        assert_eq!(seen, [(0, 0), (libc::SIGHUP as u8, 0), (libc::SIGHUP as u8, 0)]);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let broken = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(follow(broken, &told, &setup), None);
    }
}
