//! Frames that go by a ring shared with the kernel (PACKET_TX_RING). They are copied into it here,
//! and the driver sends them from its pages. Where the driver takes lent pages, the kernel makes no
//! copy of its own.
//!
//! **Ownership.** A chain's bytes are copied, behind a head that was checked in private memory. The
//! chain is given back in the same turn: nothing of the guest is lent. A slot of the ring is the
//! kernel's from then until it is back.
//!
//! What a ring can't say (UDP fragmentation, ECN) goes by the socket.

use std::ops::Range;
use std::sync::Arc;

use zerowire::ledger::{Counters, DropReason};
use zerowire::packet::{Gso, OpenError, PacketOptions, PacketRing, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire_vhost::memory::access;
use zerowire_wire::vnet::Fields;

use super::PacketError;
use super::handed::{PacketSockets, PacketVerb};
use crate::header::{GSO_NONE, headers_len};
use crate::transmit::TxFrame;

/// Places in the ring: as many frames may be under way. They take 17 MiB of the kernel's memory.
const SLOTS: usize = 256;

/// What a ring is opened with.
pub(super) fn options() -> PacketOptions {
    PacketOptions::default().slots(SLOTS).offload(true)
}

/// A ring on an interface.
pub(super) struct FrameRing {
    ring: PacketRing,
    /// What the ring counts itself, and how many of its system calls have been reported.
    own: Arc<Counters>,
    told: u64,
    /// The number of the frame that is pushed next.
    pub next: u64,
    /// True: the interface is gone, and the ring of no more use. Another one opens when it is back.
    pub gone: bool,
}

impl FrameRing {
    /// A ring on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// Those of [`PacketRing::open`].
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        Ok(Self::of(PacketRing::open(interface, &options())?))
    }

    /// The ring of a socket that another process keeps.
    ///
    /// # Errors
    /// What that process says, and those of [`PacketRing::take_over`].
    pub fn take_over(sockets: &PacketSockets) -> Result<Self, PacketError> {
        let (index, interface) = (sockets.facts.index, sockets.interface());
        sockets.ask(PacketVerb::TransmitRing)?;
        // SAFETY: the port has one queue pair, and this socket is for its ring alone: it is mapped
        // here, and whoever sends on it does so by this ring. The other process only sets it up.
        let ring = unsafe { PacketRing::take_over(sockets.ring.file(), &interface, index, &options()) };
        ring.map(Self::of).map_err(|e| PacketError::Keeper(e.to_string()))
    }

    fn of(ring: PacketRing) -> Self {
        Self { own: ring.counters(), ring, told: 0, next: 0, gone: false }
    }

    /// In words.
    pub fn path(&self) -> String {
        self.ring.path()
    }

    /// Whether frames are in it that the kernel did not take yet.
    pub fn is_waiting(&self) -> bool {
        self.ring.waiting() > 0
    }

    /// Copies a frame into the ring, its first bytes from `start`, which was checked. Returns
    /// whether there was room.
    ///
    /// # Errors
    /// Why the frame is dropped.
    #[inline]
    pub fn push(
        &mut self,
        header: &VnetHeader,
        start: &[u8],
        frame: &TxFrame<'_>,
    ) -> Result<bool, DropReason> {
        let TxFrame { len, header_len, segments, .. } = *frame;
        let start = &start[header_len..];
        let taken = self.ring.push_offload(header, len - header_len, &mut |to: &mut [u8]| {
            let (first, rest) = to.split_at_mut(start.len());
            first.copy_from_slice(start);
            access::read(segments, header_len + first.len(), rest);
        });
        match taken {
            Ok(taken) => {
                self.next += u64::from(taken);
                Ok(taken)
            }
            Err(FrameError::BadOffload { .. }) => Err(DropReason::BadOffload),
            Err(FrameError::TooShort { .. }) => Err(DropReason::TooShort),
            // As the socket does with a frame longer than the MTU.
            Err(_) => Err(DropReason::PortRefused),
        }
    }

    /// Has the kernel look at the ring, until it took all or has no room. Frames that are lost are
    /// counted, and `lost` gets their numbers. Returns whether the interface was there.
    pub fn hand_over(&mut self, counters: &Counters, mut lost: impl FnMut(Range<u64>)) -> bool {
        let mut there = true;
        while there && self.ring.waiting() > 0 {
            let numbers = match self.ring.flush() {
                Ok(()) => break,
                Err(FrameError::Refused { number, .. } | FrameError::LongerThanMtu { number, .. }) => {
                    number..number + 1
                }
                Err(e) => {
                    self.gone |= !matches!(e, FrameError::Down { .. });
                    there = false;
                    // Numbers go on from where the ring's own do.
                    self.next - self.ring.take_back() as u64..self.next
                }
            };
            counters.dropped_many(DropReason::PortRefused, numbers.end - numbers.start);
            lost(numbers);
        }
        self.ring.reap();
        let calls = self.own.system_calls.get();
        counters.system_calls.add(calls - std::mem::replace(&mut self.told, calls));
        there
    }

    /// Hands over what the kernel takes; the rest is lost and counted. To be called before the ring
    /// goes.
    pub fn end(&mut self, counters: &Counters) {
        self.hand_over(counters, |_| {});
        counters.dropped_many(DropReason::PortRefused, self.ring.take_back() as u64);
    }
}

/// The header that says the same of a frame whose checked head, the virtio-net header of
/// `header_len` bytes first, is `private`; None where a ring has none.
pub(super) fn vnet(private: &[u8], header_len: usize) -> Option<VnetHeader> {
    let fields = Fields::of(private);
    let (size, start, offset) = (fields.gso_size, fields.csum_start, fields.csum_offset);
    let gso = match fields.gso_type {
        GSO_NONE if fields.is_plain() => return Some(VnetHeader::NONE),
        GSO_NONE => return Some(VnetHeader::checksum(start, offset)),
        // None with ECN, which a ring can't say: its flag stands in the type.
        kind => Gso::of(kind)?,
    };
    let headers = u16::try_from(headers_len(private, header_len)?).ok()?;
    VnetHeader::segments(gso, headers, size, start, offset).ok()
}
