//! Ends a sender.

use super::SendError;
use std::time::Duration;
use thiserror::Error;

/// How a sender ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Sends what waits, and waits for what is lent, at most this long; then as [`Close::Abort`].
    /// An error about earlier payloads doesn't end the waiting.
    Drain(Duration),
    /// At once. If payloads are lent or wait, a TCP connection is reset. What the kernel still
    /// holds then (frames in an interface's queue) is kept until it is back: see
    /// [`orphans`](super::orphans).
    Abort,
}

/// What a sender left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Payloads that were not back in time: the sender reset their connection, or they are still
    /// queued. Those that a reset by the peer gave back are not among them: see
    /// [`Sender::close`](super::Sender::close) for its error.
    pub aborted: usize,
    /// Their bytes.
    pub aborted_bytes: usize,
    /// Of these, payloads that the kernel still holds. They are freed when it lets go.
    pub kept: usize,
}

/// A sender has ended, but something went wrong before: not all that it was given has gone out.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct CloseError {
    /// What it left behind.
    pub closed: Closed,
    /// What went wrong first.
    pub error: SendError,
}
