//! What senders left behind: memory that the kernel still reads when its sender is gone.
//!
//! A process-wide list keeps such a sender's socket and payloads. It is swept when a sender is made, closed or dropped,
//! and by [`orphans`]. Memory on the list is neither freed nor reused before the kernel has let go of it.

use super::Window;
use super::backend::{AnyBackend, Submit};
use std::sync::{Mutex, PoisonError};

struct Orphan {
    back: AnyBackend,
    window: Window,
}

static LIST: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

/// What is on the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Senders that are gone.
    pub senders: usize,
    /// Payloads that the kernel still holds.
    pub payloads: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Sweeps the list of memory that outlived its sender, and says what is left on it.
pub fn orphans() -> Orphans {
    // Payloads are dropped without the lock: their owners' drop code may end another sender.
    let mut list = std::mem::take(&mut *LIST.lock().unwrap_or_else(PoisonError::into_inner));
    list.retain_mut(|o| {
        // An error says something of the connection, which is gone anyway; notifications were taken all the same.
        let _ = o.back.reap(&mut o.window);
        let _ = o.back.recover(&mut o.window);
        o.window.outstanding() > 0
    });
    let left = list.iter().fold(Orphans::default(), |sum, o| Orphans {
        senders: sum.senders + 1,
        payloads: sum.payloads + o.window.outstanding(),
        bytes: sum.bytes + o.window.outstanding_bytes(),
    });
    if !list.is_empty() {
        LIST.lock().unwrap_or_else(PoisonError::into_inner).append(&mut list);
    }
    left
}

/// Puts what is left of a sender on the list.
pub(super) fn adopt(back: AnyBackend, window: Window) {
    let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    list.push(Orphan { back, window });
}
