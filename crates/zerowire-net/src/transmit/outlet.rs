//! What a port does with the frames of a transmit ring.
//!
//! [`Transmit`](super::Transmit) takes chains, checks them, and gives them back, for any port. An
//! [`Outlet`] sends their frames. It is a type parameter, so that no call on the way of a frame is
//! a dynamic one. What an outlet does not override costs nothing.
//!
//! ```text
//!  begin ─▶ ( has_room ─▶ place ─▶ bytes: read, checked ─▶ push )… ─▶ flush ─▶ returned
//!                                     └▶ begin_parts ─▶ push_part… ─▶ end_parts
//! ```
//!
//! **Who owns what.** An outlet is made with its ring and goes with it. The port ([`Outlet::Port`])
//! outlives rings, and may serve the other direction, too. Between [`Outlet::push`] and
//! [`Outlet::flush`] an outlet names the guest's memory; one that lends does so until the chain is
//! [returned](Outlet::returned). The trait is out of reach for other crates, so that `Transmit`
//! alone calls the one and does not fail to call the other.

use std::ops::Range;
use std::time::Instant;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::memory::Segment;

use super::software::TxPart;
use crate::MAX_FRAME_BYTES;

/// Sends the frames of one transmit ring.
pub trait Outlet: Sized {
    /// What frames go by.
    type Port;

    /// Chains are lent, and come back by [`Self::returned`]. Else all are over when [`Self::flush`]
    /// returns.
    const LENDS: bool = false;

    /// The port completes checksums and cuts segments. Else that is done before, and what a frame
    /// is cut into comes by [`Self::push_part`].
    const OFFLOADS: bool = true;

    /// [`Self::flush`] may leave frames in the ring.
    const LEAVES: bool = false;

    /// The ring begins, with virtio-net headers of this length in bytes, or goes on in other
    /// memory.
    ///
    /// # Errors
    /// A text that says why the port can't send.
    fn start(&mut self, _port: &mut Self::Port, _header_len: usize) -> Result<(), String> {
        Ok(())
    }

    /// A turn begins; `work`: there are frames to send.
    fn begin(&mut self, port: &mut Self::Port, work: bool, counters: &Counters) -> TxState;

    /// Whether there is room for another frame, whatever its length and its pieces.
    fn has_room(&self, port: &mut Self::Port) -> bool;

    /// The longest frame that goes out now, without the virtio-net header, bytes.
    #[inline]
    fn longest_frame(&self, _port: &Self::Port) -> usize {
        MAX_FRAME_BYTES
    }

    /// The longest frame that may go out at another time, bytes.
    fn longest_offered(&self, port: &Self::Port) -> usize {
        self.longest_frame(port)
    }

    /// The longest segment that the port may make of a frame, with all headers and without VLAN
    /// tags, bytes. A frame whose length of segments can't be told is dropped, too. Kernels and
    /// drivers check the MTU only for a frame that asks for no segmentation.
    #[inline]
    fn longest_segment(&self) -> usize {
        usize::MAX
    }

    /// Where the first bytes of a frame go, its virtio-net header and what is inspected: the chain
    /// is read there once. A place whose length is made longer has the bytes behind it, up to those
    /// of all headers.
    fn place(&mut self, port: &Self::Port, frame: &TxFrame<'_>) -> TxPlace;

    /// The bytes of a place.
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8];

    /// Whether [`Self::push`] sends the next frame itself, before [`Self::flush`].
    #[inline]
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Queues a frame whose first bytes lie in that place, and were checked.
    ///
    /// # Errors
    /// Why the frame is dropped.
    fn push(
        &mut self,
        port: &mut Self::Port,
        frame: &TxFrame<'_>,
        place: TxPlace,
    ) -> Result<Pushed, DropReason>;

    /// A frame that becomes many begins: its chain is lent until all of them are back. False if it
    /// does not fit.
    fn begin_parts(&mut self, _port: &mut Self::Port, _head: u16) -> bool {
        false
    }

    /// Whether the chain of a frame that becomes many is still out, or came back with a port that
    /// went.
    fn has_parts(&self, _port: &Self::Port) -> bool {
        false
    }

    /// Queues the next of the many. False if it does not fit.
    fn push_part(&mut self, _port: &mut Self::Port, _part: &mut TxPart<'_>) -> bool {
        false
    }

    /// No further one comes.
    fn end_parts(&mut self, _port: &mut Self::Port) {}

