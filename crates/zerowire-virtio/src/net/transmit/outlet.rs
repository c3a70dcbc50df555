//! What a port does with the frames of a transmit ring.
//!
//! [`Transmit`](super::Transmit) takes chains, checks them, and gives them back, for any port. An
//! [`Outlet`] sends their frames. It is a type parameter, so that no call on the way of a frame is
//! a dynamic one; what an outlet does not override costs nothing.
//!
//! ```text
//!  begin ─▶ ( has_room ─▶ place ─▶ bytes: read, checked ─▶ push )… ─▶ flush
//! ```
//!
//! **Who owns what.** An outlet is made with its ring and goes with it. The port ([`Outlet::Port`])
//! outlives rings, and may serve the other direction, too. Between [`Outlet::push`] and
//! [`Outlet::flush`] an outlet names the guest's memory; the trait is out of reach for other
//! crates, so that `Transmit` alone calls the one and does not fail to call the other.

use std::ops::Range;

use zerowire::ledger::{CopyReason, Counters, DropReason};

use crate::memory::Segment;

/// Sends the frames of one transmit ring.
pub trait Outlet: Sized {
    /// What frames go by.
    type Port;

    /// The ring begins, with virtio-net headers of so many bytes, or goes on in other memory.
    ///
    /// # Errors
    /// A text that says why the port can't send.
    fn start(&mut self, _port: &mut Self::Port, _header_len: usize) -> Result<(), String> {
        Ok(())
    }

    /// A turn begins; `work`: there are chains to take.
    fn begin(&mut self, port: &mut Self::Port, work: bool);

    /// Whether there is room for another frame, whatever its length and its pieces.
    fn has_room(&self, port: &Self::Port) -> bool;

    /// The longest segment that may be made of a frame, with all headers and without VLAN tags,
    /// bytes. A frame of which the length of segments can't be told is dropped, too: kernels and
    /// drivers look at the MTU only where a frame is not to be segmented.
    #[inline]
    fn longest_segment(&self) -> usize {
        usize::MAX
    }

    /// Where the first bytes of a frame go, its virtio-net header and what is inspected: the chain
    /// is read there once.
    fn place(&mut self, port: &Self::Port, frame: &TxFrame<'_>) -> TxPlace;

    /// The bytes of a place.
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8];

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

    /// Has the port send what was queued, marks the chains whose frames it did not take, and counts
    /// these frames. Returns how many frames at the end of the batch the port had no room for: they
    /// are marked and not counted, and are tried again in another turn.
    fn flush(&mut self, port: &mut Self::Port, batch: &mut [TxSlot], counters: &Counters) -> usize;

    /// Sends what was left over from turns before; no frame of this ring comes behind it now.
    fn send_waiting(&mut self, _port: &mut Self::Port, _counters: &Counters) {}

    /// Lets go of memory that bursts have touched; nothing is queued.
    fn trim(&mut self) {}
}

/// A frame that a chain holds.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Its number in the batch.
    pub index: usize,
    /// Bytes, with the virtio-net header.
    pub len: usize,
    /// Bytes of the virtio-net header.
    pub header_len: usize,
    /// Where it lies in the guest's memory.
    pub segments: &'a [Segment],
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
    /// It is queued.
    Queued(TxTally),
    /// There is no room for it in this turn: its chain stays in the ring.
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

/// A chain of the batch.
#[derive(Clone, Copy, Debug)]
pub struct TxSlot {
    pub(super) head: u16,
    /// None for a frame that was dropped or taken out.
    pub(super) tally: Option<TxTally>,
}

impl TxSlot {
    /// The port did not take the frame.
    #[inline]
    pub fn refuse(&mut self) {
        self.tally = None;
    }
}
