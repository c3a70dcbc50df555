//! SIGINT and SIGTERM while receiving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use crate::signals::Signals;

/// Signals, waited for by a thread of their own. The first one is told to who asks, the second ends the process.
pub struct Stop {
    signal: Arc<AtomicU8>,
}

impl Stop {
    /// Blocks the signals and waits for them. To be called before other threads are started.
    pub fn start() -> Result<Self> {
        let signals = Signals::block(&[libc::SIGINT, libc::SIGTERM]).context("signals can't be blocked")?;
        let signal = Arc::new(AtomicU8::new(0));
        let told = signal.clone();
        let wait = move || {
            loop {
                match signals.wait(None) {
                    Ok(Some(number)) => {
                        let number = u8::try_from(number).unwrap_or(u8::MAX);
                        if told.swap(number, Ordering::SeqCst) != 0 {
                            // Something hangs, a disk perhaps.
                            std::process::exit(128 + i32::from(number));
                        }
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
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
