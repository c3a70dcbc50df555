//! What a worker knows of its port and of the guest's receive buffers.
//!
//! Plain code without I/O: the worker tells what happened and asks what follows.
//!
//! ```text
//!  port       a frame may have come   read empty      taken out    put in
//!  Armed      Ready                   Armed, watch    Unwatched    -
//!  Ready      Ready                   Armed, watch    Unwatched    -
//!  Unwatched  Unwatched, ready        Unwatched       -            Armed, or Ready if ready
//!  Gone       Ready                   Armed, watch    Unwatched    -
//!
//!  buffers    a kick          a turn with enough    with too few    a frame waits, too
//!  Posted     Posted          Posted                Short           Short, frame
//!  Retry      Retry           Posted                Short           Short, frame
//!  Short      Posted; Retry   Posted                Short           Short, frame
//!             if frame
//! ```

use std::time::Instant;

/// A worker that is short of buffers sleeps until the driver has posted this part of its ring. So
/// one wake-up serves more than one frame. After a while any buffer wakes it.
const SHORT_PART: u16 = 4;

/// Whether the port may have frames, and how that is learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortWatch {
    /// It was found empty, and an event comes with the next frame.
    Armed,
    /// It may have frames.
    Ready,
    /// It gives no events, since watching it would cost the sender: each turn looks at it.
    Unwatched {
        /// It may have frames.
        ready: bool,
    },
    /// Its interface is gone, and reads fail.
    Gone,
}

impl PortWatch {
    /// Whether the receive side has to look at it.
    #[inline]
    pub(super) fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::Unwatched { ready: true })
    }

    #[inline]
    pub(super) fn is_unwatched(self) -> bool {
        matches!(self, Self::Unwatched { .. })
    }

    /// It may have frames.
    #[inline]
    pub(super) fn set_ready(&mut self) {
        *self = match self {
            Self::Unwatched { .. } => Self::Unwatched { ready: true },
            _ => Self::Ready,
        };
    }

    /// A turn begins.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        if self.is_unwatched() {
            self.set_ready();
        }
    }

    /// It has no frame left. Returns whether its next event has to be asked for.
    #[inline]
    pub(super) fn set_empty(&mut self) -> bool {
        match self {
            Self::Unwatched { ready } => {
                *ready = false;
                false
            }
            _ => {
                *self = Self::Armed;
                true
            }
        }
    }

    /// It gives no events from now on.
    pub(super) fn take_out(&mut self) {
        *self = Self::Unwatched { ready: self.is_ready() };
    }

    /// It gives events from now on. Returns whether it did not before.
    pub(super) fn put_in(&mut self) -> bool {
        let Self::Unwatched { ready } = *self else { return false };
        *self = if ready { Self::Ready } else { Self::Armed };
        true
    }
}

/// How many buffers wake a worker that has too few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// A good part of the ring.
    Batch,
    /// Any: the guest posted no more for a while.
    Any,
}

/// What is known of the guest's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    /// There may be enough.
    Posted,
    /// There may be enough for what waits: the receive side has to run, whatever the port has.
    Retry,
    /// There are too few, or none.
    Short {
        /// When the guest has had its time; None once it had.
        look_at: Option<Instant>,
        /// A frame, or a read, waits for buffers.
        frame: bool,
    },
}

/// What the receive side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxWait {
    wake: Wake,
    buffers: Buffers,
}

impl RxWait {
    pub(super) fn new() -> Self {
        Self { wake: Wake::Batch, buffers: Buffers::Posted }
    }

    /// Whether the guest has no receive buffers, or too few.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        matches!(self.buffers, Buffers::Short { .. })
    }

    /// Whether a received frame, or a read, waits for buffers.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        matches!(self.buffers, Buffers::Retry | Buffers::Short { frame: true, .. })
    }

    /// Whether the guest has some time to post more.
    pub(super) fn is_patient(&self) -> bool {
        self.has_frame() || (self.is_short() && self.wake == Wake::Batch)
    }

    /// How many buffers of a ring with `size` entries wake the worker.
    pub(super) fn wanted(&self, size: u16) -> u16 {
        match self.wake {
            Wake::Any => 1,
            Wake::Batch => (size / SHORT_PART).max(1),
        }
    }

    /// The driver has posted buffers.
    #[inline]
    pub(super) fn posted(&mut self) {
        self.buffers = match self.buffers {
            Buffers::Short { frame: true, .. } | Buffers::Retry => Buffers::Retry,
            _ => Buffers::Posted,
        };
    }

    /// The ring, or its state, is new.
    pub(super) fn begin(&mut self) {
        self.buffers = Buffers::Posted;
    }

    /// The worker has slept, and nothing happened.
    #[inline]
    pub(super) fn slept(&mut self) {
        if self.is_short() {
            self.wake = Wake::Any;
        }
    }

    /// Whether the guest has had its time, so that the receive side has to run once more. Any
    /// buffer will do then.
    #[inline]
    pub(super) fn is_due(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let due = matches!(self.buffers, Buffers::Short { look_at: Some(at), .. } if now() >= at);
        if due {
            self.wake = Wake::Any;
        }
        due
    }

    /// A turn has ended, `short` of buffers or not, with a `frame` that waits for them or not;
    /// `look_at` says when the guest has had its time.
    #[inline]
    pub(super) fn ran(&mut self, short: bool, frame: bool, look_at: impl FnOnce() -> Instant) {
        if !short {
            self.wake = Wake::Batch;
        }
        self.buffers = match (short, frame) {
            (false, false) => Buffers::Posted,
            (false, true) => Buffers::Retry,
            (true, _) => {
                let waits = frame || self.wake == Wake::Batch;
                Buffers::Short { look_at: waits.then(look_at), frame }
            }
        };
    }
}

#[cfg(test)]
mod tests;
