//! A transmit ring: opening it, handing over and taking back.
//!
//! Frames go out in the order of the slots ([`order`]). The kernel keeps the same order: it looks
//! at one slot at a time, goes on only past a frame that it took, and stops at one that it refuses
//! (WRONG_FORMAT) until the process has put a good one into the same slot. So a refused frame is
//! taken out by moving the requested ones behind it up by one slot: a copy, on this path only.

mod ethertypes;
mod in_place;
mod loaded;
mod open;
mod order;
#[cfg(feature = "testing")]
mod testing;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::ethertypes::EtherTypes;
use self::order::{PacketSlot, SlotOrder};
use super::link::PacketLink;
use zerowire_sys::packet::{Status, TransmitRing};

use super::wait::Waiter;
use crate::ledger::{CopyReason, Counters, DropReason};
use crate::send::frame::{FrameError, FrameSender, RETRY};
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;
use zerowire_wire::vnet::VnetHeader;

/// Frames in memory shared with the kernel (PACKET_TX_RING).
///
/// Frames are built in their slots ([`FrameSender::push`], [`PacketRing::push_offload`]), or loaded
/// once and sent again and again without being touched ([`PacketRing::load`],
/// [`PacketRing::send_loaded`]).
pub struct PacketRing {
    memory: TransmitRing,
    waiter: Waiter,
    link: PacketLink,
    header_bytes: usize,
    copy_up_to: usize,
    bypass_queue: bool,
    skip_refused: bool,
    order: SlotOrder,
    /// Of the frames that are not handed over.
    waiting: EtherTypes,
    /// Frames that came back and were not told by `reap`.
    back: usize,
    lost_bytes: u64,
    queue_full: bool,
    counters: Arc<Counters>,
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
        self.link.check(self.order.next_number(), len, self.slot_frame_bytes(), header)?;
        if self.order.is_full() {
            self.collect();
            if self.order.is_full() {
                return Ok(false);
            }
        }
        let slot = self.order.head();
        // A push overwrites what was loaded, even where it fails below.
        self.order[slot].loaded = false;
        let ethertype = self.fill(slot, header, len, &mut build)?;
        let number = self.order.next_number();
        self.order[slot] =
            PacketSlot { number, outside, loaded: false, ethertype, ..self.described(header, len) };
        self.waiting.add(ethertype);
        self.memory.request(slot, self.header_bytes + len);
        self.order.push();
        Ok(true)
    }

    /// What header and length say of a frame.
    #[inline]
    fn described(&self, header: &VnetHeader, len: usize) -> PacketSlot {
        let copied = len <= self.copy_up_to && *header == VnetHeader::NONE;
        PacketSlot { len, wire: header.longest_segment(len), copied, ..PacketSlot::default() }
    }

    /// Writes header and frame into a slot that is the process's; returns the frame's EtherType.
    #[inline]
    fn fill(
        &mut self,
        slot: usize,
        header: &VnetHeader,
        len: usize,
        mut build: impl FnMut(&mut [u8]),
    ) -> Result<[u8; 2], FrameError> {
        let skip = self.header_bytes;
        let copied = self.described(header, len).copied;
        let slots = self.order.len();
        let rule = "the kernel still sends from it: reap or drain first";
        let Some(data) = self.memory.data_mut(slot) else {
            return Err(FrameError::Slot { slot, slots, rule });
        };
        if skip > 0 {
            let header = if copied { VnetHeader::copied(len) } else { *header };
            data[..skip].copy_from_slice(&header.to_bytes());
        }
        let frame = &mut data[skip..skip + len];
        build(frame);
        let ethertype = [frame[12], frame[13]];
        self.link.check_tag(self.order.next_number(), header.longest_segment(len), ethertype)?;
        Ok(ethertype)
    }

    /// Flushes, and waits until a slot is free, `timeout` at the longest; returns whether `push`
    /// finds one now.
    ///
    /// # Errors
    /// As `flush`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let free = self.wait_free(timeout);
        self.waiter.stop(self.link.fd());
        free
    }

    fn wait_free(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let start = Instant::now();
        loop {
            self.flush()?;
            self.collect();
            if !self.order.is_full() {
                return Ok(true);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|t| !t.is_zero()) else {
                return Ok(false);
            };
            self.pause(left)?;
        }
    }

    /// Takes back frames that were pushed and not handed over, such as those of an interface that
    /// is down. Returns how many.
    pub fn take_back(&mut self) -> usize {
        let taken = self.order.unsent();
        for position in self.order.unsent_positions() {
            self.memory.take_back(self.order.slot_at(position));
        }
        self.order.take_back_unsent();
        self.waiting = EtherTypes::None;
        taken
    }

    /// Moves the tail past frames that are back, and counts them.
    fn collect(&mut self) {
        let (mut outside, mut cheaper, mut lent, mut lent_frames) = (0, 0, 0, 0);
        let mut back = 0;
        while self.order.is_oldest_handed_over() {
            let slot = self.order.oldest();
            if self.memory.status(slot) != Status::Available {
                break;
            }
            let sent = &mut self.order[slot];
            let bytes = sent.len as u64;
            if std::mem::take(&mut sent.outside) {
                outside += bytes;
            } else if sent.copied {
                cheaper += bytes;
            } else {
                lent_frames += 1;
                lent += bytes;
            }
            self.order.collect();
            back += 1;
        }
        if back == 0 {
            return;
        }
        self.back += back as usize;
        self.counters.frames.add(back);
        self.counters.zero_copied_frames.add(lent_frames);
        self.counters.zero_copied_bytes.add(lent);
        for (reason, bytes) in [(CopyReason::Outside, outside), (CopyReason::Cheaper, cheaper)] {
            if bytes > 0 {
                self.counters.copied(reason, bytes);
            }
        }
    }

    /// Moves `unsent` past what the kernel took, and returns the bytes of it.
    fn advance(&mut self) -> u64 {
        let mut bytes = 0;
        while self.order.unsent() > 0 {
            let slot = self.order.first_unsent();
            if matches!(self.memory.status(slot), Status::Requested | Status::Refused) {
                break;
            }
            bytes += self.order[slot].len as u64;
            self.order.hand_over();
        }
        bytes
    }

    /// Whether the frame at `unsent` became too long since it was pushed, and goes with a header,
    /// so that the kernel doesn't say so.
    fn first_is_too_long(&self) -> bool {
        let wire = self.order[self.order.first_unsent()].wire;
        self.header_bytes > 0 && self.order.unsent() > 0 && wire > self.link.longest() + VLAN_TAG_BYTES
    }

    /// Takes the refused frame at `unsent` out of the order.
    fn take_out(&mut self, source: io::Error) -> FrameError {
        let slot = self.order.first_unsent();
        let refused = self.order[slot];
        let positions = self.order.unsent_positions();
        self.counters.dropped(DropReason::PortRefused);
        if positions.clone().any(|p| self.order[self.order.slot_at(p)].loaded) {
            // Loaded frames keep their places; the caller puts another one into this place.
            self.take_back();
            self.order[slot].loaded = false;
        } else {
            for position in positions.skip(1) {
                let (from, to) = (self.order.slot_at(position), self.order.slot_at(position - 1));
                let moved = PacketSlot { outside: true, ..self.order[from] };
                self.memory.copy(from, to, self.header_bytes + moved.len);
                self.order[to] = moved;
                self.memory.request(to, self.header_bytes + moved.len);
            }
            self.order.take_back_last();
            self.memory.take_back(self.order.head());
        }
        let bytes = if source.raw_os_error() == Some(libc::EMSGSIZE) { refused.wire } else { refused.len };
        self.link.refused(refused.number, slot, bytes, source)
    }

    fn wait_all(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let start = Instant::now();
        loop {
            self.flush()?;
            self.collect();
            if self.order.used() == 0 {
                return Ok(());
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|t| !t.is_zero()) else {
                let oldest = &self.order[self.order.oldest()];
                return Err(FrameError::Stuck {
                    interface: self.link.interface.clone(),
                    frames: self.order.used(),
                    unsent: self.order.unsent(),
                    oldest: oldest.number,
                    oldest_bytes: oldest.len,
                    waited,
                });
            };
            self.pause(left)?;
        }
    }

    /// Sleeps until something may have changed, `left` at the longest.
    fn pause(&mut self, left: Duration) -> Result<(), FrameError> {
        if self.queue_full {
            // A full queue tells nobody when it has room again.
            std::thread::sleep(left.min(RETRY));
            return Ok(());
        }
        self.waiter.wait(self.link.fd(), left).map_err(|e| self.link.error("epoll_wait", e, 0))
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
        self.queue_full = false;
        if self.header_bytes > 0 && self.order.unsent() > 0 {
            self.link.refresh_mtu();
        }
        while self.order.unsent() > 0 {
            let result = self.link.kick(self.waiting.all());
            self.counters.system_calls.add(1);
            let moved = self.advance();
            let refused =
                self.order.unsent() > 0 && self.memory.status(self.order.first_unsent()) == Status::Refused;
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
                        self.queue_full = true;
                        break;
                    }
                    _ => return Err(self.link.error("sendto", e, self.order.unsent())),
                },
            }
        }
        if self.order.unsent() == 0 {
            self.waiting = EtherTypes::None;
        }
        Ok(())
    }

    fn reap(&mut self) -> usize {
        self.collect();
        std::mem::take(&mut self.back)
    }

    fn outstanding(&self) -> usize {
        self.order.used()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let drained = self.wait_all(timeout);
        self.waiter.stop(self.link.fd());
        drained
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

impl AsFd for PacketRing {
    /// The socket, for event loops: watch it edge-triggered (EPOLLOUT | EPOLLET) to learn of frames
    /// that are back, and only while there is nothing else to do: being watched costs about 150 ns
    /// a frame.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}
