//! A transmit ring: opening it, handing over and taking back.
//!
//! Frames go out in the order of the slots ([`order`]). The kernel keeps the same order. It looks
//! at one slot at a time and goes on only past a frame that it took. It stops at one that it
//! refuses (WRONG_FORMAT) until the process has put a good one into the same slot. To take a
//! refused frame out, the ring moves the requested ones behind it up by one slot: a copy, on this
//! path only.

mod ethertypes;
mod loaded;
mod open;
mod order;
mod slots;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use self::ethertypes::EtherTypes;
use self::order::PacketSlot;
use self::slots::RingSlots;
use super::link::PacketLink;
use super::wait::{Waiter, WaitsForFrames};
use crate::ledger::Counters;
use crate::send::frame::{ETHERNET_HEADER_BYTES, FrameError, FrameSender};
use crate::send::in_place::{FrameSlot, InPlace};
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;
use zerowire_wire::vnet::VnetHeader;

/// Frames in memory shared with the kernel (PACKET_TX_RING).
///
/// Frames are built in their slots ([`FrameSender::push`], [`PacketRing::push_offload`]), or loaded
/// once and sent again and again without being touched ([`PacketRing::load`],
/// [`PacketRing::send_loaded`]).
pub struct PacketRing {
    slots: RingSlots,
    waiter: Waiter,
    link: PacketLink,
    bypass_queue: bool,
    skip_refused: bool,
    lost_bytes: u64,
}

impl PacketRing {
    /// As [`FrameSender::push`] with a virtio-net header in front; needs the option `offload`.
    /// `len` and what `build` gets are the frame's bytes, without that header. The frame must be
    /// ready for it: see [`VnetHeader::prepare`].
    ///
    /// # Errors
    /// As `push`, and [`FrameError::BadOffload`].
    pub fn push_offload(
        &mut self,
        header: &VnetHeader,
        len: usize,
        build: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, FrameError> {
        self.place(header, len, false, build)
    }

    /// Pushes a frame that was built elsewhere: it is copied into its slot, and counted as such
    /// (`outside`).
    ///
    /// # Errors
    /// As `push`.
    pub fn push_copy(&mut self, frame: &[u8]) -> Result<bool, FrameError> {
        self.place(&VnetHeader::NONE, frame.len(), true, |to| to.copy_from_slice(frame))
    }

    // Inlined for the sake of frames without offload, for which most of it falls away.
    #[inline]
    fn place(
        &mut self,
        header: &VnetHeader,
        len: usize,
        outside: bool,
        mut build: impl FnMut(&mut [u8]),
    ) -> Result<bool, FrameError> {
        let slots = &mut self.slots;
        self.link.check(slots.order.next_number(), len, slots.frame_bytes(), header)?;
        if slots.order.is_full() {
            slots.collect();
            if slots.order.is_full() {
                return Ok(false);
            }
        }
        let slot = slots.order.head();
        // A push overwrites what was loaded, even where it fails below.
        slots.order[slot].loaded = false;
        let ethertype = slots.fill(&mut self.link, slot, header, len, &mut build)?;
        let number = slots.order.next_number();
        slots.order[slot] =
            PacketSlot { number, outside, loaded: false, ethertype, ..slots.described(header, len) };
        slots.push(slot, len, ethertype);
        Ok(true)
    }

    /// Flushes, and waits until a slot is free, `timeout` at the longest; returns whether `push`
    /// finds one now.
    ///
    /// # Errors
    /// As `flush`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let late = self.wait_until(timeout, |ring| {
            ring.slots.collect();
            !ring.slots.order.is_full()
        })?;
        Ok(late.is_none())
    }

    /// Takes back frames that were pushed and not handed over, such as those of an interface that
    /// is down. Returns how many.
    pub fn take_back(&mut self) -> usize {
        self.slots.take_back()
    }

    /// Whether a frame whose longest segment is `wire` bytes became too long since it was pushed.
    /// False without headers: only of frames with a header the kernel doesn't check the length.
    #[inline]
    fn is_too_long(&self, wire: usize) -> bool {
        self.slots.header_bytes > 0 && wire > self.link.longest() + VLAN_TAG_BYTES
    }

    /// The same of the frame at `unsent`.
    fn first_is_too_long(&self) -> bool {
        let order = &self.slots.order;
        order.unsent() > 0 && self.is_too_long(order[order.first_unsent()].wire)
    }

    /// Takes the refused frame at `unsent` out of the order.
    fn take_out(&mut self, source: io::Error) -> FrameError {
        let (slot, refused) = self.slots.take_out();
        let bytes = if source.raw_os_error() == Some(libc::EMSGSIZE) { refused.wire } else { refused.len };
        self.link.refused(refused.number, slot, bytes, source)
    }
}

impl WaitsForFrames for PacketRing {
    fn waiter(&mut self) -> (&mut Waiter, &PacketLink) {
        (&mut self.waiter, &self.link)
    }
}

