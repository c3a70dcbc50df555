//! Ending a sender.

use std::time::Duration;

/// How a sender ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Sends what waits, and waits for what is lent, at most this long; then as [`Close::Abort`].
    Drain(Duration),
    /// At once. If payloads are lent or wait, a TCP connection is reset. What the kernel still holds then (frames in an
    /// interface's queue) is kept until it is back: see [`orphans`](super::orphans).
    Abort,
}

/// What a sender left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Payloads that were not back in time: a reset connection gave them up, or they are still queued.
    pub aborted: usize,
    /// Their bytes.
    pub aborted_bytes: usize,
    /// Of these, payloads that the kernel still holds. They are freed when it lets go.
    pub kept: usize,
}
