//! Notices that nothing moves any more.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use zerowire::send::{SendError, Sender};
use zerowire_sys::socket;

/// The time since something moved last, against a limit.
pub struct Stall {
    limit: Option<Duration>,
    since: Instant,
    last: Signs,
}

/// What is different when something has moved.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Signs {
    outstanding: usize,
    outstanding_bytes: usize,
    /// Bytes of a stream that the peer has not acknowledged, or memory that datagrams use; where
    /// the socket tells. A slow peer takes a long time to give a whole payload back.
    queued: Option<usize>,
}

impl Signs {
    fn of(sender: &Sender) -> Self {
        Self {
            outstanding: sender.outstanding(),
            outstanding_bytes: sender.outstanding_bytes(),
            queued: socket::unsent(sender.as_fd()).ok(),
        }
    }
}

impl Stall {
    /// Without a limit it never ends.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: Instant::now(), last: Signs::default() }
    }

    /// How long to wait between two looks.
    pub fn tick(&self) -> Duration {
        const TICK: Duration = Duration::from_millis(100);
        self.limit.map_or(TICK, |limit| limit.min(TICK))
    }

    /// Something has moved, or nothing is waited for.
    pub fn reset(&mut self) {
        if self.limit.is_some() {
            self.since = Instant::now();
        }
    }

    /// Call this while waiting: returns an error if nothing has moved for as long as the limit
    /// says.
    pub fn check(&mut self, sender: &Sender) -> Result<(), SendError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let now = Signs::of(sender);
        if now != self.last {
            self.last = now;
            self.since = Instant::now();
        }
        let waited = self.since.elapsed();
        if waited < limit {
            return Ok(());
        }
        Err(SendError::TimedOut {
            waited,
            outstanding: now.outstanding,
            outstanding_bytes: now.outstanding_bytes,
        })
    }
}
