//! The slots of a ring: memory and order in step, and what comes back counted.

use std::sync::Arc;

use zerowire_sys::packet::{Status, TransmitRing};
use zerowire_wire::ethernet;
use zerowire_wire::vnet::VnetHeader;

use super::super::link::PacketLink;
use super::super::options::PacketOptions;
use super::ethertypes::EtherTypes;
use super::order::{PacketSlot, SlotOrder};
use crate::ledger::{CopyReason, Counters, DropReason};
use crate::send::frame::FrameError;

/// See the module.
pub(super) struct RingSlots {
    pub(super) memory: TransmitRing,
    pub(super) order: SlotOrder,
    /// Bytes of the virtio-net header before each frame.
    pub(super) header_bytes: usize,
    /// Frames of up to this many bytes are copied by the kernel.
    pub(super) copy_up_to: usize,
    /// Of the frames that are not handed over.
    pub(super) waiting: EtherTypes,
    /// Frames that came back and that `reap` has not returned yet.
    pub(super) back: usize,
    pub(super) counters: Arc<Counters>,
}

impl RingSlots {
    pub(super) fn new(memory: TransmitRing, options: &PacketOptions) -> Self {
        Self {
            order: SlotOrder::new(memory.geometry().slots()),
            memory,
            header_bytes: options.header_bytes(),
            copy_up_to: options.copy_up_to.min(usize::from(u16::MAX)),
            waiting: EtherTypes::default(),
            back: 0,
            counters: Arc::default(),
        }
    }

    /// Bytes of the longest frame that a slot holds.
    #[inline]
    pub(super) fn frame_bytes(&self) -> usize {
        self.memory.geometry().data_bytes() - self.header_bytes
    }

    /// What header and length say of a frame.
    #[inline]
    pub(super) fn described(&self, header: &VnetHeader, len: usize) -> PacketSlot {
        let copied = len <= self.copy_up_to && *header == VnetHeader::NONE;
        PacketSlot { len, wire: header.longest_segment(len), copied, ..PacketSlot::default() }
    }

    /// Writes header and frame into a slot that is the process's; returns the frame's EtherType.
    #[inline]
    pub(super) fn fill(
        &mut self,
        link: &mut PacketLink,
        slot: usize,
        header: &VnetHeader,
        len: usize,
        mut build: impl FnMut(&mut [u8]),
    ) -> Result<u16, FrameError> {
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
        let ethertype = ethernet::first_type(frame).unwrap_or_default();
        link.check_tag(self.order.next_number(), header.longest_segment(len), ethertype)?;
        Ok(ethertype)
    }

    /// The frame in `slot`, which is the one at the head, waits to be handed over.
    #[inline]
    pub(super) fn push(&mut self, slot: usize, len: usize, ethertype: u16) {
        self.waiting.add(ethertype);
        self.memory.request(slot, self.header_bytes + len);
        self.order.push();
    }

    /// Moves the tail past frames that are back, and counts them.
    pub(super) fn collect(&mut self) {
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
    pub(super) fn advance(&mut self) -> u64 {
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

    /// Whether the kernel refused the frame at `unsent`.
    pub(super) fn is_first_refused(&self) -> bool {
        self.order.unsent() > 0 && self.memory.status(self.order.first_unsent()) == Status::Refused
    }

    /// Takes back all frames that are not handed over. Returns how many.
    pub(super) fn take_back(&mut self) -> usize {
        let taken = self.order.unsent();
        for position in self.order.unsent_positions() {
            self.memory.take_back(self.order.slot_at(position));
        }
        self.order.take_back_unsent();
        self.waiting = EtherTypes::None;
        taken
    }

    /// Takes the refused frame at `unsent` out of the order. Returns its slot, and what it was.
    pub(super) fn take_out(&mut self) -> (usize, PacketSlot) {
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
        (slot, refused)
    }
}
