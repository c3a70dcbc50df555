//! Where the frames go: a packet ring, a packet socket, or AF_XDP. The ports of the library behind
//! one trait, and the choice between them.

mod choice;
mod ring;
mod socket;
mod xdp;

use std::time::Duration;

use zerowire::ledger::{CopyReason, Totals};
use zerowire::send::frame::FrameError;

use super::store::ReplayFrame;

pub use choice::{Opened, PortChoice, Wish, open};

/// A port that a frame goes to. One thread uses it.
pub trait ReplayPort {
    /// Takes a frame; false where no place is free: wait, and try again. A port with resident
    /// frames has the bytes already and takes them in their order, from the first one on.
    fn push(&mut self, frame: &ReplayFrame<'_>) -> Result<bool, FrameError>;
    /// Takes the next `count` frames of the capture at once; how many it had places for. None: not
    /// this port, which takes them one by one.
    fn push_row(&mut self, _count: usize) -> Option<Result<usize, FrameError>> {
        None
    }
    /// Hands over what was pushed. What the kernel has no room for goes with a later flush.
    fn flush(&mut self) -> Result<(), FrameError>;
    /// Takes back places; how many.
    fn reap(&mut self) -> usize;
    /// Waits until a place is free, `timeout` at the longest; whether one is.
    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError>;
    /// Frames that were pushed and are not back.
    fn outstanding(&self) -> usize;
    /// Waits until all are back; [`FrameError::Stuck`] where `timeout` is over before.
    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError>;
    /// What was sent, and how.
    fn totals(&self) -> Totals;
    /// What runs, in words.
    fn path(&self) -> String;
}

/// What ports leave to the library's sender in a field.
macro_rules! sends_by {
    ($sender:tt) => {
        fn flush(&mut self) -> Result<(), FrameError> {
            self.$sender.flush()
        }

        fn reap(&mut self) -> usize {
            self.$sender.reap()
        }

        fn outstanding(&self) -> usize {
            self.$sender.outstanding()
        }

        fn drain(&mut self, timeout: Duration) -> Result<(), FrameError> {
            self.$sender.drain(timeout)
        }

        fn path(&self) -> String {
            self.$sender.path()
        }
    };
}
use sends_by;

/// Why a capture can't be resident in a port's memory.
enum NotResident {
    /// It is too large, or the kernel has no memory for it.
    Room(String),
    /// The port can't be opened, or a frame was refused.
    Failed(anyhow::Error),
}

/// Frames that the library counted as built in place, and that were copied there from a store in
/// memory.
#[derive(Clone, Copy, Debug, Default)]
struct Outside {
    frames: u64,
    bytes: u64,
}

impl Outside {
    fn count(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
    }

    /// Moves them to where they belong. Of those not back some may be among them, so that no count
    /// goes below 0.
    fn correct(self, mut totals: Totals) -> Totals {
        let bytes = self.bytes.min(totals.zero_copied_bytes);
        if bytes > 0 {
            totals.zero_copied_bytes -= bytes;
            *totals.copied_bytes.entry(CopyReason::Outside.name()).or_default() += bytes;
            totals.zero_copied_frames = totals.zero_copied_frames.saturating_sub(self.frames);
        }
        totals
    }
}
