//! Frames that go by a ring which is shared with the kernel (PACKET_TX_RING): copied into it here,
//! and sent by the driver from its pages, without a copy of the kernel's where the driver takes
//! lent pages.
//!
//! **Ownership.** A chain's bytes are copied, behind a head that was checked in private memory, and
//! the chain is given back in the same turn: nothing of the guest is lent. A slot of the ring is
//! the kernel's from then until it is back.
//!
//! A batch goes all by the ring, or all by the socket, so that no frame overtakes another. What a
//! ring can't say (UDP fragmentation, ECN) goes by the socket.

use std::ops::Range;
use std::sync::Arc;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire::packet::{Gso, OpenError, PacketOptions, PacketRing, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};

use super::place::Place;
use super::{Slot, Transmit};
use crate::memory::access;
use crate::net::header::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, headers_len};

/// Places in the ring: as many frames may be under way. They take 17 MiB of the kernel's memory.
const SLOTS: usize = 256;

/// A ring on an interface.
pub struct FrameRing {
    ring: PacketRing,
    /// What the ring counts itself, and how many of its system calls have been told.
    own: Arc<Counters>,
    told: u64,
    /// The number of the next frame.
    next: u64,
    /// The interface is gone: another ring is to be opened when it is back.
    gone: bool,
}

/// What became of a frame that was to go by the ring.
pub(super) enum Pushed {
    /// It is in the ring: its number there.
    Taken(u64),
    /// Another turn.
    NotNow,
    /// It goes by the socket.
    Never,
}

impl FrameRing {
    /// A ring on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// Those of [`PacketRing::open`].
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        let options = PacketOptions::default().slots(SLOTS).offload(true);
        let ring = PacketRing::open(interface, &options)?;
        Ok(Self { own: ring.counters(), ring, told: 0, next: 0, gone: false })
    }

    /// In words.
    pub fn path(&self) -> String {
        self.ring.path()
    }

    /// Whether frames are in it that the kernel did not take yet.
    pub fn is_waiting(&self) -> bool {
        self.ring.waiting() > 0
    }

    /// Whether the interface is gone, and the ring of no more use.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    fn push(
        &mut self,
        header: &VnetHeader,
        len: usize,
        build: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, FrameError> {
        let taken = self.ring.push_offload(header, len, build)?;
        self.next += u64::from(taken);
        Ok(taken)
    }

    /// Has the kernel look at the ring, until it took all or has no room. Frames that are lost are
    /// counted, and told to `lost` by their numbers. Returns whether the interface was there.
    fn hand_over(&mut self, counters: &Counters, mut lost: impl FnMut(Range<u64>)) -> bool {
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

    /// Hands over frames that the kernel had no room for before, whatever became of the guest's
    /// ring that they came from. Returns whether the interface was there.
    pub fn flush(&mut self, counters: &Counters) -> bool {
        self.hand_over(counters, |_| {})
    }

    /// Hands over what the kernel takes; the rest is lost and counted. To be called before the ring
    /// goes.
    pub fn end(&mut self, counters: &Counters) {
        self.flush(counters);
        counters.dropped_many(DropReason::PortRefused, self.ring.take_back() as u64);
    }
}

/// The header that says the same of a frame whose checked head, the virtio-net header of
/// `header_len` bytes first, is `private`; None where a ring has none.
fn vnet(private: &[u8], header_len: usize) -> Option<VnetHeader> {
    let word = |at: usize| u16::from_le_bytes([private[at], private[at + 1]]);
    let (size, start, offset) = (word(4), word(6), word(8));
    let gso = match private[1] {
        GSO_NONE if private[0] & NEEDS_CSUM == 0 => return Some(VnetHeader::NONE),
        GSO_NONE => return Some(VnetHeader::checksum(start, offset)),
        GSO_TCPV4 => Gso::TcpV4,
        GSO_TCPV6 => Gso::TcpV6,
        GSO_UDP_L4 => Gso::UdpL4,
        _ => return None,
    };
    let headers = u16::try_from(headers_len(private, header_len)?).ok()?;
    VnetHeader::segments(gso, headers, size, start, offset).ok()
}

impl Transmit {
    /// Frames go by this ring from now on, or by none; returns the one before. A ring is the
    /// port's, and outlives the rings of the guest.
    #[inline]
    pub fn exchange_ring(&mut self, ring: Option<Box<FrameRing>>) -> Option<Box<FrameRing>> {
        std::mem::replace(&mut self.frame_ring, ring)
    }

    /// Puts the frame of `len` bytes in `self.segments`, whose checked head is in that place, into
    /// the ring.
    #[inline]
    pub(super) fn push_by_ring(&mut self, place: &Place, len: usize) -> Result<Pushed, DropReason> {
        let head = &self.private[place.range()];
        let Some(ring) = &mut self.frame_ring else { return Ok(Pushed::Never) };
        let (header_len, segments) = (self.header_len, &self.segments);
        let Some(header) = vnet(head, header_len) else {
            return Ok(if self.by_ring > 0 { Pushed::NotNow } else { Pushed::Never });
        };
        if self.by_socket > 0 {
            return Ok(Pushed::NotNow);
        }
        let frame = &head[header_len..];
        let pushed = ring.push(&header, len - header_len, &mut |to| {
            let (first, rest) = to.split_at_mut(frame.len());
            first.copy_from_slice(frame);
            access::read(segments, header_len + first.len(), rest);
        });
        match pushed {
            Ok(true) => {
                self.by_ring += 1;
                Ok(Pushed::Taken(ring.next - 1))
            }
            Ok(false) => Ok(Pushed::NotNow),
            Err(FrameError::BadOffload { .. }) => Err(DropReason::BadOffload),
            Err(FrameError::TooShort { .. }) => Err(DropReason::TooShort),
            // As the socket does with a frame longer than the MTU.
            Err(_) => Err(DropReason::PortRefused),
        }
    }

    /// Hands over what is in the ring, from this batch and from those before.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_ring(&mut self, counters: &Counters) {
        let Some(ring) = &mut self.frame_ring else { return };
        let slots = &mut self.slots;
        let there = ring.hand_over(counters, |lost| {
            for slot in slots.iter_mut().filter(|s: &&mut Slot| s.number.is_some_and(|n| lost.contains(&n))) {
                slot.sent = false;
            }
        });
        self.port_gone |= !there;
    }

    /// Notes that the frame of a slot is in the ring.
    #[inline]
    pub(super) fn note_by_ring(slot: &mut Slot, number: u64, len: usize) {
        slot.number = Some(number);
        slot.sent = true;
        slot.copied = len as u32;
        slot.reason = Some(CopyReason::Outside);
    }
}