    /// Has the port send what was queued, so that nothing is queued when this returns. Marks the
    /// chains whose frames the port did not take, and counts these frames. Returns how many chains
    /// at the end of the batch another turn tries again: from the first on whose frame the port had
    /// no room for, behind which it took none. Their frames are marked and not counted. An outlet
    /// that lends counts frames itself, and refuses none here.
    fn flush(&mut self, port: &mut Self::Port, batch: &mut [TxSlot], counters: &Counters) -> usize;

    /// Sends what was left over from turns before; no frame of this ring comes behind it now.
    fn send_waiting(&mut self, _port: &mut Self::Port, _counters: &Counters) {}

    /// The ring stops: ends all that is under way.
    fn end(&mut self, port: &mut Self::Port, counters: &Counters) {
        self.send_waiting(port, counters);
    }

    /// Gives the chains to `back` that are lent no more. With `in_order` the guest gets them in the
    /// order in which they were taken, so they should be back as early as can be. Returns whether
    /// all that are out are back as soon as the port takes anything. Those behind them then wait
    /// for them, however long.
    fn returned(&mut self, _port: &mut Self::Port, _in_order: bool, _back: impl FnMut(u16)) -> bool {
        true
    }

    /// This many chains were given to the guest before others that it had made available before
    /// them. Of those that wait now the first passes others at `due`.
    fn passed(&mut self, _port: &mut Self::Port, _chains: u64, _due: Option<Instant>) {}

    /// Lets go of memory that bursts have touched; nothing is queued.
    fn trim(&mut self) {}
}

/// Whether the port takes frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// It does.
    Ready,
    /// It will soon: they stay in the ring.
    Wait,
    /// It does not, as a cable that is not plugged in: they are dropped.
    Refuse,
}

/// A frame that a chain holds.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The chain.
    pub head: u16,
    /// Its number in the batch.
    pub index: usize,
    /// Bytes, with the virtio-net header.
    pub len: usize,
    /// Bytes of the virtio-net header.
    pub header_len: usize,
    /// Where it lies in the guest's memory.
    pub segments: &'a [Segment],
    /// Somebody looks at its headers.
    pub inspected: bool,
    /// Its chain may be lent.
    pub may_lend: bool,
    /// All of it was read for a checksum, which was completed in its place.
    pub summed: bool,
}

/// Where the private part of a frame is.
#[derive(Debug)]
pub struct TxPlace {
    /// Where it begins in the outlet's memory, bytes.
    pub at: usize,
    /// Bytes of the frame that are copied there, its virtio-net header included.
    pub len: usize,
    /// Why that is all of it; None for a head.
    pub gather: Option<CopyReason>,
}

impl TxPlace {
    /// The bytes in the outlet's memory.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// What became of a frame that was pushed.
#[derive(Clone, Copy, Debug)]
pub enum Pushed {
    /// It is queued, and its chain goes back with the batch.
    Queued(TxTally),
    /// It is queued, and its chain is lent.
    Lent,
    /// It does not fit in this turn: its chain stays in the ring.
    Full,
}

/// What a frame counts as, once it was sent.
#[derive(Clone, Copy, Debug)]
pub struct TxTally {
    /// Bytes that are not copied.
    pub scattered: u32,
    /// Bytes that are.
    pub copied: u32,
    /// Why they are.
    pub reason: CopyReason,
}

/// Why a frame does not go to the port.
#[derive(Clone, Copy, Debug)]
pub enum TxSkip {
    /// Somebody else took it.
    Detour,
    /// It is dropped.
    Dropped(DropReason),
}

impl TxSkip {
    /// Counts a frame that was dropped.
    #[inline]
    pub(super) fn count(self, counters: &Counters) {
        if let Self::Dropped(reason) = self {
            counters.dropped(reason);
        }
    }
}

/// A chain of the batch.
#[derive(Clone, Copy, Debug)]
pub struct TxSlot {
    pub(super) head: u16,
    /// Bytes of the frame; of one that is too long the most that a frame has.
    pub(super) len: u32,
    /// None for a frame that was skipped or refused, or whose chain is lent.
    pub(super) tally: Option<TxTally>,
    /// Why the frame did not go to the port; None if it did.
    pub(super) skipped: Option<TxSkip>,
}

impl TxSlot {
    /// The port did not take the frame.
    #[inline]
    pub fn refuse(&mut self) {
        self.tally = None;
    }
}
