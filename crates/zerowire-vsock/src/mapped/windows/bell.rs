//! Waking the program.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;

use zerowire_wire::doorbell;

use crate::socket::send_bytes;

/// Bytes published in one turn after which the program is woken before the turn's end. One call for
/// several windows spares both sides' CPU time. A program with a CPU of its own should not wait for
/// a long turn.
pub(super) const TELL_AFTER: usize = 256 << 10;

/// What the two sides tell each other, beside the windows.
#[derive(Debug)]
pub(super) struct Bell {
    /// Wakes the program.
    ready: OwnedFd,
    /// Bytes in windows that were published since the program was told.
    untold: usize,
    /// True: there are such windows, empty ones included.
    due: bool,
    /// The window whose release the program is to tell.
    pub(super) awaited: Option<u32>,
}

impl Bell {
    /// With the socket that wakes the program.
    pub(super) fn new(ready: OwnedFd) -> Self {
        Self { ready, untold: 0, due: false, awaited: None }
    }

    /// A window with `bytes` was published. Returns whether to wake the program at once.
    pub(super) fn published(&mut self, bytes: usize) -> bool {
        self.untold += bytes;
        self.due = true;
        self.untold >= TELL_AFTER
    }

    /// Wakes the program if it sleeps and something was published since the last time.
    pub(super) fn ring(&mut self, sleeps: &AtomicU32) {
        self.untold = 0;
        if std::mem::take(&mut self.due) && doorbell::wake_if_sleeping(sleeps) {
            // Where it is full, the program has enough to wake it.
            let _ = send_bytes(&self.ready, &[1]);
        }
    }
}
