//! Receive: from the port to the guest's buffers.
//!
//! [`Receive`] has the guest's side (`side`): parsed chains, and frames that wait for them. What it
//! gets frames by is an inlet (`inlet`), a type a port. One may post chains before frames come
//! (`Inlet::POSTS_AHEAD`). The others read frames by a batch (`batch`).
//!
//! The length of a frame is known only after it was read, and reading it straight into the guest's
//! buffers needs their addresses before. Parsing 64 KiB worth of descriptors for each frame of 60
//! bytes is what made this path slow elsewhere. In a batch:
//!
//! * A chain is parsed only as far as the next frame is likely to reach. Behind the parsed part the
//!   scatter list ends in scratch memory, so a longer frame is never cut. Its tail is copied
//!   (`overflow` in the ledger), and the next frames are offered more.
//! * A chain that was parsed and not used serves the next frame as it is.
//! * What is offered follows what comes (`shape`). *Each* is many reads of one chain each. *Long*
//!   is one read over as many chains as the longest frame may need. *Small* is many reads into
//!   private memory (`small` in the ledger). It serves runs of frames so short that a copy is
//!   cheaper than a scatter list.
//!
//! Then chains are given back in exactly the order in which they became available. So the used
//! index alone says where a back end that starts anew has to go on. It has no other memory of what
//! it took.
//!
//! A frame for which the guest has too few buffers waits for the moment. All that come after it in
//! the port's queue wait with it. If no chains were posted ahead, it is dropped and counted after
//! [`PATIENCE`].
//!
//! **Ownership.** Parsed chains belong to the guest's side until they are given back, or posted.
//! The kernel holds those of a batch only within [`Receive::run`].

mod batch;
mod deliver;
mod fit;
mod inlet;
mod offer;
mod pending;
mod shape;
mod side;
mod storm;
#[cfg(test)]
mod tests;

use std::time::Duration;

use zerowire::ledger::{CopyReason, Counters};
use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;
use zerowire_vhost_user::features as f;

use super::features::{Offloads, header_len};
use super::guard::StormBound;
use super::transmit::Turn;
use crate::capture::FrameCapture;
pub(crate) use batch::{Done, LONG_BATCH, ReadBatch};
pub use batch::{SCRATCH_BYTES, SCRATCH_STRIDE};
pub(crate) use inlet::Inlet;
pub(crate) use inlet::{CopySide, Given, Received};
pub(crate) use pending::{HeldFrame, Waits};
pub(crate) use shape::Forecast;
pub(crate) use side::{BARE, PLAIN_HEADER, Room, RxSide};

/// How long a frame waits for buffers of the guest: longer than the host may well keep a virtual
/// CPU from running.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How long a read of the length of recent frames waits for buffers, before it takes those posted.
pub const SETTLE_AFTER: Duration = Duration::from_millis(1);

/// What the receive side needs besides its ring and its port.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// Where to count.
    pub counters: &'a Counters,
}

/// What the guest acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveSetup {
    /// Frames may span several chains.
    pub mergeable: bool,
    /// Length of the virtio-net header, bytes.
    pub header_len: usize,
    /// The guest did not take GUEST_CSUM: `flags` is 0 (virtio 1.3 §5.1.6.4.1), though the kernel
    /// says DATA_VALID.
    pub clears_flags: bool,
}

impl ReceiveSetup {
    /// For a guest that acknowledged the features `acked`.
    pub fn of(acked: u64) -> Self {
        Self {
            mergeable: acked & f::NET_MRG_RXBUF != 0,
            header_len: header_len(acked),
            clears_flags: acked & f::NET_GUEST_CSUM == 0,
        }
    }
}

/// What is known of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxPort {
    /// It may have more frames.
    #[default]
    More,
    /// It has no frame left for now.
    Empty,
    /// Its interface is gone.
    Gone,
}

/// What is known of the guest's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxBuffers {
    /// There may be enough.
    #[default]
    Enough,
    /// The guest has none left, or too few.
    Short,
    /// The same, and a frame, or a read, waits for them: run again after [`SETTLE_AFTER`] at the
    /// latest.
    Awaited,
}

impl RxBuffers {
    /// Whether the guest has none left, or too few.
    #[inline]
    pub fn are_short(self) -> bool {
        self != Self::Enough
    }