impl FrameSender for PacketRing {
    fn max_frame_bytes(&self) -> usize {
        self.slot_frame_bytes().min(self.link.longest())
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> Result<bool, FrameError> {
        self.place(&VnetHeader::NONE, len, false, build)
    }

    fn flush(&mut self) -> Result<(), FrameError> {
        self.waiter.queue_full = false;
        if self.slots.header_bytes > 0 && self.slots.order.unsent() > 0 {
            self.link.refresh_mtu();
        }
        while self.slots.order.unsent() > 0 {
            let result = self.link.kick(self.slots.waiting.all());
            self.slots.counters.system_calls.add(1);
            let moved = self.slots.advance();
            let refused = self.slots.is_first_refused();
            match result {
                Ok(bytes) => {
                    if self.skip_refused {
                        self.lost_bytes += moved.saturating_sub(bytes as u64);
                    }
                    // The kernel looks at nothing: its order and ours differ no more than by frames
                    // not taken yet.
                    if moved == 0 {
                        break;
                    }
                }
                Err(e) if refused => return Err(self.take_out(e)),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => break,
                    // An interface throws it away and says no more, where the kernel doesn't look
                    // at the MTU.
                    Some(libc::ENOBUFS) if self.first_is_too_long() => {
                        return Err(self.take_out(io::Error::from_raw_os_error(libc::EMSGSIZE)));
                    }
                    Some(libc::ENOBUFS) => {
                        self.waiter.queue_full = true;
                        break;
                    }
                    _ => return Err(self.link.error(self.link.kick_call(), e, self.slots.order.unsent())),
                },
            }
        }
        if self.slots.order.unsent() == 0 {
            // The next ones may have another EtherType.
            self.slots.waiting = EtherTypes::None;
        }
        Ok(())
    }

    fn reap(&mut self) -> usize {
        self.slots.collect();
        std::mem::take(&mut self.slots.back)
    }

    fn outstanding(&self) -> usize {
        self.slots.order.used()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let late = self.wait_until(timeout, |ring| {
            ring.slots.collect();
            ring.slots.order.used() == 0
        })?;
        let Some(waited) = late else { return Ok(()) };
        let oldest = &self.slots.order[self.slots.order.oldest()];
        Err(FrameError::Stuck {
            interface: self.link.interface.clone(),
            frames: self.slots.order.used(),
            unsent: self.slots.order.unsent(),
            oldest: oldest.number,
            oldest_bytes: oldest.len,
            waited,
        })
    }

    fn counters(&self) -> Arc<Counters> {
        self.slots.counters.clone()
    }
}

impl InPlace for PacketRing {
    fn reserve(&mut self, len: usize) -> Result<Option<FrameSlot<'_>>, FrameError> {
        let capacity = self.slot_frame_bytes();
        if !self.link.offload || len < ETHERNET_HEADER_BYTES {
            self.link.check(self.slots.order.next_number(), len, capacity, &VnetHeader::NONE)?;
        } else if len > capacity {
            return Err(FrameError::TooLong { frame_bytes: len, slot_bytes: capacity });
        }
        self.slots.collect();
        if self.slots.order.is_full() {
            return Ok(None);
        }
        let (number, skip) = (self.slots.order.head(), self.slots.header_bytes);
        self.slots.order[number].loaded = false;
        let data = self.slots.memory.data_mut(number);
        Ok(data.map(|data| FrameSlot { number, bytes: &mut data[skip..skip + len] }))
    }

    fn commit(&mut self, len: usize, header: &VnetHeader) -> Result<bool, FrameError> {
        self.place(header, len, false, |_| {})
    }

    fn is_out(&self, place: usize) -> bool {
        self.slots.order.in_use(place)
    }

    fn bytes(&mut self, place: usize, len: usize) -> Option<&[u8]> {
        let is_back = place < self.slots() && !self.is_out(place);
        let data = is_back.then(|| self.slots.memory.data_mut(place)).flatten()?;
        data.get(self.slots.header_bytes..)?.get(..len)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        self.wait(timeout)
    }

    fn path(&self) -> String {
        self.path()
    }
}

impl AsFd for PacketRing {
    /// The socket, for event loops. Watch it edge-triggered (EPOLLOUT | EPOLLET) to learn of frames
    /// that are back. Watch it only while there is nothing else to do: this costs about 150 ns a
    /// frame.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}

/// For tests that show which bytes really go out, and what a refused frame does.
#[cfg(feature = "testing")]
impl PacketRing {
    /// Changes bytes of a slot's frame even while the kernel has it, to show which bytes really go
    /// out.
    pub fn scribble(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        self.slots.memory.scribble(slot, self.slots.header_bytes + offset, bytes);
    }

    /// Makes the frame that was pushed last one that the kernel refuses (WRONG_FORMAT).
    pub fn spoil_last(&mut self) {
        let RingSlots { order, memory, .. } = &mut self.slots;
        if order.unsent() > 0 {
            memory.spoil(order.slot_at(order.unsent_positions().end - 1));
        }
    }
}