    /// Whether a frame, or a read, waits for them.
    #[inline]
    pub fn are_awaited(self) -> bool {
        self == Self::Awaited
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveTurn {
    /// Frames given to the guest, and whether it wants to be notified.
    pub turn: Turn,
    /// What is known of the port.
    pub port: RxPort,
    /// What is known of the guest's buffers.
    pub buffers: RxBuffers,
}

/// The receive side of a queue pair, from one kind of port.
#[derive(Debug)]
pub struct Receive<I: Inlet> {
    pub(crate) side: RxSide<I::Waiting>,
    inlet: I,
}

impl<I: Inlet> Receive<I> {
    /// The receive side on `ring`.
    pub fn new(ring: impl Into<HostRing>, inlet: I, setup: ReceiveSetup) -> Self {
        Self { side: RxSide::new(ring.into(), setup), inlet }
    }

    /// For a port that gives frames with any offloads. Offloads that the guest does not take are
    /// done here, in private memory (`rebuilt` in the ledger), before it gets the frame.
    pub fn accept_only(&mut self, accepts: Offloads) {
        self.side.fit.accepts = Some(accepts);
    }

    /// Has frames go to a capture as well.
    pub(crate) fn set_capture(&mut self, capture: Option<FrameCapture>) {
        self.side.capture = capture.map(Box::new);
    }

    /// Frames to groups beyond this bound are dropped.
    pub fn bound_groups(&mut self, bound: Option<StormBound>) {
        self.side.storm = bound;
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host(&self) -> &HostRing {
        &self.side.host
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host_mut(&mut self) -> &mut HostRing {
        &mut self.side.host
    }

    /// From now on a turn takes at most `frames` from the port.
    #[inline]
    pub fn limit(&mut self, frames: usize) {
        self.side.most_frames = frames;
    }

    /// Length of the virtio-net header, bytes.
    pub fn header_len(&self) -> usize {
        self.side.setup.header_len
    }

    /// The ring is new, or in other memory, and nothing of it is out. Forgets what was learnt of
    /// the guest's buffers and frames.
    ///
    /// # Errors
    /// A text that says why the port can't receive.
    pub fn begin(&mut self, port: &mut I::Port, memory: &GuestMemory) -> Result<(), String> {
        self.side.end_wait();
        self.inlet.start(&self.side, port, memory)
    }

    /// Ends all that is under way, before the ring stops or its memory changes. Parsed chains go
    /// back to the ring, to be taken again; frames that waited for buffers are lost and counted.
    pub fn release(&mut self, port: &mut I::Port, cx: &ReceiveContext<'_>) {
        // What has come goes to the guest, whatever its limit.
        self.limit(usize::MAX);
        self.inlet.release(&mut self.side, port, cx);
    }

    /// Ends what the port has of the guest, and gives nothing back.
    pub fn abandon(&mut self, port: &mut I::Port, counters: &Counters) {
        self.inlet.abandon(&mut self.side, port, counters);
    }

    /// Lets go of the private memory that bursts have touched, and of long lists.
    pub fn trim(&mut self) {
        self.side.trim();
        self.inlet.trim();
    }

    /// Receives one batch of frames.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    #[inline]
    pub fn run(&mut self, port: &mut I::Port, cx: &ReceiveContext<'_>) -> Result<ReceiveTurn, RingError> {
        if let Some(port) = self.inlet.begin(&self.side, port) {
            return Ok(ReceiveTurn { port, ..ReceiveTurn::default() });
        }
        let turn = self.turn(port, cx);
        // What came before an error is in the capture, too.
        self.side.publish_capture();
        turn
    }

    #[inline]
    fn turn(&mut self, port: &mut I::Port, cx: &ReceiveContext<'_>) -> Result<ReceiveTurn, RingError> {
        let mut turn = self.take(port, cx)?;
        self.inlet.end(&mut self.side, port, &mut turn, cx)?;
        Ok(turn)
    }

    #[inline]
    fn take(&mut self, port: &mut I::Port, cx: &ReceiveContext<'_>) -> Result<ReceiveTurn, RingError> {
        if !I::POSTS_AHEAD && self.side.is_waiting() && !self.give_waiting(port, cx)? {
            return Ok(self.wait(cx));
        }
        let Some(received) = self.inlet.receive(&mut self.side, port, cx)? else {
            return Ok(self.wait(cx));
        };
        let turn = Turn { chains: received.frames, notify: self.side.host.ring.publish() };
        if let Some(e) = received.broken {
            return Err(e);
        }
        let buffers = match (received.short, !I::POSTS_AHEAD && self.side.is_waiting()) {
            (_, true) => RxBuffers::Awaited,
            (true, false) => RxBuffers::Short,
            (false, false) => RxBuffers::Enough,
        };
        Ok(ReceiveTurn { turn, port: received.port, buffers })
    }

    /// Gives the guest frames that waited, as far as there is room now. Returns whether none waits
    /// any more.
    #[cold]
    fn give_waiting(&mut self, port: &mut I::Port, cx: &ReceiveContext<'_>) -> Result<bool, RingError> {
        self.side.give_waiting(&mut self.inlet, port, cx)?;
        Ok(!self.side.is_waiting())
    }

    /// The answer where nothing could be received for lack of buffers. What waits too long is given
    /// up.
    #[cold]
    fn wait(&mut self, cx: &ReceiveContext<'_>) -> ReceiveTurn {
        let awaited = self.side.is_waiting() || !self.side.chains.is_empty();
        if awaited && self.side.wait(cx.counters) {
            self.inlet.settle();
        }
        let turn = Turn { chains: 0, notify: self.side.host.ring.publish() };
        let buffers = if awaited { RxBuffers::Awaited } else { RxBuffers::Short };
        ReceiveTurn { turn, port: RxPort::More, buffers }
    }

    /// Gives the guest a frame from private memory (without a virtio-net header), which it sees as
    /// soon as the ring is published. Returns whether there was room.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    pub fn inject(&mut self, frame: &[u8], cx: &ReceiveContext<'_>) -> Result<bool, RingError> {
        let Self { side, inlet } = self;
        inlet.make_room(side, side.setup.header_len + frame.len(), cx.memory)?;
        // Frames that wait come first; this one is lost then, as on a wire.
        if side.is_waiting() {
            return Ok(false);
        }
        let room = side.copy_out::<BARE, _>(frame, CopyReason::Metadata, inlet.given(), cx)?;
        side.publish_capture();
        Ok(room == Room::Taken)
    }
}
